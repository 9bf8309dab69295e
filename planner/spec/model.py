"""ModelSpec: the shape of a transformer, as much of it as memory and time depend on.

Its parts are sections of a model file, too, which is checked for their types and bounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from planner.limits import MAX_EXPERTS, MAX_LAYERS, MAX_SEQ_LEN, MAX_WIDTH

Architecture = Literal["decoder", "encoder", "encoder-decoder", "vision-encoder"]
Norm = Literal["layernorm", "rmsnorm"]
MixerKind = Literal["mamba1", "mamba2", "gated_delta_net", "kimi_delta", "lightning"]
Position = Literal["learned", "rope", "alibi", "relative", "none"]
Activation = Literal[
    "gelu", "gelu-tanh", "silu", "relu", "squared-relu", "quick-gelu-clamped", "xielu"
]

HEADS = ("num_heads", "num_kv_heads", "head_dim")  # what a second attention may have its own of


@dataclass(frozen=True)
class Exact:
    """Nothing else is taken for the type in a file, as text for a number; numbers have bounds."""

    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None  # of text
    max_length: int | None = None

    def __get_pydantic_core_schema__(
        self, kind: type, handler: Callable[[type], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the schema of a value of the kind."""
        bounds = {name: bound for name, bound in vars(self).items() if bound is not None}
        return {**handler(kind), "strict": True, **bounds}


Layers = Annotated[int, Exact(gt=0, le=MAX_LAYERS)]
LayersOrNone = Annotated[int, Exact(ge=0, le=MAX_LAYERS)]
Width = Annotated[int, Exact(gt=0, le=MAX_WIDTH)]
WidthOrNone = Annotated[int, Exact(ge=0, le=MAX_WIDTH)]
Experts = Annotated[int, Exact(gt=0, le=MAX_EXPERTS)]
ExpertsOrNone = Annotated[int, Exact(ge=0, le=MAX_EXPERTS)]
Tokens = Annotated[int, Exact(gt=0, le=MAX_SEQ_LEN)]
Flag = Annotated[bool, Exact()]
# Letters of layers (:attr:`ModelSpec.layer_pattern`).
Pattern = Annotated[str, Exact(pattern="^[FSLPWCHDM*E-]*$", max_length=MAX_LAYERS)]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a model that is a section of its file: no other keys."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Biases(Section):
    """Linear layers that carry a bias vector."""

    qkv: Flag = False
    attention_output: Flag = False
    mlp: Flag = False
    lm_head: Flag = False
    norm: Flag = True  # the shift vector of a layernorm; an rmsnorm has none whatever this says


@dataclass(frozen=True, kw_only=True)
class RouterSpec(Section):
    """Scoring and choice of experts in a mixture; neither memory nor time depends on it."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalises: Flag = True  # the scores of a token's experts are made to add up to 1
    num_groups: Experts = 1  # groups of experts, of which a token chooses ``top_groups`` first
    top_groups: Experts = 1
    scaling: Annotated[float, Exact(gt=0)] = 1.0  # factor on the scores


@dataclass(frozen=True, kw_only=True)
class MoeSpec(Section):
    """Mixture-of-experts layers: routed and shared experts, and which layers stay dense."""

    num_experts: Experts
    top_k: Experts
    expert_ffn_size: Width
    num_shared_experts: ExpertsOrNone = 0
    shared_ffn_size: WidthOrNone = 0  # width of all shared experts together
    num_leading_dense_layers: LayersOrNone = 0
    moe_layer_step: Layers = 1  # 2: every second layer behind the dense ones is a mixture
    router_bias: Flag = False
    expert_bias: Flag = False
    # Width at which routed experts work (Nemotron 3); 0: the hidden size.
    latent_size: WidthOrNone = 0
    # Beside the others and chosen as they are: they give what they take (LongCat-Flash).
    num_zero_experts: ExpertsOrNone = 0
    router: RouterSpec = field(default_factory=RouterSpec)

    @property
    def mean_experts(self) -> float:
        """Experts that compute something for a token, where all are chosen alike."""
        return self.top_k * self.num_experts / (self.num_experts + self.num_zero_experts)


@dataclass(frozen=True, kw_only=True)
class IndexerSpec(Section):
    """The lightning indexer of sparse attention: every query sees the keys it scores highest.

    DeepSeek-V3.2-Exp, arXiv 2512.02556, section 2.1; blocks of keys in MiniMax-M3.
    """

    num_heads: Width
    head_dim: Width
    top_k: Tokens  # keys that a query sees


@dataclass(frozen=True, kw_only=True)
class MlaSpec(Section):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_lora_rank: WidthOrNone  # 0 when queries are projected directly
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: WidthOrNone
    v_head_dim: Width
    indexer: IndexerSpec | None = None
    # DeepSeek-V4: heads attend to the latent vectors as they are, and outputs are projected group
    # by group to this rank; beside a window they see entries pooled of so many tokens, in layers C
    # those that the indexer chooses, in layers H all.
    output_groups: LayersOrNone = 0
    output_rank: WidthOrNone = 0
    chosen_ratio: LayersOrNone = 0
    pooled_ratio: LayersOrNone = 0

    @property
    def stays_latent(self) -> bool:
        """Heads attend to the latent vectors of keys and values as they are."""
        return bool(self.indexer or self.output_groups)

    @property
    def ratio(self) -> int:
        """Tokens of an entry, where all layers are alike."""
        return self.chosen_ratio if self.indexer else self.pooled_ratio


@dataclass(frozen=True, kw_only=True)
class MixerSpec(Section):
    """A token mixer whose cost is linear in the sequence, in place of attention in some layers.

    Mamba (arXiv 2312.00752), Mamba-2 (arXiv 2405.21060), Gated DeltaNet (arXiv 2412.06464), Kimi
    Delta Attention (arXiv 2510.26692) and lightning attention (arXiv 2501.08313).
    """

    kind: MixerKind
    num_heads: Width  # of values
    head_dim: Width
    num_key_heads: Width  # of keys and queries; groups of B and C in Mamba-2
    key_dim: Width  # of one of them; the state's size in Mamba-2
    # Tokens of the depthwise convolution before the scan; 0: there is none.
    conv_kernel: Annotated[int, Exact(ge=0, le=64)] = 4
    chunk_size: Annotated[int, Exact(gt=0, le=4096)] = 64  # tokens that the scan takes at once
    gated_norm: Flag = True  # Mamba-2's norm behind the gate; Falcon-H1 has none
    full_rank_gates: Flag = False  # Kimi Delta's two gates without a low rank (Ling 3)
    time_rank: WidthOrNone = 0  # of Mamba-1's time step

    @property
    def num_channels(self) -> int:
        """Channels that are convolved: values, and but in Mamba-1 keys and queries."""
        return self.value_size + (0 if self.kind == "mamba1" else 2 * self.key_size)

    @property
    def value_size(self) -> int:
        """Width of all value heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together."""
        return self.num_key_heads * self.key_dim


@dataclass(frozen=True, kw_only=True)
class SecondAttentionSpec(Section):
    """Attention of the layers S of a pattern, where it is unlike that of the layers F.

    Layers with a window that have heads of their own (Gemma 4, MiMo-V2-Flash, Step 3.5), or layers
    that see the keys which the indexer of a layer before has chosen (GLM-5.2), or their own indexer
    (MiniMax-M3). What is left out is as in the layers F. A window of the model is theirs alone.
    """

    num_heads: WidthOrNone = 0
    num_kv_heads: WidthOrNone = 0
    head_dim: WidthOrNone = 0
    takes_chosen_keys: Flag = False  # no indexer of their own
    indexer: IndexerSpec | None = None  # without MLA


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A transformer: sizes per layer, vocabulary, and the flags that add or drop parameters.

    For encoder-decoder models ``num_layers`` counts the layers of one stack and
    ``num_decoder_layers`` those of the second.
    """

    name: str
    family: str = ""
    architecture: Architecture = "decoder"
    num_layers: int
    num_decoder_layers: int = 0
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    gated_mlp: bool = False
    activation: Activation = "gelu"
    vocab_size: WidthOrNone
    max_seq_len: Tokens
    tied_embeddings: bool = False
    biases: Biases = field(default_factory=Biases)
    norm: Norm = "layernorm"
    norms_per_layer: Annotated[int, Exact(ge=0, le=4)] = 2
    final_norm: bool = True  # false for post-norm encoders (BERT): the last layer ends in its own
    # ``head``: one weight vector of head_dim each for q and k; ``full``: over all heads.
    qk_norm: Literal["none", "head", "full"] = "none"
    # Attention and MLP read the same normalised input and run side by side (GPT-J, PaLM).
    parallel_block: bool = False
    position: Position = "rope"  # only learned positions are parameters
    # Rotary embeddings scale queries and keys too, as YaRN does with no ``mscale`` of its own.
    scaled_rotary: bool = False
    # Of what no cost depends on, for files that are written. 0: not known.
    rotary_base: Annotated[float, Exact(ge=0)] = 0.0
    rotary_share: Annotated[float, Exact(gt=0, le=1)] = 1.0  # of a head that positions turn
    # By which Llama 3.1's rule stretches rotary positions.
    rotary_factor: Annotated[float, Exact(ge=1)] = 1.0
    norm_eps: Annotated[float, Exact(ge=0, lt=1)] = 0.0
    num_learned_positions: int = 0
    # Tokens a query sees in windowed layers; 0: all of the sequence.
    sliding_window: Annotated[int, Exact(ge=0, le=MAX_SEQ_LEN)] = 0
    # Beside a window: every n-th layer sees all; 0: none does.
    full_attention_step: LayersOrNone = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    mixer: MixerSpec | None = None  # of layers that layer_pattern says; None: all have attention
    # A letter a layer: F attention, S second attention, L mixer, P attention and mixer side by
    # side, W attention to a window, C besides to chosen and H to all pooled keys (DeepSeek-V4),
    # each with a feed-forward part; of layers of one part * attention, M mixer, E experts, - MLP;
    # D two attentions and two MLPs beside one mixture (LongCat-Flash). Empty: every layer is F.
    layer_pattern: Pattern = ""
    second_attention: SecondAttentionSpec | None = None
    indexer: IndexerSpec | None = None  # of every layer, without MLA (:meth:`with_attention`)
    # Residual streams, joined by hyper-connections (DeepSeek-V4).
    num_streams: Annotated[int, Exact(ge=1, le=16)] = 1
    value_head_dim: WidthOrNone = 0  # of values without MLA; 0: as keys
    values_are_keys: bool = False  # one projection for both, in layers F (Gemma 4)
    gated_attention: bool = False  # queries bring a gate, by which attention's output is multiplied
    gated_heads: bool = False  # one gate per head, by which its output is multiplied (Step 3.5)
    embedding_norm: bool = False  # behind the embedding (BLOOM); counted among extra_params
    # Difference between blocks and usual ones of these sizes, in words, where neither memory nor
    # time depends on it; a framework that builds them by their sizes trains another model.
    special_blocks: str = ""
    num_mtp_layers: LayersOrNone = 0  # that can predict further tokens; a job says how many do
    mtp_pattern: Pattern = ""  # letters of layer_pattern of one such layer; empty: as the last one
    extra_params: int = 0  # outside the repeated shape (patch embeddings, pooler, ...)
    extra_params_per_layer: int = 0  # outside the repeated shape (attention sinks, ...)

    @property
    def kind(self) -> str:
        """``mixture`` (of experts) or ``dense``."""
        return "mixture" if self.moe else "dense"

    @property
    def clamps_gate(self) -> bool:
        """The activation's inputs are clamped first (gpt-oss)."""
        return self.activation.endswith("-clamped")

    @property
    def chooser(self) -> IndexerSpec | None:
        """The indexer, of whichever attention."""
        return self.mla.indexer if self.mla else self.indexer

    @property
    def stream_size(self) -> int:
        """Width of what goes from layer to layer."""
        return self.num_streams * self.hidden_size

    @property
    def query_size(self) -> int:
        """Width of all query heads together, without their gates."""
        return self.num_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of one head of values."""
        return self.mla.v_head_dim if self.mla else self.value_head_dim or self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def projected_value_size(self) -> int:
        """Width of what values are projected to without MLA; 0 where the keys are the values."""
        return 0 if self.values_are_keys else self.num_kv_heads * self.value_dim

    @property
    def value_size(self) -> int:
        """Width of the attention output before its projection."""
        return self.num_heads * self.value_dim

    @property
    def expert_hidden_size(self) -> int:
        """Width of what routed experts take and give."""
        return (self.moe.latent_size if self.moe else 0) or self.hidden_size

    @property
    def windowed_share(self) -> float:
        """Share of the layers whose queries see a window only."""
        if not self.sliding_window:
            return 0.0
        if self.second_attention:
            return self.layer_pattern.count("S") / self.num_layers
        step = self.full_attention_step
        return 1.0 - (self.num_layers // step) / self.num_layers if step else 1.0

    @property
    def has_special_layers(self) -> bool:
        """Layers have linear mixers, gates, or attention of another shape than others."""
        is_gated = self.gated_attention or self.gated_heads
        return bool(is_gated or self.layer_pattern or self.value_head_dim)

    def with_attention(self, letter: str) -> "ModelSpec":
        """Return the model whose every layer has the attention of the layers of this letter."""
        second, mla = self.second_attention, self.mla
        if mla and mla.output_groups:
            indexer, pooled = (mla.indexer, 0) if letter == "C" else (None, mla.pooled_ratio)
            mla = replace(mla, indexer=indexer, pooled_ratio=pooled * (letter == "H"))
            return replace(self, mla=mla)
        if second is None:
            return self
        if letter != "S":
            return replace(self, second_attention=None, sliding_window=0)
        if mla and mla.indexer and second.takes_chosen_keys:
            mla = replace(mla, indexer=replace(mla.indexer, num_heads=0, head_dim=0))
        own = {name: getattr(second, name) or getattr(self, name) for name in HEADS}
        return replace(
            self,
            **own,
            second_attention=None,
            values_are_keys=False,
            mla=mla,
            indexer=second.indexer,
        )

    @property
    def num_blocks(self) -> int:
        """All transformer layers of the model, both stacks of an encoder-decoder included."""
        return self.num_layers + self.num_decoder_layers


def has_sinks(model: ModelSpec) -> bool:
    """Return True if heads have learned sinks (gpt-oss), the only parameters of their size."""
    return model.extra_params_per_layer == model.num_heads


def has_shared_gate(model: ModelSpec) -> bool:
    """Return True if the shared expert's output is gated (Qwen3-Next), and layers have no more."""
    has_shared = model.moe is not None and model.moe.shared_ffn_size > 0
    return has_shared and model.extra_params_per_layer == model.hidden_size
