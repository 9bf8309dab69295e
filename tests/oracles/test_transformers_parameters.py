"""Parameters of whole models against transformers' own classes, to the last one.

Every model of the catalog for which transformers has the architecture is built from the sizes
in its file, on torch's meta device: nothing is downloaded and nothing is allocated.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isqrt
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


def gpt2(model: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_inner": model.ffn_size,
        "n_positions": model.num_learned_positions or model.max_seq_len,
        "tie_word_embeddings": model.tied_embeddings,
    }


def decoder(model: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": model.tied_embeddings,
    }


def grouped(model: ModelSpec) -> dict[str, Any]:
    return decoder(model) | {"num_key_value_heads": model.num_kv_heads}


def llama(model: ModelSpec) -> dict[str, Any]:
    return grouped(model) | {"head_dim": model.head_dim}


def biased(model: ModelSpec) -> dict[str, Any]:
    return llama(model) | {"attention_bias": model.biases.qkv}


def experts(model: ModelSpec, **fields_of: str) -> dict[str, Any]:
    """Fields of a config by the name that the mixture's own have here."""
    return {theirs: getattr(model.moe, ours) for theirs, ours in fields_of.items()}


def mixtral(model: ModelSpec) -> dict[str, Any]:
    sizes = {"intermediate_size": "expert_ffn_size", "num_local_experts": "num_experts"}
    return llama(model) | experts(model, **sizes, num_experts_per_tok="top_k")


def gpt_oss(model: ModelSpec) -> dict[str, Any]:
    return mixtral(model) | {"attention_bias": model.biases.qkv}


def phimoe(model: ModelSpec) -> dict[str, Any]:
    return gpt_oss(model) | {"lm_head_bias": model.biases.lm_head}


def llama4(model: ModelSpec) -> dict[str, Any]:
    own = mixtral(model) | {"intermediate_size_mlp": model.ffn_size}
    return own | experts(model, interleave_moe_layer_step="moe_layer_step")


def with_experts(model: ModelSpec) -> dict[str, Any]:
    sizes = {"num_experts": "num_experts", "moe_intermediate_size": "expert_ffn_size"}
    return biased(model) | experts(model, **sizes, num_experts_per_tok="top_k")


def qwen3_moe(model: ModelSpec) -> dict[str, Any]:
    return with_experts(model) | experts(model, decoder_sparse_step="moe_layer_step")


def hy3(model: ModelSpec) -> dict[str, Any]:
    return with_experts(model) | experts(model, num_shared_experts="num_shared_experts")


def ernie(model: ModelSpec) -> dict[str, Any]:
    return grouped(model) | experts(
        model,
        moe_num_experts="num_experts",
        moe_k="top_k",
        moe_intermediate_size="expert_ffn_size",
        moe_num_shared_experts="num_shared_experts",
        moe_layer_start_index="num_leading_dense_layers",
    )


def with_shared_experts(model: ModelSpec) -> dict[str, Any]:
    return grouped(model) | experts(
        model,
        n_routed_experts="num_experts",
        n_shared_experts="num_shared_experts",
        num_experts_per_tok="top_k",
        moe_intermediate_size="expert_ffn_size",
        first_k_dense_replace="num_leading_dense_layers",
    )


def glm4_moe(model: ModelSpec) -> dict[str, Any]:
    return with_shared_experts(model) | {
        "head_dim": model.head_dim,
        "attention_bias": model.biases.qkv,
        "use_qk_norm": model.qk_norm == "head",
    }


def deepseek(model: ModelSpec) -> dict[str, Any]:
    assert model.mla is not None
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ranks = {name: getattr(model.mla, name) for name in names}
    return with_shared_experts(model) | ranks | {"q_lora_rank": model.mla.q_lora_rank or None}


def sparse(model: ModelSpec) -> dict[str, Any]:
    own = deepseek(model)
    assert model.mla is not None and model.mla.indexer is not None  # noqa: PT018
    names = {"index_n_heads": "num_heads", "index_head_dim": "head_dim", "index_topk": "top_k"}
    return own | {key: getattr(model.mla.indexer, ours) for key, ours in names.items()}


def glm4_moe_lite(model: ModelSpec) -> dict[str, Any]:
    own = deepseek(model)
    assert own.pop("first_k_dense_replace") == 1, "the class has one dense layer"
    return own


KINDS = {"L": "linear_attention", "F": "full_attention", "M": "linear_attention"}
KINDS |= {"*": "full_attention", "E": "moe", "-": "mlp"}


def kinds(model: ModelSpec) -> list[str]:
    """Transformers' words for the letters of a layer pattern."""
    return [KINDS[letter] for letter in model.layer_pattern]


def delta(model: ModelSpec) -> dict[str, Any]:
    mixer = model.mixer
    assert mixer is not None
    own = {
        "layer_types": kinds(model),
        "linear_num_value_heads": mixer.num_heads,
        "linear_value_head_dim": mixer.head_dim,
        "linear_num_key_heads": mixer.num_key_heads,
        "linear_key_head_dim": mixer.key_dim,
        "linear_conv_kernel_dim": mixer.conv_kernel,
    }
    if model.family == "olmo-hybrid":
        return grouped(model) | own
    return llama(model) | own


def delta_mixture(model: ModelSpec) -> dict[str, Any]:
    sizes = {"num_experts": "num_experts", "moe_intermediate_size": "expert_ffn_size"}
    sizes |= {"num_experts_per_tok": "top_k", "shared_expert_intermediate_size": "shared_ffn_size"}
    own = delta(model) | experts(model, **sizes)
    if model.family == "qwen3.5":
        own.pop("intermediate_size")
    return own


def kimi_linear(model: ModelSpec) -> dict[str, Any]:
    own = deepseek(model)
    assert model.mixer is not None
    assert own.pop("first_k_dense_replace") == 1, "the class has one dense layer"
    return own | {
        "num_local_experts": own.pop("n_routed_experts"),
        "layer_types": kinds(model),
        "linear_num_heads": model.mixer.num_heads,
        "linear_head_dim": model.mixer.head_dim,
        "linear_conv_kernel_dim": model.mixer.conv_kernel,
    }


def nemotron_h(model: ModelSpec) -> dict[str, Any]:
    mixer = model.mixer
    assert mixer is not None
    own = llama(model) | {
        "layers_block_type": kinds(model),
        "mamba_num_heads": mixer.num_heads,
        "mamba_head_dim": mixer.head_dim,
        "n_groups": mixer.num_key_heads,
        "ssm_state_size": mixer.key_dim,
        "conv_kernel": mixer.conv_kernel,
    }
    own.pop("num_hidden_layers")
    if model.moe is None:
        return own
    return own | {
        **experts(model, n_routed_experts="num_experts", n_shared_experts="num_shared_experts"),
        **experts(model, num_experts_per_tok="top_k", moe_intermediate_size="expert_ffn_size"),
        **experts(model, moe_shared_expert_intermediate_size="shared_ffn_size"),
        "moe_latent_size": model.moe.latent_size or None,
    }


def granite_hybrid(model: ModelSpec) -> dict[str, Any]:
    mixer = model.mixer
    assert mixer is not None
    sizes = {"num_local_experts": "num_experts", "num_experts_per_tok": "top_k"}
    sizes |= {"intermediate_size": "expert_ffn_size", "shared_intermediate_size": "shared_ffn_size"}
    return (
        grouped(model)
        | experts(model, **sizes)
        | {
            "layer_types": kinds(model),
            "mamba_n_heads": mixer.num_heads,
            "mamba_d_head": mixer.head_dim,
            "mamba_n_groups": mixer.num_key_heads,
            "mamba_d_state": mixer.key_dim,
            "mamba_d_conv": mixer.conv_kernel,
        }
    )


def bloom(model: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "tie_word_embeddings": model.tied_embeddings,
    }


def falcon(model: ModelSpec) -> dict[str, Any]:
    own = decoder(model)
    return own | {
        "ffn_hidden_size": own.pop("intermediate_size"),
        "multi_query": model.num_kv_heads == 1,
        "num_kv_heads": model.num_kv_heads,
        "new_decoder_architecture": model.norms_per_layer == 2,
        "parallel_attn": model.parallel_block,
        "bias": model.biases.mlp,
    }


def mpt(model: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.hidden_size,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "expansion_ratio": model.ffn_size // model.hidden_size,
        "max_seq_len": model.max_seq_len,
        "no_bias": not model.biases.norm,
        "tie_word_embeddings": model.tied_embeddings,
    }


def opt(model: ModelSpec) -> dict[str, Any]:
    own = decoder(model)
    return own | {
        "ffn_dim": own.pop("intermediate_size"),
        "max_position_embeddings": model.num_learned_positions - 2,
    }


def t5(model: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.hidden_size,
        "d_kv": model.head_dim,
        "d_ff": model.ffn_size,
        "num_layers": model.num_layers,
        "num_decoder_layers": model.num_decoder_layers,
        "num_heads": model.num_heads,
        "feed_forward_proj": "gated-gelu" if model.gated_mlp else "relu",
    }


def vit(model: ModelSpec) -> dict[str, Any]:
    patches_along_a_side = isqrt(model.num_learned_positions - 1)
    return {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.ffn_size,
        "image_size": IMAGE_SIZE,
        "patch_size": IMAGE_SIZE // patches_along_a_side,
        "qkv_bias": model.biases.qkv,
        "num_labels": 1000,
    }


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers and the config it is built from."""

    config: str
    model: str
    fields: Callable[[ModelSpec], dict[str, Any]]


def causal(stem: str, fields_of: Callable[[ModelSpec], dict[str, Any]]) -> Architecture:
    return Architecture(f"{stem}Config", f"{stem}ForCausalLM", fields_of)


ARCHITECTURES = {
    "arcee": causal("Arcee", llama),
    "bert": Architecture("BertConfig", "BertModel", decoder),
    "bloom": causal("Bloom", bloom),
    "deepseek_v2": causal("DeepseekV2", deepseek),
    "deepseek_v3": causal("DeepseekV3", deepseek),
    "deepseek_v32": causal("DeepseekV32", sparse),
    "ernie4_5_moe": causal("Ernie4_5_Moe", ernie),
    "falcon": causal("Falcon", falcon),
    "gemma": causal("Gemma", llama),
    "gemma2": causal("Gemma2", llama),
    "gemma3_text": Architecture("Gemma3TextConfig", "Gemma3ForCausalLM", llama),
    "glm_moe_dsa": causal("GlmMoeDsa", sparse),
    "glm4_moe": causal("Glm4Moe", glm4_moe),
    "glm4_moe_lite": causal("Glm4MoeLite", glm4_moe_lite),
    "gpt2": Architecture("GPT2Config", "GPT2LMHeadModel", gpt2),
    "gpt_neox": causal("GPTNeoX", decoder),
    "gpt_oss": causal("GptOss", gpt_oss),
    "gptj": causal("GPTJ", gpt2),
    "granitemoehybrid": causal("GraniteMoeHybrid", granite_hybrid),
    "hy_v3": causal("HYV3", hy3),
    "kimi_linear": causal("KimiLinear", kimi_linear),
    "llama": causal("Llama", llama),
    "llama4_text": Architecture("Llama4TextConfig", "Llama4ForCausalLM", llama4),
    "minimax_m2": causal("MiniMaxM2", mixtral),
    "ministral3": causal("Ministral3", llama),
    "mistral": causal("Mistral", llama),
    "mistral4": causal("Mistral4", deepseek),
    "mixtral": causal("Mixtral", mixtral),
    "mpt": causal("Mpt", mpt),
    "nemotron": causal("Nemotron", llama),
    "nemotron_h": causal("NemotronH", nemotron_h),
    "olmo2": causal("Olmo2", grouped),
    "olmo3": causal("Olmo3", grouped),
    "olmo_hybrid": causal("OlmoHybrid", delta),
    "opt": causal("OPT", opt),
    "phi": causal("Phi", grouped),
    "phi3": causal("Phi3", grouped),
    "phimoe": causal("Phimoe", phimoe),
    "qwen2": causal("Qwen2", grouped),
    "qwen3": causal("Qwen3", biased),
    "qwen3_5_moe_text": Architecture(
        "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", delta_mixture
    ),
    "qwen3_5_text": Architecture("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", delta),
    "qwen3_moe": causal("Qwen3Moe", qwen3_moe),
    "qwen3_next": causal("Qwen3Next", delta_mixture),
    "seed_oss": causal("SeedOss", biased),
    "smollm3": causal("SmolLM3", grouped),
    "t5": Architecture("T5Config", "T5ForConditionalGeneration", t5),
    "vit": Architecture("ViTConfig", "ViTForImageClassification", vit),
}
SINGLE = {"mixtral-8x7b": "mixtral", "mixtral-8x22b": "mixtral", "phi-3.5-moe": "phimoe"}
"""Architecture of a model that differs from its family's."""
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
    given = architecture.fields(load_model(name))
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    unknown = set(given) - known - {"head_dim", "num_labels"}
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
    assert count_parameters(model) == count(build(transformers, name))


def test_every_architecture_is_compared() -> None:
    assert set(COMPARED.values()) == set(ARCHITECTURES)
    assert set(WITHOUT_CLASS) <= set(list_models())
