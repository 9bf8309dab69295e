"""Parameters of whole models against transformers' own classes, to the last one.

Every model of the catalog for which transformers has the architecture is built from the sizes
in its file, on torch's meta device: nothing is downloaded and nothing is allocated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest
from hf_types import FAMILIES

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.layers.parameters import count_parameters
from planner.spec.model import ModelSpec

IMAGE_SIZE = 224  # Pixels along each side of the images of the ViT models
BALANCING_OFFSET = "e_score_correction_bias"
"""A buffer of a router, updated outside the optimizer; model files count it as a router bias."""


Fields = Mapping[str, str | Callable[[ModelSpec], Any]]
"""Fields of a config, each with its path in our model, or what computes it."""
KINDS = {"L": "linear_attention", "F": "full_attention", "M": "linear_attention"}
KINDS |= {"*": "full_attention", "E": "moe", "-": "mlp", "S": "sliding_attention"}


def indexed(model: ModelSpec) -> list[str] | None:
    """Layers with an indexer of their own and without."""
    return ["shared" if letter == "S" else "full" for letter in model.layer_pattern] or None


def kinds(model: ModelSpec) -> list[str]:
    """Transformers' words for the letters of a layer pattern."""
    return [KINDS[letter] for letter in model.layer_pattern]


def without(fields_of: Fields, *names: str) -> Fields:
    return {name: path for name, path in fields_of.items() if name not in names}


def patch_size(model: ModelSpec) -> int:
    """Pixels of a patch: beside the patches there is one position for the class."""
    return IMAGE_SIZE // isqrt(model.num_learned_positions - 1)


SIZES: Fields = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_size",
}
DECODER = {
    **SIZES,
    "max_position_embeddings": "max_seq_len",
    "tie_word_embeddings": "tied_embeddings",
}
GROUPED = {**DECODER, "num_key_value_heads": "num_kv_heads"}
LLAMA = {**GROUPED, "head_dim": "head_dim"}
BIASED = {**LLAMA, "attention_bias": "biases.qkv"}
GPT2 = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_inner": "ffn_size",
    "n_positions": lambda model: model.num_learned_positions or model.max_seq_len,
    "tie_word_embeddings": "tied_embeddings",
}
TOP_K = {"num_experts_per_tok": "moe.top_k"}
LOCAL = {"num_local_experts": "moe.num_experts", "intermediate_size": "moe.expert_ffn_size"}
MIXTRAL = {**LLAMA, **LOCAL, **TOP_K}
GPT_OSS = {**MIXTRAL, "attention_bias": "biases.qkv"}
PHIMOE = {**GPT_OSS, "lm_head_bias": "biases.lm_head"}
LLAMA4 = {
    **MIXTRAL,
    "intermediate_size_mlp": "ffn_size",
    "interleave_moe_layer_step": "moe.moe_layer_step",
}
EXPERTS = {
    "num_experts": "moe.num_experts",
    "moe_intermediate_size": "moe.expert_ffn_size",
    **TOP_K,
}
QWEN3_MOE = {**BIASED, **EXPERTS, "decoder_sparse_step": "moe.moe_layer_step"}
HY3 = {**BIASED, **EXPERTS, "num_shared_experts": "moe.num_shared_experts"}
ERNIE = {
    **GROUPED,
    "moe_num_experts": "moe.num_experts",
    "moe_k": "moe.top_k",
    "moe_intermediate_size": "moe.expert_ffn_size",
    "moe_num_shared_experts": "moe.num_shared_experts",
    "moe_layer_start_index": "moe.num_leading_dense_layers",
}
SHARED = {
    **GROUPED,
    **TOP_K,
    "n_routed_experts": "moe.num_experts",
    "n_shared_experts": "moe.num_shared_experts",
    "moe_intermediate_size": "moe.expert_ffn_size",
    "first_k_dense_replace": "moe.num_leading_dense_layers",
}
GLM4_MOE = {
    **SHARED,
    "head_dim": "head_dim",
    "attention_bias": "biases.qkv",
    "use_qk_norm": lambda model: model.qk_norm == "head",
}
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
DEEPSEEK = {
    **SHARED,
    **{name: f"mla.{name}" for name in LATENT},
    "q_lora_rank": lambda model: model.mla.q_lora_rank or None,
}
ONE_DENSE_LAYER = without(DEEPSEEK, "first_k_dense_replace")
"""Of classes that have one dense layer."""
SPARSE = {
    **DEEPSEEK,
    "index_n_heads": "mla.indexer.num_heads",
    "index_head_dim": "mla.indexer.head_dim",
    "index_topk": "mla.indexer.top_k",
}
GLM_DSA = {**SPARSE, "indexer_types": indexed}
LINEAR = {
    "layer_types": kinds,
    "linear_num_value_heads": "mixer.num_heads",
    "linear_value_head_dim": "mixer.head_dim",
    "linear_num_key_heads": "mixer.num_key_heads",
    "linear_key_head_dim": "mixer.key_dim",
    "linear_conv_kernel_dim": "mixer.conv_kernel",
}
DELTA = {**LLAMA, **LINEAR}
DELTA_MIXTURE = {**DELTA, **EXPERTS, "shared_expert_intermediate_size": "moe.shared_ffn_size"}
KIMI_LINEAR = {
    **without(ONE_DENSE_LAYER, "n_routed_experts"),
    "num_local_experts": "moe.num_experts",
    "layer_types": kinds,
    "linear_num_heads": "mixer.num_heads",
    "linear_head_dim": "mixer.head_dim",
    "linear_conv_kernel_dim": "mixer.conv_kernel",
}
AFMOE = {
    **LLAMA,
    **EXPERTS,
    "num_shared_experts": "moe.num_shared_experts",
    "num_dense_layers": "moe.num_leading_dense_layers",
}
BAILING = {
    **without(DEEPSEEK, "q_lora_rank", "n_routed_experts"),
    "num_local_experts": "moe.num_experts",
    "head_dim": "mixer.head_dim",
    "layer_types": kinds,
}
FALCON_H1 = {
    **LLAMA,
    "mamba_n_heads": "mixer.num_heads",
    "mamba_d_head": "mixer.head_dim",
    "mamba_d_ssm": "mixer.value_size",
    "mamba_n_groups": "mixer.num_key_heads",
    "mamba_d_state": "mixer.key_dim",
    "mamba_rms_norm": "mixer.gated_norm",
}
GEMMA4 = {
    **without(LLAMA, "num_key_value_heads", "head_dim"),
    "layer_types": kinds,
    "num_key_value_heads": "second_attention.num_kv_heads",
    "head_dim": "second_attention.head_dim",
    "num_global_key_value_heads": "num_kv_heads",
    "global_head_dim": "head_dim",
    "attention_k_eq_v": "values_are_keys",
    "num_kv_shared_layers": lambda _: 0,
    "hidden_size_per_layer_input": lambda _: 0,
}
GEMMA4_MIXTURE = {
    **GEMMA4,
    "enable_moe_block": lambda _: True,
    "num_experts": "moe.num_experts",
    "moe_intermediate_size": "moe.expert_ffn_size",
    "intermediate_size": "moe.shared_ffn_size",
}
MIMO = {
    **without(LLAMA, "num_key_value_heads"),
    **TOP_K,
    "num_key_value_heads": "num_kv_heads",
    "v_head_dim": "value_head_dim",
    "n_routed_experts": "moe.num_experts",
    "moe_intermediate_size": "moe.expert_ffn_size",
    "layer_types": kinds,
}
STEP = {
    **LLAMA,
    **without(EXPERTS, "num_experts"),
    "n_routed_experts": "moe.num_experts",
    "share_expert_dim": "moe.shared_ffn_size",
    "num_sliding_attention_heads": "second_attention.num_heads",
    "layer_types": kinds,
}
NEMOTRON_H = {
    **without(LLAMA, "num_hidden_layers"),
    "layers_block_type": kinds,
    "mamba_num_heads": "mixer.num_heads",
    "mamba_head_dim": "mixer.head_dim",
    "n_groups": "mixer.num_key_heads",
    "ssm_state_size": "mixer.key_dim",
    "conv_kernel": "mixer.conv_kernel",
}
NEMOTRON_H_MIXTURE = {
    **NEMOTRON_H,
    **TOP_K,
    "n_routed_experts": "moe.num_experts",
    "n_shared_experts": "moe.num_shared_experts",
    "moe_intermediate_size": "moe.expert_ffn_size",
    "moe_shared_expert_intermediate_size": "moe.shared_ffn_size",
    "moe_latent_size": lambda model: model.moe.latent_size or None,
}
GRANITE_HYBRID = {
    **GROUPED,
    **LOCAL,
    **TOP_K,
    "shared_intermediate_size": "moe.shared_ffn_size",
    "layer_types": kinds,
    "mamba_n_heads": "mixer.num_heads",
    "mamba_d_head": "mixer.head_dim",
    "mamba_n_groups": "mixer.num_key_heads",
    "mamba_d_state": "mixer.key_dim",
    "mamba_d_conv": "mixer.conv_kernel",
}
BLOOM = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "tie_word_embeddings": "tied_embeddings",
}
FALCON = {
    **without(DECODER, "intermediate_size"),
    "ffn_hidden_size": "ffn_size",
    "multi_query": lambda model: model.num_kv_heads == 1,
    "num_kv_heads": "num_kv_heads",
    "new_decoder_architecture": lambda model: model.norms_per_layer == 2,
    "parallel_attn": "parallel_block",
    "bias": "biases.mlp",
}
MPT = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "expansion_ratio": lambda model: model.ffn_size // model.hidden_size,
    "max_seq_len": "max_seq_len",
    "no_bias": lambda model: not model.biases.norm,
    "tie_word_embeddings": "tied_embeddings",
}
OPT = {
    **without(DECODER, "intermediate_size"),
    "ffn_dim": "ffn_size",
    "max_position_embeddings": lambda model: model.num_learned_positions - 2,
}
T5 = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "d_ff": "ffn_size",
    "num_layers": "num_layers",
    "num_decoder_layers": "num_decoder_layers",
    "num_heads": "num_heads",
    "feed_forward_proj": lambda model: "gated-gelu" if model.gated_mlp else "relu",
}
VIT = {
    **without(SIZES, "vocab_size"),
    "image_size": lambda _: IMAGE_SIZE,
    "patch_size": patch_size,
    "qkv_bias": "biases.qkv",
    "num_labels": lambda _: 1000,
}


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers and the config it is built from."""

    config: str
    model: str
    fields: Fields


def causal(stem: str, fields_of: Fields) -> Architecture:
    return Architecture(f"{stem}Config", f"{stem}ForCausalLM", fields_of)


ARCHITECTURES = {
    "afmoe": causal("Afmoe", AFMOE),
    "arcee": causal("Arcee", LLAMA),
    "bailing_hybrid": causal("BailingHybrid", BAILING),
    "bert": Architecture("BertConfig", "BertModel", DECODER),
    "bloom": causal("Bloom", BLOOM),
    "deepseek_v2": causal("DeepseekV2", DEEPSEEK),
    "deepseek_v3": causal("DeepseekV3", DEEPSEEK),
    "deepseek_v32": causal("DeepseekV32", SPARSE),
    "ernie4_5_moe": causal("Ernie4_5_Moe", ERNIE),
    "falcon": causal("Falcon", FALCON),
    "falcon_h1": causal("FalconH1", FALCON_H1),
    "gemma": causal("Gemma", LLAMA),
    "gemma2": causal("Gemma2", LLAMA),
    "gemma3_text": Architecture("Gemma3TextConfig", "Gemma3ForCausalLM", LLAMA),
    "gemma4_text": Architecture("Gemma4TextConfig", "Gemma4ForCausalLM", GEMMA4),
    "gemma4_text of experts": Architecture("Gemma4TextConfig", "Gemma4ForCausalLM", GEMMA4_MIXTURE),
    "glm_moe_dsa": causal("GlmMoeDsa", GLM_DSA),
    "glm4_moe": causal("Glm4Moe", GLM4_MOE),
    "glm4_moe_lite": causal("Glm4MoeLite", ONE_DENSE_LAYER),
    "gpt2": Architecture("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt_neox": causal("GPTNeoX", DECODER),
    "gpt_oss": causal("GptOss", GPT_OSS),
    "gptj": causal("GPTJ", GPT2),
    "granitemoehybrid": causal("GraniteMoeHybrid", GRANITE_HYBRID),
    "hy_v3": causal("HYV3", HY3),
    "kimi_linear": causal("KimiLinear", KIMI_LINEAR),
    "llama": causal("Llama", LLAMA),
    "llama4_text": Architecture("Llama4TextConfig", "Llama4ForCausalLM", LLAMA4),
    "mimo_v2_flash": causal("MiMoV2Flash", MIMO),
    "minimax_m2": causal("MiniMaxM2", MIXTRAL),
    "ministral3": causal("Ministral3", LLAMA),
    "mistral": causal("Mistral", LLAMA),
    "mistral4": causal("Mistral4", DEEPSEEK),
    "mixtral": causal("Mixtral", MIXTRAL),
    "mpt": causal("Mpt", MPT),
    "nemotron": causal("Nemotron", LLAMA),
    "nemotron_h": causal("NemotronH", NEMOTRON_H),
    "nemotron_h of experts": causal("NemotronH", NEMOTRON_H_MIXTURE),
    "olmo2": causal("Olmo2", GROUPED),
    "olmo3": causal("Olmo3", GROUPED),
    "olmo_hybrid": causal("OlmoHybrid", {**GROUPED, **LINEAR}),
    "opt": causal("OPT", OPT),
    "phi": causal("Phi", GROUPED),
    "phi3": causal("Phi3", GROUPED),
    "phimoe": causal("Phimoe", PHIMOE),
    "qwen2": causal("Qwen2", GROUPED),
    "qwen3": causal("Qwen3", BIASED),
    "qwen3_5_moe_text": Architecture(
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        without(DELTA_MIXTURE, "intermediate_size"),
    ),
    "qwen3_5_text": Architecture("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", DELTA),
    "qwen3_moe": causal("Qwen3Moe", QWEN3_MOE),
    "qwen3_next": causal("Qwen3Next", DELTA_MIXTURE),
    "seed_oss": causal("SeedOss", BIASED),
    "smollm3": causal("SmolLM3", GROUPED),
    "step3p7": Architecture("Step3p7TextConfig", "Step3p7TextModel", STEP),
    "t5": Architecture("T5Config", "T5ForConditionalGeneration", T5),
    "vit": Architecture("ViTConfig", "ViTForImageClassification", VIT),
}
SINGLE = {"mixtral-8x7b": "mixtral", "mixtral-8x22b": "mixtral", "phi-3.5-moe": "phimoe"}
"""Architecture of a model that differs from its family's."""
IN_NO_FIELD = {"head_dim", "num_labels", "global_head_dim", "num_global_key_value_heads"}
WITHOUT_HEAD = "step3p7"
"""Transformers' class that is built is the text model, without its head."""
ALWAYS_TIED = "t5"
"""Transformers 5 ties this architecture's head whatever the model; T5 1.1 has one of its own."""
WITHOUT_CLASS = {
    "chinchilla-70b": "no class",
    "glm-130b": "no class",
    "gopher-280b": "no class",
    "grok-1": "no class",
    "lamda-137b": "no class",
    "palm-8b": "no class",
    "palm-62b": "no class",
    "palm-540b": "no class",
    "phi-3-small": "no class",
    "megatron-bert-345m": "its class has token types and a pooler, which the file leaves out",
    "llama3.2-11b-vision-text": "its class has cross-attention; the file says self-attention",
    "llama3.2-90b-vision-text": "its class has cross-attention; the file says self-attention",
}


def model_type(name: str) -> str | None:
    """Transformers' name of the model's architecture; None where it has none."""
    if name in WITHOUT_CLASS:
        return None
    model = load_model(name)
    if model.family == "qwen3" and model.moe:
        return "qwen3_moe"
    if model.family == "qwen3.5":
        return "qwen3_5_moe_text" if model.moe else "qwen3_5_text"
    if model.family in ("nemotron-h", "gemma4") and model.moe:
        return f"{FAMILIES[model.family]} of experts"
    return SINGLE.get(name) or FAMILIES.get(model.family, model.family)


COMPARED = {name: kind for name in list_models() if (kind := model_type(name))}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    import transformers

    return transformers


def build(transformers: ModuleType, name: str) -> Any:
    """The model of this name on the meta device; every field must be one its config knows."""
    import torch

    architecture = ARCHITECTURES[COMPARED[name]]
    config_class = getattr(transformers, architecture.config)
    model = load_model(name)
    given = {
        field: path(model) if callable(path) else attrgetter(path)(model)
        for field, path in architecture.fields.items()
    }
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    unknown = set(given) - known - IN_NO_FIELD
    assert not unknown, f"{architecture.config} does not know {sorted(unknown)}"
    with torch.device("meta"):
        return getattr(transformers, architecture.model)(config_class(**given))


def count(built: Any) -> int:
    """Parameters, tied ones once, and the balancing offsets of routers."""
    offsets = [buffer for name, buffer in built.named_buffers() if BALANCING_OFFSET in name]
    return sum(tensor.numel() for tensor in [*built.parameters(), *offsets])


@pytest.mark.parametrize("name", COMPARED)
def test_count_equals_what_transformers_builds(transformers: ModuleType, name: str) -> None:
    model = load_model(name)
    if COMPARED[name] == ALWAYS_TIED:
        model = replace(model, tied_embeddings=True)
    head = model.vocab_size * model.hidden_size * (COMPARED[name] == WITHOUT_HEAD)
    assert count_parameters(model) == head + count(build(transformers, name))


def test_every_architecture_is_compared() -> None:
    assert set(COMPARED.values()) == set(ARCHITECTURES)
    assert set(WITHOUT_CLASS) <= set(list_models())
