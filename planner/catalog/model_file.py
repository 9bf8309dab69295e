"""The schema of a model file: keys as in ModelSpec, plus counts and provenance.

Its sections are parts of a ModelSpec as they stand there.
"""

from typing import Annotated, Literal

from pydantic import Field

from planner.catalog.figures import Name, Source, Strict
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
