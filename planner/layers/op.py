"""Op: one operation of a layer, with all that memory, time and communication need of it.

Every quantity is per rank and per micro-batch, and may be a scalar or a column of strategies.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from planner.spec.cluster import Collective
from planner.spec.traits import KernelTraits
from planner.units import Array

ZERO: Array = np.zeros(1)
ONE: Array = np.ones(1)
# bf16 and fp16 activations; traits count traffic of such.
ELEMENT_BYTES = 2.0
# Queries that a block of a fused attention kernel holds.
ATTENTION_BLOCK = 128.0
Axis = Literal["tp", "cp", "ep", "etp"]
# Degrees inside a layer, each a field of LayerShape.
AXES: tuple[Axis, ...] = get_args(Axis)


def _zero() -> Array:
    return ZERO


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The columns a layer's cost depends on: micro-batch, sequence and the degrees inside it."""

    micro_batch: Array  # Sequences of one micro-batch
    seq_len: int | Array
    """Tokens of a sequence; for time, where micro-batches differ in length, the mean of each."""
    tp: Array
    cp: Array
    ep: Array
    etp: Array  # Ranks that split every routed expert
    sequence_parallel: Array  # 1 where norms and residuals are sharded over tp, else 0
    imbalance_fraction: float = 0.0
    """Excess of the busiest rank of experts over the mean, as a fraction, where ep > 1."""
    element_bytes: float = ELEMENT_BYTES  # Bytes of an element of an activation
    document_tokens: float = math.inf
    """Tokens that fused attention joins, where documents are shorter than sequences."""

    @staticmethod
    def all_of(degree: float, seq_len: int) -> "LayerShape":
        """One sequence on ranks where every axis has this degree."""
        return LayerShape(
            micro_batch=ONE,
            seq_len=seq_len,
            sequence_parallel=ONE,
            imbalance_fraction=0.0,
            element_bytes=ELEMENT_BYTES,
            document_tokens=math.inf,
            **{axis: np.full(1, degree) for axis in AXES},
        )

    @property
    def busiest(self) -> Array:
        """Tokens that the busiest rank of experts gets, over the mean: 1 where ep is 1."""
        return np.asarray(1.0 + self.imbalance_fraction * (np.asarray(self.ep) > 1))

    @property
    def wideness(self) -> float:
        """Width of an activation's element over 16 bits, for which traits count traffic."""
        return self.element_bytes / ELEMENT_BYTES

    @property
    def num_tokens(self) -> Array:
        """Tokens of one micro-batch on one context-parallel rank."""
        return np.asarray(self.micro_batch * self.seq_len / self.cp)

    def kept(self, name: str, width: Array) -> "SavedTensor":
        """Return a saved tensor of ``width`` elements per token, in the activations' dtype."""
        tokens, size = self.num_tokens, self.element_bytes
        return SavedTensor(name=name, rows=tokens, width=width, element_bytes=size)

    @property
    def sp(self) -> Array:
        """Ranks over which norms and residuals are split: tp under sequence parallelism."""
        return np.where(self.sequence_parallel == 1, self.tp, 1)

    @property
    def expert_share(self) -> Array:
        """Token-expert pairs that a rank's experts see, over its tokens times top-k: etp / tp.

        The expert mesh etp x ep x edp takes the ranks of a stage, and pairs are spread evenly
        over ep x edp of them.
        """
        return np.asarray(self.etp / self.tp)


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """``count`` GEMMs of (m x k) by (k x n)."""

    m: Array
    n: Array
    k: Array
    count: Array | float = 1.0
    has_weight: bool = True
    """False for products of two activations (unfused attention): no weight gradient."""
    is_frozen: bool = False  # Its weight is not trained: no weight gradient either
    follows_norm: bool = False
    """Its input is a norm's output, in the same kernel where the framework fuses them."""

    @property
    def flops(self) -> Array:
        """Multiply-adds counted as two: 2 · m · n · k · count."""
        return np.asarray(2.0 * self.m * self.n * self.k * self.count)


@dataclass(frozen=True, kw_only=True)
class FlashAttention:
    """Fused attention of one micro-batch."""

    kernel: Literal["fused", "flash2", "flash_attn"]
    square_flops: Array  # Forward FLOPs over all query-key pairs
    causal_fraction: Array | float  # Share of the pairs the kernel computes: half when causal
    seq_len: float | Array
    head_dim: float = 128.0  # Mean of the head sizes of queries and values
    num_tiles: Array | float = math.inf  # Blocks of 128 queries and one head
    rate_fraction: Array | float = 1.0  # Fraction of the kernel's rate in hwdb
    windowed_share: float = 0.0
    """Share of the layers whose queries see a window of the sequence only."""
    window: float = 0.0
    quantised: tuple[Array, Array] | None = None
    """Elements cast before forward (queries, keys, values) and before backward (the gradient of
    the output), where the kernel computes in the job's 8 bits."""

    @property
    def passes(self) -> tuple[tuple[Array, float | Array], ...]:
        """FLOPs, and the length of a causal sequence whose mean query sees as many keys.

        Over the whole sequence, and over the window: a block of 128 queries with a window of w
        tokens passes over w + 256 keys, in whole tiles (fits cuDNN with windows of 128 and 1024).
        """
        whole, keys = self.square_flops * self.causal_fraction, self.causal_fraction * self.seq_len
        reach = self.window + 2.0 * ATTENTION_BLOCK
        if not self.windowed_share or np.all(reach >= keys):
            return ((whole, 2.0 * keys),)
        seen = np.minimum(reach, keys)
        windowed = self.square_flops * (self.windowed_share * seen / self.seq_len)
        return ((whole * (1.0 - self.windowed_share), 2.0 * keys), (windowed, 2.0 * seen))

    @property
    def flops(self) -> Array:
        """Forward FLOPs executed, mean over layers."""
        return np.asarray(sum(flops for flops, _ in self.passes))


@dataclass(frozen=True, kw_only=True)
class Comm:
    """One collective over the ranks of ``axis``; ``num_bytes`` as nccl-tests counts them.

    All-gather: the gathered size; reduce-scatter: the input size; all-to-all: the send buffer.
    """

    collective: Collective
    axis: Axis
    num_bytes: Array
    is_independent: bool = False
    """One of the op's two products in backward neither makes nor needs what it carries."""
    is_waited_for: bool = False
    """Nothing runs beside it, whatever the framework hides of other layers."""
    is_for_weights: bool = False  # Only the gradient of a weight needs it
    copies_per_token: float = 1.0
    """All-to-all that sends a token once per remote domain however many of its copies go there."""
    domain_bytes: Array = field(default_factory=_zero)
    """Beside ``num_bytes``, where one domain holds all ranks; of several the share of one."""


Comms: TypeAlias = tuple[Comm, ...]
# Of forward and of backward.
BothComms: TypeAlias = tuple[Comms, Comms]


def waited_for(comms: Comms) -> Comms:
    """Mark collectives as waited for: nothing runs beside them."""
    return tuple(replace(comm, is_waited_for=True) for comm in comms)


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A tensor of rows x width elements (or ``count`` of them), alive from forward to backward."""

    name: str  # Dotted: the op and what it is
    rows: Array  # Tokens of one micro-batch on the rank
    width: Array  # Elements per token
    element_bytes: float
    count: Array | float = 1.0
    is_freed: bool = False
    """No longer a tensor, but a block the allocator cannot use for anything else."""

    @property
    def num_bytes(self) -> Array:
        """Bytes: rows · width · count · element_bytes."""
        return np.asarray(self.rows * self.width * (self.count * self.element_bytes))


def total_bytes(tensors: tuple[SavedTensor, ...]) -> Array:
    """Bytes of all tensors together."""
    return ZERO + sum(tensor.num_bytes for tensor in tensors)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of a layer."""

    name: str
    params: Array = field(default_factory=_zero)  # Parameters this rank holds and trains
    frozen_bytes: Array = field(default_factory=_zero)
    """Weights this rank holds and does not train, as they are stored."""
    is_expert: bool = False
    """Parameters are sharded over ep and etp, and replicated over tp · cp · dp / (etp · ep)."""
    gemms: tuple[Gemm, ...] = ()
    attention: FlashAttention | None = None
    forward_bytes: Array = field(default_factory=_zero)  # HBM traffic of memory-bound kernels
    backward_bytes: Array = field(default_factory=_zero)
    small_kernels: tuple[float, float] = (0.0, 0.0)
    """Launches of forward and of backward beyond one per product and those for the traffic."""
    tiny_kernels: tuple[Array | float, Array | float] = (0.0, 0.0)
    """Kernels of forward and of backward that each add a start, besides the time of their
    traffic."""
    has_own_kernels: bool = False
    """True if the op's own kernels are all that move its traffic, whatever the framework has."""
    is_permutation: bool = False  # Its traffic is that of the framework's kernels that sort tokens
    saved: tuple[SavedTensor, ...] = ()  # Activations kept for backward
    runs_in_16_bit: bool = False  # Kept in bf16 under fp8 training (vocabulary head, router)
    selective_fraction: Array | float = 0.0
    """Share of the forward that selective recomputation repeats."""
    selective_saved: tuple[SavedTensor, ...] | None = None
    """Kept under selective recomputation; all of ``saved`` when None."""
    selective_op: "Op | None" = None
    """The part of the op that ``selective_fraction`` is of; the whole when None."""
    is_spared: bool = False  # Full recomputation does not repeat its forward
    comms: BothComms = ((), ())

    @property
    def saved_bytes(self) -> Array:
        """Bytes of the activations kept for backward."""
        return total_bytes(self.saved)

    @property
    def kept(self) -> tuple[SavedTensor, ...]:
        """Activations kept under selective recomputation."""
        return self.saved if self.selective_saved is None else self.selective_saved

    @property
    def kept_bytes(self) -> Array:
        """Bytes of the activations kept under selective recomputation."""
        return total_bytes(self.kept)


def linear(name: str, m: Array, n: Array, k: Array, params: Array) -> Op:
    """A weight matrix of k x n applied to m tokens."""
    return Op(name=name, params=params, gemms=(Gemm(m=m, n=n, k=k),))


def kept_token_fraction(shape: LayerShape, traits: KernelTraits) -> Array:
    """Tokens that the busiest rank of experts gets, over the mean of what routers choose.

    With an imbalance i over ep > 1 ranks and a capacity factor c: ``1 + i`` without a capacity,
    ``min(1 + i, c)`` where an expert's tokens beyond ``c T k / E`` of every rank's T tokens are
    dropped, and ``c`` where every expert is padded to that. Source: GShard, arXiv 2006.16668,
    section 2.2 (recalled); Switch Transformer, arXiv 2101.03961, section 2.2 (recalled);
    get_capacity and topk_softmax_with_capacity in megatron/core/transformer/moe/moe_utils.py.
    Excludes rounding up to whole tokens, tokens dropped by one rank's share of the batch although
    others' have room, and what dropping does to the loss.
    """
    factor = traits.expert_capacity_factor
    if not factor:
        return shape.busiest
    if traits.pads_to_capacity:
        return np.full_like(shape.busiest, factor)
    return np.minimum(shape.busiest, factor)


def dispatched_token_fraction(traits: KernelTraits) -> float:
    """Rows that a rank sorts to send, over its tokens times top-k: ``c`` padded, else at most 1.

    Source as of :func:`kept_token_fraction`; MoEAlltoAllTokenDispatcher, num_out_tokens.
    """
    factor = traits.expert_capacity_factor
    if not factor:
        return 1.0
    return factor if traits.pads_to_capacity else min(1.0, factor)
