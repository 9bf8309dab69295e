"""Our reading of ``config.json`` against the model that transformers builds from the same file.

Configs are made by transformers' own classes, written as the library writes them, read by the
planner, and compared to the sum over the parameters of the class on the meta device.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.catalog.hf.family import families
from planner.catalog.models import load_model
from planner.layers.parameters import count_parameters

Given = Mapping[str, Any]

SMALL: Given = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 120,
}
GROUPED: Given = {**SMALL, "intermediate_size": 96, "num_key_value_heads": 2}
UNPADDED: Given = {**GROUPED, "pad_token_id": None}
"""Of classes whose padding token is beyond a small vocabulary."""
GROUPED_DELTA: Given = {
    **SMALL,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
DELTA_MIXTURE: Given = {**GROUPED_DELTA, "num_experts": 6, "num_experts_per_tok": 2}
HYBRID: Given = {
    "hidden_size": 64,
    "vocab_size": 120,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}
FOUR_KINDS = ["sliding_attention", "full_attention"] * 2
VARIANTS: Mapping[str, tuple[Given, ...]] = {
    "arcee": ({}, {**GROUPED, "mlp_bias": True}, {**GROUPED, "attention_bias": True}),
    "bert": ({}, {**SMALL, "intermediate_size": 100}, {**SMALL, "type_vocab_size": 1}),
    "bloom": ({}, {**SMALL, "tie_word_embeddings": False}),
    "deepseek_v2": (
        {"num_experts_per_tok": 6},
        {**GROUPED, "num_experts_per_tok": 2, "q_lora_rank": None, "first_k_dense_replace": 1},
        {**GROUPED, "num_experts_per_tok": 2, "attention_bias": True, "n_shared_experts": 3},
        {**GROUPED, "num_experts_per_tok": 2, "first_k_dense_replace": 4},
        {**GROUPED, "num_experts_per_tok": 2, "v_head_dim": 32, "kv_lora_rank": 48},
    ),
    "deepseek_v3": (
        {},
        {**GROUPED, "n_routed_experts": 16, "q_lora_rank": None, "tie_word_embeddings": True},
        {**GROUPED, "n_routed_experts": 16, "attention_bias": True, "first_k_dense_replace": 0},
        {**GROUPED, "num_mtp_layers": 2, "moe_intermediate_size": 24},
    ),
    "deepseek_v32": (
        {},
        {**GROUPED, "n_routed_experts": 16, "index_n_heads": 4, "index_head_dim": 16},
    ),
    "glm_moe_dsa": (
        {},
        {**GROUPED, "n_routed_experts": 16, "index_n_heads": 2, "first_k_dense_replace": 1},
    ),
    "ernie4_5_moe": (
        {},
        {**GROUPED, "moe_num_experts": 6, "moe_num_shared_experts": 0},
        {**GROUPED, "moe_num_experts": 6, "moe_layer_start_index": 2, "moe_intermediate_size": 24},
    ),
    "falcon": (
        {},
        {**SMALL, "bias": True, "multi_query": False, "parallel_attn": False},
        {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 100},
        {**SMALL, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        {**SMALL, "new_decoder_architecture": True, "parallel_attn": False, "alibi": True},
        {**SMALL, "num_ln_in_parallel_attn": 2, "tie_word_embeddings": False},
    ),
    "gemma": (
        {},
        {**GROUPED, "head_dim": 16, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "gemma2": (
        {},
        {**GROUPED, "head_dim": 16, "attention_bias": True, "layer_types": FOUR_KINDS},
        {**GROUPED, "sliding_window": 16, "layer_types": ["full_attention"] * 4},
    ),
    "gemma3_text": (
        {},
        {**GROUPED, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": False},
        {**GROUPED, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "glm": ({}, {**UNPADDED, "head_dim": 16, "attention_bias": False}),
    "glm4": ({}, {**UNPADDED, "head_dim": 16, "attention_bias": False}),
    "glm4_moe": (
        {},
        {**GROUPED, "use_qk_norm": True, "attention_bias": True, "head_dim": 32},
        {**GROUPED, "n_shared_experts": 2, "n_routed_experts": 8, "first_k_dense_replace": 3},
    ),
    "gpt2": (
        {},
        {**SMALL, "n_inner": 100, "tie_word_embeddings": False},
        {**SMALL, "n_positions": 77},
    ),
    "gpt_bigcode": ({}, {**SMALL, "n_inner": 100}, {**SMALL, "multi_query": False}),
    "gpt_neox": (
        {},
        {**SMALL, "attention_bias": False, "tie_word_embeddings": True},
        {**SMALL, "intermediate_size": 100, "use_parallel_residual": False},
    ),
    "gpt_oss": (
        {},
        {**GROUPED, "head_dim": 16, "attention_bias": False, "num_local_experts": 6},
        {**GROUPED, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
    ),
    "gptj": ({}, {**SMALL, "n_inner": 100}, {**SMALL, "tie_word_embeddings": True}),
    "granite": ({}, {**GROUPED, "attention_bias": True}, {**GROUPED, "mlp_bias": True}),
    "llama": (
        {},
        {**GROUPED, "attention_bias": True, "mlp_bias": True},
        {**GROUPED, "head_dim": 24, "tie_word_embeddings": True},
    ),
    "minimax_m2": (
        {},
        {**GROUPED, "head_dim": 16, "num_local_experts": 12, "tie_word_embeddings": True},
    ),
    "ministral3": ({}, {**GROUPED, "head_dim": 16, "sliding_window": 16}),
    "mistral": (
        {},
        {**GROUPED, "head_dim": 24},
        {**GROUPED, "sliding_window": None, "tie_word_embeddings": True},
    ),
    "mistral4": (
        {},
        {**UNPADDED, "n_routed_experts": 16, "first_k_dense_replace": 2, "attention_bias": True},
        {**UNPADDED, "n_routed_experts": 16, "q_lora_rank": None, "n_shared_experts": 2},
    ),
    "mixtral": (
        {},
        {**GROUPED, "num_local_experts": 5, "num_experts_per_tok": 3},
        {**GROUPED, "head_dim": 16, "sliding_window": 64, "tie_word_embeddings": True},
    ),
    "mpt": ({}, {**SMALL, "tie_word_embeddings": False}, {**SMALL, "max_seq_len": 96}),
    "olmo2": (
        {},
        {**GROUPED, "attention_bias": True, "tie_word_embeddings": True},
        {**GROUPED, "head_dim": 24},
    ),
    "olmo3": ({}, {**GROUPED, "attention_bias": True}, {**GROUPED, "layer_types": FOUR_KINDS}),
    "opt": (
        {},
        {**SMALL, "ffn_dim": 100, "enable_bias": False},
        {**SMALL, "do_layer_norm_before": False, "tie_word_embeddings": False},
        {**SMALL, "_remove_final_layer_norm": True, "max_position_embeddings": 99},
    ),
    "phi": (
        {},
        {**GROUPED, "qk_layernorm": True},
        {**GROUPED, "tie_word_embeddings": True, "hidden_act": "relu"},
    ),
    "phi3": (
        {"pad_token_id": None},
        {**UNPADDED, "sliding_window": 16, "tie_word_embeddings": True},
    ),
    "qwen2": (
        {},
        {**GROUPED, "tie_word_embeddings": True},
        {**GROUPED, "use_sliding_window": True, "max_window_layers": 0},
        {**GROUPED, "use_sliding_window": True, "max_window_layers": 4},
    ),
    "qwen2_moe": (
        {},
        {**GROUPED, "qkv_bias": False, "num_experts": 6, "decoder_sparse_step": 2},
        {**GROUPED, "num_experts": 6, "mlp_only_layers": [0, 1]},
        {**GROUPED, "num_experts": 6, "mlp_only_layers": [0, 1, 2]},
        {**GROUPED, "num_experts": 6, "mlp_only_layers": [1], "decoder_sparse_step": 2},
        {**GROUPED, "num_experts": 6, "decoder_sparse_step": 5},
        {**GROUPED, "num_experts": 6, "decoder_sparse_step": 3, "tie_word_embeddings": True},
        {**GROUPED, "shared_expert_intermediate_size": 40, "use_sliding_window": True},
    ),
    "qwen3": (
        {},
        {**GROUPED, "attention_bias": True, "tie_word_embeddings": True, "head_dim": 16},
        {**GROUPED, "use_sliding_window": True, "max_window_layers": 0},
    ),
    "qwen3_moe": (
        {},
        {**GROUPED, "attention_bias": True, "num_experts": 9, "head_dim": 24},
        {**GROUPED, "num_experts": 9, "mlp_only_layers": [0], "moe_intermediate_size": 40},
        {**GROUPED, "num_experts": 9, "decoder_sparse_step": 2, "use_sliding_window": True},
    ),
    "roberta": ({}, {**SMALL, "type_vocab_size": 1, "max_position_embeddings": 130}),
    "seed_oss": (
        {},
        {**GROUPED, "attention_bias": False, "attention_out_bias": True, "head_dim": 16},
        {**GROUPED, "mlp_bias": True},
    ),
    "qwen3_5_moe_text": ({}, {**DELTA_MIXTURE, "moe_intermediate_size": 24}),
    "qwen3_5_text": (
        {},
        {**GROUPED_DELTA, "intermediate_size": 96, "tie_word_embeddings": True},
        {**GROUPED_DELTA, "layer_types": ["full_attention", *["linear_attention"] * 3]},
    ),
    "qwen3_next": (
        {},
        {**DELTA_MIXTURE, "shared_expert_intermediate_size": 40},
        {**DELTA_MIXTURE, "linear_conv_kernel_dim": 3},
    ),
    "nemotron_h": (
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"]},
        {**HYBRID, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
        {**HYBRID, "layers_block_type": ["linear_attention", "moe"], "moe_latent_size": 16},
        {**HYBRID, "layers_block_type": ["linear_attention", "mlp"], "mlp_hidden_act": "silu"},
    ),
    "smollm3": ({}, {**UNPADDED, "attention_bias": True}, {**UNPADDED, "mlp_bias": True}),
    "starcoder2": (
        {},
        {**GROUPED, "use_bias": False, "tie_word_embeddings": False},
        {**GROUPED, "sliding_window": 16, "head_dim": 16},
    ),
    "t5": (
        {},
        {"d_model": 64, "num_layers": 3, "num_decoder_layers": 2, "d_kv": 24, "num_heads": 4},
        {"d_model": 64, "feed_forward_proj": "gated-gelu", "d_ff": 100, "num_heads": 4},
        {"d_model": 64, "relative_attention_num_buckets": 8, "tie_word_embeddings": False},
    ),
    "vit": (
        {},
        {"num_labels": 10, "image_size": 96, "patch_size": 8, "qkv_bias": False},
        {"image_size": [64, 96], "patch_size": [8, 16], "num_channels": 1},
        {"num_labels": 0, "hidden_size": 48, "intermediate_size": 50},
    ),
    "xlm-roberta": ({}, {**SMALL, "type_vocab_size": 1, "intermediate_size": 100}),
}
CASES = [
    pytest.param(kind, given, id=f"{kind}-{index}")
    for kind, variants in VARIANTS.items()
    for index, given in enumerate(variants)
]
OF_NO_CONFIG_CLASS = {
    "hybrid_override_pattern": "as NVIDIA's files say layers_block_type",
    "head_dim": "read by getattr, or a property",
    "hidden_act": "Gemma 2 and 3 have hidden_activation",
    "id2label": "of every config; None",
    "layer_types": "not of every class",
    "max_window_layers": "Qwen3-MoE does not read it",
    "n_positions": "T5 has no limit; old files have it",
    "num_nextn_predict_layers": "not of DeepSeek-V2",
    "num_labels": "of every config; two",
    "partial_rotary_factor": "Phi-3 has it in rope_parameters; files before have it at the top",
    "remove_final_layer_norm": "spelled with an underscore",
    "seq_length": "BLOOM has no limit; old files have it",
    "sliding_window_pattern": "of old Gemma 3 files",
    "tie_word_embeddings": "T5 takes it aside",
}
"""Keys that are read and are no field of the config class, and why."""


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    import transformers

    return transformers


def config_of(transformers: ModuleType, kind: str, given: Given) -> Any:
    return transformers.AutoConfig.for_model(kind, **given)


def count(transformers: ModuleType, kind: str, config: Any) -> int:
    """Parameters of the class that the planner says it counts; tied ones once, no buffers."""
    import torch

    with torch.device("meta"):
        built = getattr(transformers, families()[kind].class_name)(config)
    return sum(parameter.numel() for parameter in built.parameters())


def writings(config: Any) -> dict[str, dict[str, Any]]:
    """A config in full, as the library saves it, and with the keys only that are not default."""
    whole = json.loads(config.to_json_string(use_diff=False))
    defaults = json.loads(type(config)().to_json_string(use_diff=False))
    changed = {key: value for key, value in whole.items() if value != defaults.get(key)}
    return {
        "full": whole,
        "saved": json.loads(config.to_json_string(use_diff=True)),
        "least": changed | {"model_type": config.model_type},
    }


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_count_equals_the_class_built_from_the_same_file(
    transformers: ModuleType, kind: str, given: Given, tmp_path: Path
) -> None:
    config = config_of(transformers, kind, given)
    expected = count(transformers, kind, config)
    path = tmp_path / "config.json"
    for style, keys in writings(config).items():
        path.write_text(json.dumps(keys), encoding="utf-8")
        assert count_parameters(load_model(tmp_path)) == expected, style


@pytest.mark.parametrize("kind", VARIANTS)
def test_defaults_are_those_of_the_config_class(transformers: ModuleType, kind: str) -> None:
    config_class = type(config_of(transformers, kind, {}))
    theirs = {field.name: field.default for field in fields(config_class)}
    spelled = {theirs: ours for ours, theirs in families()[kind].aliases.items()}
    for key, field in families()[kind].keys.items():
        name = key if key in theirs else spelled.get(key, key)
        if name not in theirs:
            assert key in OF_NO_CONFIG_CLASS, key
        elif field.is_required:
            assert theirs[name] is None, key
        elif key not in OF_NO_CONFIG_CLASS or theirs[name] not in (None, MISSING):
            assert field.default == theirs[name], key


@pytest.mark.parametrize("key", OF_NO_CONFIG_CLASS)
def test_every_exception_is_a_key_that_is_read(key: str) -> None:
    assert any(key in family.keys for family in families().values())


def test_multimodal_gemma3_is_its_text_part(transformers: ModuleType, tmp_path: Path) -> None:
    text = dict(VARIANTS["gemma3_text"][1])
    config = transformers.Gemma3Config(text_config=text)
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    expected = count(transformers, "gemma3_text", config.text_config)
    assert count_parameters(load_model(tmp_path)) == expected


TEXT = {**GROUPED, "max_position_embeddings": 64}
WRAPPERS: Mapping[str, Given] = {
    "llava": {**TEXT, "model_type": "llama"},
    "mistral3": {**TEXT, "model_type": "mistral"},
    "qwen2_vl": TEXT,
    "qwen2_5_vl": TEXT,
    "qwen3_5": {**TEXT, **GROUPED_DELTA},
    "qwen3_vl": {**TEXT, "head_dim": 16},
    "qwen3_vl_moe": {**TEXT, "head_dim": 16, "num_experts": 6, "moe_intermediate_size": 24},
}
SEEING = ("visual", "vision_tower", "multi_modal_projector")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_language_model_of_a_wrapper_is_that_of_the_wrappers_class(
    transformers: ModuleType, kind: str, tied: bool, tmp_path: Path
) -> None:
    import torch

    text = {**WRAPPERS[kind], "tie_word_embeddings": tied}
    config = config_of(transformers, kind, {"text_config": text, "tie_word_embeddings": tied})
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config)
    expected = sum(
        parameter.numel()
        for name, parameter in built.named_parameters()
        if not any(part in name for part in SEEING)
    )
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    assert count_parameters(load_model(tmp_path)) == expected


def test_every_family_is_compared_in_several_configs() -> None:
    assert set(VARIANTS) | {"gemma3"} == set(families())
    assert all(len(variants) > 1 for variants in VARIANTS.values())


REFUSED_SHAPES: Mapping[str, tuple[Given, ...]] = {
    "gpt2": ({**SMALL, "add_cross_attention": True},),
    "opt": ({**SMALL, "word_embed_proj_dim": 32}, {"layer_norm_elementwise_affine": False}),
    "deepseek_v2": ({**GROUPED, "num_experts_per_tok": 2, "mlp_bias": True},),
    "qwen3_moe": ({**GROUPED, "num_experts": 6, "mlp_only_layers": [2]},),
}


@pytest.mark.parametrize(
    ("kind", "given"),
    [(kind, given) for kind, variants in REFUSED_SHAPES.items() for given in variants],
)
def test_shapes_that_are_refused_are_other_shapes_to_transformers(
    transformers: ModuleType, kind: str, given: Given, tmp_path: Path
) -> None:
    from planner.errors import InputError

    config = config_of(transformers, kind, given)
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    with pytest.raises(InputError, match="model"):
        load_model(tmp_path)
    (changed,) = {
        key for key in given if key not in {*GROUPED, "num_experts_per_tok", "num_experts"}
    }
    plain = config_of(transformers, kind, {k: v for k, v in given.items() if k != changed})
    assert count(transformers, kind, config) != count(transformers, kind, plain)
