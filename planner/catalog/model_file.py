"""The schema of a model file: keys as in ModelSpec, plus counts and provenance."""

from typing import Annotated, Literal

from pydantic import Field

from planner.catalog.figures import Name, Source, Strict
from planner.limits import MAX_EXPERTS, MAX_LAYERS, MAX_PARAMETERS, MAX_SEQ_LEN, MAX_WIDTH
from planner.spec.model import Architecture, MixerKind, Norm, Position

Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
LayersOrNone = Annotated[int, Field(ge=0, le=MAX_LAYERS)]
Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
WidthOrNone = Annotated[int, Field(ge=0, le=MAX_WIDTH)]
Experts = Annotated[int, Field(gt=0, le=MAX_EXPERTS)]
Tokens = Annotated[int, Field(gt=0, le=MAX_SEQ_LEN)]
Parameters = Annotated[int, Field(gt=0, le=MAX_PARAMETERS)]
Activation = Literal["gelu", "gelu-tanh", "silu", "relu", "squared-relu", "quick-gelu-clamped"]


class BiasesSection(Strict):
    """Linear layers that carry a bias, and whether a layernorm has a shift."""

    qkv: bool = False
    attention_output: bool = False
    mlp: bool = False
    lm_head: bool = False
    norm: bool = True


class RouterSection(Strict):
    """Scoring and choice of experts."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalises: bool = True
    num_groups: Experts = 1
    top_groups: Experts = 1
    scaling: Annotated[float, Field(gt=0)] = 1.0


class MoeSection(Strict):
    """Mixture-of-experts layers; shared_ffn_size is the width of all shared experts."""

    num_experts: Experts
    top_k: Experts
    expert_ffn_size: Width
    num_shared_experts: Annotated[int, Field(ge=0, le=MAX_EXPERTS)] = 0
    shared_ffn_size: Width | None = None
    num_leading_dense_layers: LayersOrNone = 0
    moe_layer_step: Layers = 1
    router_bias: bool = False
    expert_bias: bool = False
    latent_size: WidthOrNone = 0
    router: RouterSection = RouterSection()


class IndexerSection(Strict):
    """The indexer of sparse attention; every query sees top_k keys."""

    num_heads: Width
    head_dim: Width
    top_k: Tokens


class MlaSection(Strict):
    """Multi-head latent attention; q_lora_rank 0 when queries are projected directly."""

    q_lora_rank: WidthOrNone
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width
    indexer: IndexerSection | None = None


class MixerSection(Strict):
    """A token mixer linear in the sequence; Mamba-2's groups and state are its keys."""

    kind: MixerKind
    num_heads: Width
    head_dim: Width
    num_key_heads: Width
    key_dim: Width
    conv_kernel: Annotated[int, Field(ge=0, le=64)] = 4
    chunk_size: Annotated[int, Field(gt=0, le=4096)] = 64


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
    biases: BiasesSection = BiasesSection()
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
    moe: MoeSection | None = None
    mla: MlaSection | None = None
    mixer: MixerSection | None = None
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
