"""The schema of a model file: keys as in ModelSpec, plus counts and provenance; and its rules.

Its sections are parts of a ModelSpec as they stand there.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from planner.catalog.figures import Name, Source, Strict, validate
from planner.catalog.hf.expressions import Names, value_of
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
    num_learned_positions: Tokens | None = None
    sliding_window: Annotated[int, Field(ge=0, le=MAX_SEQ_LEN)] = 0
    full_attention_step: LayersOrNone = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    mixer: MixerSpec | None = None
    layer_pattern: Annotated[str, Field(pattern=r"^[FLM*E-]*$", max_length=MAX_LAYERS)] = ""
    gated_attention: bool = False
    embedding_norm: bool = False
    special_blocks: Name | Literal[""] = ""
    mtp_pattern: Annotated[str, Field(pattern=r"^[FLM*E-]*$", max_length=MAX_LAYERS)] = ""
    num_mtp_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    extra_params: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    extra_params_per_layer: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    params_expected: Parameters | None = None
    params_active_expected: Parameters | None = None
    params_published_b: Annotated[float, Field(gt=0)] | None = None
    params_active_published_b: Annotated[float, Field(gt=0)] | None = None
    provenance: Provenance | None = None


def refused(key: str, what: str, given: object, allowed: object, where: str = "") -> Problem:
    """Return a broken rule: the key to change, what is wrong with it, what it may be."""
    return Problem(where=where, key=key, message=f"{what}; given {given}, allowed {allowed}")


class Rule(NamedTuple):
    """Problem with a key if an expression over the file's keys is true.

    Rules read a file before it is validated, so that what they find is reported together with
    unknown keys and wrong types; one whose keys are missing or malformed stays silent.
    """

    key: str
    when: str
    what: str
    allowed: str


# Keys of a section are named with it: `moe_top_k`.
RULES = (
    Rule(
        key="num_kv_heads",
        when="=num_heads % num_kv_heads != 0",
        what="does not divide num_heads = {num_heads}",
        allowed="{divisors(num_heads)}",
    ),
    Rule(
        key="num_heads",
        when="=head_dim is None and mla is None and hidden_size % num_heads != 0",
        what="does not divide hidden_size = {hidden_size} and head_dim is left out",
        allowed="a divisor of hidden_size, or give head_dim",
    ),
    Rule(
        key="moe.top_k",
        when="=moe_num_experts > 0 and moe_top_k > moe_num_experts",
        what="is more than num_experts = {moe_num_experts}",
        allowed="1 to {moe_num_experts}",
    ),
    Rule(
        key="moe.num_leading_dense_layers",
        when="=moe is not None and 0 < num_layers <= moe_num_leading_dense_layers",
        what="leaves none of {num_layers} layers with experts",
        allowed="0 to {num_layers - 1}",
    ),
    Rule(
        key="moe.moe_layer_step",
        when="=moe is not None and moe_num_leading_dense_layers < num_layers "
        "and moe_moe_layer_step > num_layers - moe_num_leading_dense_layers",
        what="leaves none of the last {num_layers - moe_num_leading_dense_layers} layers "
        "with experts",
        allowed="1 to {num_layers - moe_num_leading_dense_layers}",
    ),
    Rule(
        key="moe.shared_ffn_size",
        when="=moe_shared_ffn_size and not moe_num_shared_experts",
        what="needs num_shared_experts of 1 or more",
        allowed="leave it out",
    ),
    Rule(
        key="num_decoder_layers",
        when="=num_decoder_layers is not None and architecture != 'encoder-decoder'",
        what="does not go with architecture {architecture}",
        allowed="only with encoder-decoder",
    ),
    Rule(
        key="architecture",
        when="=moe is not None and architecture == 'encoder-decoder'",
        what="mixtures of experts are known for models of one stack only",
        allowed="decoder, encoder, vision-encoder",
    ),
    Rule(
        key="vocab_size",
        when="=vocab_size == 0 and architecture != 'vision-encoder'",
        what="only a vision-encoder has no vocabulary",
        allowed="1 or more",
    ),
    Rule(
        key="num_learned_positions",
        when="=num_learned_positions and position != 'learned'",
        what="does not go with position {position}",
        allowed="only with position learned",
    ),
    Rule(
        key="num_learned_positions",
        when="=num_learned_positions and num_learned_positions < max_seq_len",
        what="does not cover max_seq_len = {max_seq_len}",
        allowed="{max_seq_len} or more",
    ),
    Rule(
        key="head_dim",
        when="=head_dim and head_dim != mla_qk_nope_head_dim + mla_qk_rope_head_dim",
        what="is not mla.qk_nope_head_dim + mla.qk_rope_head_dim",
        allowed="{mla_qk_nope_head_dim + mla_qk_rope_head_dim}",
    ),
    Rule(
        key="num_kv_heads",
        when="=mla is not None and num_kv_heads and num_kv_heads != num_heads",
        what="is not num_heads although mla is given",
        allowed="{num_heads}",
    ),
    Rule(
        key="qk_norm",
        when="=mla is not None and qk_norm != 'none'",
        what="does not go with mla, which has its own norms",
        allowed="none",
    ),
    Rule(
        key="layer_pattern",
        when="=layer_pattern and len(layer_pattern) != num_layers",
        what="has {len(layer_pattern)} letters",
        allowed="one for each of {num_layers} layers",
    ),
    Rule(
        key="layer_pattern",
        when="=mixer is None and ('L' in layer_pattern or 'M' in layer_pattern)",
        what="has layers with a mixer, which is left out",
        allowed="a section mixer, or no L and M",
    ),
    Rule(
        key="layer_pattern",
        when="=moe is None and 'E' in layer_pattern",
        what="has layers of experts, which are left out",
        allowed="a section moe, or no E",
    ),
    Rule(
        key="mixer.num_heads",
        when="=mixer is not None and mixer_num_heads % mixer_num_key_heads != 0",
        what="is no multiple of num_key_heads = {mixer_num_key_heads}",
        allowed="a multiple of it",
    ),
    Rule(
        key="biases.qkv",
        when="=mla is not None and biases_qkv is True",
        what="does not go with mla",
        allowed="False",
    ),
    Rule(
        key="biases.attention_output",
        when="=mla is not None and biases_attention_output is True",
        what="does not go with mla",
        allowed="False",
    ),
)
_LEFT_OUT: Names = {
    **dict.fromkeys(("head_dim", "mla", "mixer", "moe", "num_decoder_layers")),
    "layer_pattern": "",
    "architecture": "decoder",
    "position": "rope",
    "qk_norm": "none",
    "moe_num_leading_dense_layers": 0,
    "moe_moe_layer_step": 1,
    "moe_num_shared_experts": 0,
}


def broken_rules(raw: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield one problem for every rule that a file breaks."""
    names = {**_LEFT_OUT, **raw}
    for section in ("moe", "mla", "mixer", "biases"):
        if isinstance(raw.get(section), Mapping):
            names |= {f"{section}_{key}": value for key, value in raw[section].items()}
    for rule in RULES:
        try:
            is_broken = value_of(rule.when, names)
        except (KeyError, TypeError, ZeroDivisionError):
            continue
        if is_broken:
            what, allowed = value_of([rule.what, rule.allowed], names)
            given = names[rule.key.replace(".", "_")]
            yield refused(rule.key, what, given, allowed, where)


def read_model(raw: Mapping[str, Any], where: str) -> ModelFile:
    """Return what a model file holds; raises InputError with every problem of it."""
    return validate(ModelFile, raw, where, broken_rules(raw, where))
