"""Parameters of whole models against transformers' own classes, to the last one.

Every model of the catalog for which transformers has the architecture is built from the sizes
in its file, on torch's meta device: nothing is downloaded and nothing is allocated.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import isqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hf_types import FAMILIES

from planner.catalog import list_models
from planner.catalog.hf.expressions import value_of
from planner.catalog.models import load_model
from planner.layers.parameters import count_parameters, layer_kind
from planner.spec.model import ModelSpec

CLASSES = yaml.safe_load(Path(__file__).with_name("hf_classes.yaml").read_text(encoding="utf-8"))
IMAGE_SIZE = 224  # Pixels along each side of the images of the ViT models
BALANCING_OFFSET = "e_score_correction_bias"
"""A buffer of a router, updated outside the optimizer; model files count it as a router bias."""
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


SINGLE = {"mixtral-8x7b": "mixtral", "mixtral-8x22b": "mixtral", "phi-3.5-moe": "phimoe"}
"""Architecture of a model that differs from its family's."""
IN_NO_FIELD = {"head_dim", "num_labels", "global_head_dim", "num_global_key_value_heads"}
WITHOUT_HEAD = ("step3p7", "minimax_m3")
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
    if model.family == "granite-4" and not model.moe:
        return "granitemoehybrid without experts"
    return SINGLE.get(name) or FAMILIES.get(model.family, model.family)


COMPARED = {name: kind for name in list_models() if (kind := model_type(name))}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    import transformers

    return transformers


def build(transformers: ModuleType, name: str) -> Any:
    """The model of this name on the meta device; every field must be one its config knows."""
    import torch

    block = CLASSES["types"][COMPARED[name]]
    stem = block.get("class", "")
    config, built = block.get("builds", (f"{stem}Config", f"{stem}ForCausalLM"))
    wanted = fields_of(block)
    given = value_of(wanted, names_of(load_model(name)))
    assert given.keys() == wanted.keys()
    config_class = getattr(transformers, config)
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    unknown = set(given) - known - IN_NO_FIELD
    assert not unknown, f"{config} does not know {sorted(unknown)}"
    with torch.device("meta"):
        return getattr(transformers, built)(config_class(**given))


def count(built: Any) -> int:
    """Parameters, tied ones once, and the balancing offsets of routers."""
    offsets = [buffer for name, buffer in built.named_buffers() if BALANCING_OFFSET in name]
    return sum(tensor.numel() for tensor in [*built.parameters(), *offsets])


@pytest.mark.parametrize("name", COMPARED)
def test_count_equals_what_transformers_builds(transformers: ModuleType, name: str) -> None:
    model = load_model(name)
    if COMPARED[name] == ALWAYS_TIED:
        model = replace(model, tied_embeddings=True)
    head = model.vocab_size * model.hidden_size * (COMPARED[name] in WITHOUT_HEAD)
    zero = 0  # experts that compute nothing, to which transformers gives an up projection
    if model.moe:
        zero = model.moe.num_zero_experts * 2 * model.moe.expert_ffn_size * model.hidden_size
    built = count(build(transformers, name)) - zero * model.num_layers
    assert count_parameters(model) == head + built


def test_every_architecture_is_compared() -> None:
    assert set(COMPARED.values()) == set(CLASSES["types"])
    assert set(WITHOUT_CLASS) <= set(list_models())
