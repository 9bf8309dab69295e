"""Models of the catalog as transformers' own classes build them on torch's meta device."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from planner.catalog import list_models
from planner.catalog.hf.expressions import value_of
from planner.catalog.models import load_model
from planner.layers.parameters import layer_kind
from planner.spec.model import ModelSpec

CLASSES = yaml.safe_load(Path(__file__).with_name("hf_classes.yaml").read_text(encoding="utf-8"))
IMAGE_SIZE = 224  # Pixels along each side of the images of the ViT models
FULL, LINEAR = "full_attention", "linear_attention"
# Lists of transformers' words for the letters of a layer pattern.
WORDS: Mapping[str, Mapping[str, str]] = {
    "kinds": {"L": LINEAR, "M": LINEAR, "F": FULL, "*": FULL, "E": "moe", "-": "mlp"}
    | {"S": "sliding_attention", "W": "sliding_attention"}
    | {"C": "compressed_sparse_attention", "H": "heavily_compressed_attention"},
    "blocks": {"F": FULL, "S": "minimax_m3_sparse"},
    "indexed": {"F": "full", "S": "shared"},
}


def flat(part: object, prefix: str = "") -> dict[str, Any]:
    """Fields by name, those of a section with its name before: ``moe_top_k``."""
    found: dict[str, Any] = {}
    for field in fields(part) if is_dataclass(part) else ():
        value = getattr(part, field.name)
        found |= {prefix + field.name: value} | flat(value, f"{prefix}{field.name}_")
    return found


def names_of(model: ModelSpec) -> dict[str, Any]:
    """What expressions of hf_classes.yaml may name."""
    names = flat(model)
    if model.mixer:
        names["mixer_value_size"] = model.mixer.value_size
    own = model.with_attention("S").chooser or model.with_attention("C").chooser
    names |= flat(own, "indexer_")
    for name, words in WORDS.items():
        names[name] = [words[each] for each in model.layer_pattern if each in words]
    layers = range(model.num_layers)
    names["feeds"] = ["sparse" if "moe" in layer_kind(model, n) else "dense" for n in layers]
    step = model.full_attention_step
    names["windows"] = [
        FULL if step and (n + 1) % step == 0 else "sliding_attention" for n in layers
    ]
    # beside the patches there is one position for the class
    return names | {"patch_size": IMAGE_SIZE // isqrt(max(1, model.num_learned_positions - 1))}


def fields_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a block of hf_classes.yaml, those of the blocks that it is like among them."""
    like = block.get("like", [])
    found: dict[str, Any] = {}
    for parent in [like] if isinstance(like, str) else like:
        found |= fields_of(CLASSES["bases"][parent])
    left = {name: found[name] for name in found.keys() - block.get("without", [])}
    return left | block.get("fields", {})


# Families whose name is another; one that is not here has its own.
FAMILIES = {
    "bailing-hybrid": "bailing_hybrid",
    "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3",
    "deepseek-v3.2": "deepseek_v32",
    "deepseek-v4": "deepseek_v4",
    "ernie-4.5": "ernie4_5_moe",
    "exaone-moe": "exaone_moe",
    "falcon-h1": "falcon_h1",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm-4.5": "glm4_moe",
    "glm-4.7-flash": "glm4_moe_lite",
    "glm-5": "glm_moe_dsa",
    "gpt-j": "gptj",
    "gpt-neox": "gpt_neox",
    "gpt-oss": "gpt_oss",
    "gpt3": "gpt2",
    "granite-4": "granitemoehybrid",
    "hunyuan": "hunyuan_v1_moe",
    "hy3": "hy_v3",
    "kimi-k2": "deepseek_v3",
    "kimi-linear": "kimi_linear",
    "korthikanti-2022": "gpt2",
    "llama-like": "llama",
    "llama1": "llama",
    "llama2": "llama",
    "llama3": "llama",
    "llama3.1": "llama",
    "llama3.2": "llama",
    "llama3.3": "llama",
    "llama4": "llama4_text",
    "longcat-flash": "longcat_flash",
    "megatron-gpt2": "gpt2",
    "megatron-sc21": "gpt2",
    "mimo-v2-flash": "mimo_v2_flash",
    "minimax-m2": "minimax_m2",
    "minimax-m3": "minimax_m3",
    "mt-nlg": "gpt2",
    "nemotron-4": "nemotron",
    "nemotron-h": "nemotron_h",
    "olmo-hybrid": "olmo_hybrid",
    "phi4": "phi3",
    "pythia": "gpt_neox",
    "qwen2-moe": "qwen2_moe",
    "qwen2.5": "qwen2",
    "qwen3-next": "qwen3_next",
    "seed-oss": "seed_oss",
}
SINGLE = {"mixtral-8x7b": "mixtral", "mixtral-8x22b": "mixtral", "phi-3.5-moe": "phimoe"}
"""Architecture of a model that differs from its family's."""
IN_NO_FIELD = {"head_dim", "num_labels", "global_head_dim", "num_global_key_value_heads"}
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
    if model.family == "granite-4" and not model.moe:
        return "granitemoehybrid without experts"
    return SINGLE.get(name) or FAMILIES.get(model.family, model.family)


COMPARED = {name: kind for name in list_models() if (kind := model_type(name))}


def config_fields(model: ModelSpec, kind: str) -> dict[str, Any]:
    """Fields of the config of transformers' class for a model."""
    wanted = fields_of(CLASSES["types"][kind])
    given: dict[str, Any] = value_of(wanted, names_of(model))
    assert given.keys() == wanted.keys()
    return given


def build(name: str) -> Any:
    """The model of this name on the meta device; every field must be one its config knows."""
    block = CLASSES["types"][COMPARED[name]]
    stem = block.get("class", "")
    config, built = block.get("builds", (f"{stem}Config", f"{stem}ForCausalLM"))
    given = config_fields(load_model(name), COMPARED[name])
    config_class = getattr(transformers, config)
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    unknown = set(given) - known - IN_NO_FIELD
    assert not unknown, f"{config} does not know {sorted(unknown)}"
    with torch.device("meta"):
        return getattr(transformers, built)(config_class(**given))
