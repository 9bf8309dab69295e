"""The schema of a model file: keys as in ModelSpec, plus counts and provenance; and its rules.

Its sections are parts of a ModelSpec as they stand there.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.catalog.figures import Name, Source, Strict, validate
from planner.catalog.hf.expressions import value_of
from planner.documents.tree import load_own
from planner.errors import Problem
from planner.limits import MAX_LAYERS, MAX_PARAMETERS, MAX_SEQ_LEN
from planner.spec.model import (
    Architecture,
    Biases,
    Layers,
    LayersOrNone,
    MixerSpec,
    MlaSpec,
    MoeSpec,
    Norm,
    Position,
    SecondAttentionSpec,
    Tokens,
    Width,
    WidthOrNone,
)

Parameters = Annotated[int, Field(gt=0, le=MAX_PARAMETERS)]
Activation = Literal["gelu", "gelu-tanh", "silu", "relu", "squared-relu", "quick-gelu-clamped"]


class ExtraParams(Strict):
    """A tensor outside the repeated shape: its name, its size, and its shape in words."""

    name: Name
    count: Parameters
    reason: str


class Provenance(Strict):
    """Basis of the figures of the file."""

    basis: Literal["read", "recalled", "mixed"]
    note: str = ""
    sources: tuple[Source, ...] = Field(default=(), strict=False)


class ModelFile(Strict):
    """One model. What is left out takes the default given in :mod:`planner.catalog.models`."""

    name: Name | None = None
    family: Name | Literal[""] = ""
    architecture: Architecture = "decoder"
    num_layers: Layers
    num_decoder_layers: Layers | None = None
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn_size: Width | None = None
    gated_mlp: bool = False
    activation: Activation = "gelu"
    vocab_size: WidthOrNone
    max_seq_len: Tokens
    tied_embeddings: bool = False
    biases: Biases = Biases()
    norm: Norm = "layernorm"
    norms_per_layer: Annotated[int, Field(ge=0, le=4)] = 2
    final_norm: bool = True
    qk_norm: Literal["none", "head", "full"] = "none"
    parallel_block: bool = False
    position: Position = "rope"
    scaled_rotary: bool = False
    rotary_base: Annotated[float, Field(ge=0)] = 0.0
    rotary_factor: Annotated[float, Field(ge=1)] = 1.0
    norm_eps: Annotated[float, Field(ge=0, lt=1)] = 0.0
    num_learned_positions: Tokens | None = None
    sliding_window: Annotated[int, Field(ge=0, le=MAX_SEQ_LEN)] = 0
    full_attention_step: LayersOrNone = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    mixer: MixerSpec | None = None
    layer_pattern: Annotated[str, Field(pattern=r"^[FSLPM*E-]*$", max_length=MAX_LAYERS)] = ""
    second_attention: SecondAttentionSpec | None = None
    value_head_dim: WidthOrNone = 0
    values_are_keys: bool = False
    gated_attention: bool = False
    gated_heads: bool = False
    embedding_norm: bool = False
    special_blocks: Name | Literal[""] = ""
    mtp_pattern: Annotated[str, Field(pattern=r"^[FLM*E-]*$", max_length=MAX_LAYERS)] = ""
    num_mtp_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    extra_params: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    extra_params_per_layer: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    left_out: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    params_expected: Parameters | None = None
    params_active_expected: Parameters | None = None
    params_published_b: Annotated[float, Field(gt=0)] | None = None
    params_active_published_b: Annotated[float, Field(gt=0)] | None = None
    provenance: Provenance | None = None


def refused(key: str, what: str, given: object, allowed: object, where: str = "") -> Problem:
    """Return a broken rule: the key to change, what is wrong with it, what it may be."""
    return Problem(where=where, key=key, message=f"{what}; given {given}, allowed {allowed}")


# What keys that are left out are taken for, and the rules.
_LEFT_OUT, _RULES = load_own(__package__, "model_rules.yaml").values()


def broken_rules(raw: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield one problem for every rule that a file breaks.

    Rules read a file before it is validated, so that what they find is reported together with
    unknown keys and wrong types; one whose keys are missing or malformed stays silent.
    """
    names = {**_LEFT_OUT, **raw}
    for section in ("moe", "mla", "mixer", "biases"):
        if isinstance(raw.get(section), Mapping):
            names |= {f"{section}_{key}": value for key, value in raw[section].items()}
    for rule in _RULES:
        try:
            is_broken = value_of(rule["when"], names)
        except (KeyError, TypeError, ZeroDivisionError):
            continue
        if is_broken:
            what, allowed = value_of([rule["what"], rule["allowed"]], names)
            given = names[rule["key"].replace(".", "_")]
            yield refused(rule["key"], what, given, allowed, where)


def read_model(raw: Mapping[str, Any], where: str) -> ModelFile:
    """Return what a model file holds; raises InputError with every problem of it."""
    return validate(ModelFile, raw, where, broken_rules(raw, where))
