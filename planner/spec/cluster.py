"""ClusterSpec: accelerators, the node they sit in, and the network levels above it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Literal, TypeAlias

from planner.notes import Note
from planner.spec.job import Precision

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
# Collectives, and what is measured beside them.
CollectiveKind: TypeAlias = Collective | Literal["broadcast", "p2p"]
Topology = Literal[
    "switch", "ring", "fully_connected", "mesh_2d", "torus_2d", "torus_3d", "hybrid_cube_mesh"
]
Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


@dataclass(frozen=True, kw_only=True)
class LowPrecisionGemm:
    """Products in 8 or 4 bits: their rate beside that in 16 bits, and their own offsets."""

    factor: float  # sustained_fraction in this precision over that in 16 bits, each of its own peak
    m0: float
    n0: float
    k0: float
    launch_s: float


@dataclass(frozen=True, kw_only=True)
class GemmEfficiency:
    """Fraction of the peak rate that a dense GEMM reaches, and its offsets.

    ``sustained_fraction`` is the fraction of dense peak of a large, long-running kernel. The
    offsets m0, n0, k0 (in elements) make small shapes slower; ``wave_weight`` says how strictly
    work is quantised to whole waves of output tiles over the multiprocessors. Where machines with
    the same part are known to differ, the slowest and fastest of them are stated too.
    """

    sustained_fraction: float
    sustained_slowest_fraction: float | None = None
    sustained_fastest_fraction: float | None = None
    m0: float
    n0: float
    k0: float
    launch_s: float
    num_multiprocessors: int = 0  # 0: unknown, tiles and waves are not modelled
    wave_weight: float = 0.0
    tile_k0: float = 130.0
    tile_128x128_fraction: float = 0.88
    tile_128x64_fraction: float = 0.70
    low_precision: Mapping[Precision, LowPrecisionGemm] = field(default_factory=dict)

    @property
    def slowest(self) -> float:
        """``sustained_fraction`` of the slowest published machine."""
        return self.sustained_slowest_fraction or self.sustained_fraction

    @property
    def fastest(self) -> float:
        """``sustained_fraction`` of the fastest published machine."""
        return self.sustained_fastest_fraction or self.sustained_fraction

    @property
    def has_range(self) -> bool:
        """True if machines with this part are known to differ."""
        return self.slowest < self.fastest


@dataclass(frozen=True, kw_only=True)
class LowPrecisionAttention:
    """Rate of fused attention in 8 bits over that in 16, at the fit's ``head_dims``."""

    forward_factors: tuple[float, ...]
    backward_factors: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionEfficiency:
    """One fused attention kernel: fraction of dense peak ``e · s / (s + s0)``, causal FLOPs.

    The fractions are those of head size 128; the factors, at ``head_dims``, are relative to it.
    """

    forward_fraction: float
    forward_s0: float
    backward_fraction: float
    backward_s0: float
    forward_tiles0: float = 0.0  # blocks of 128 queries and one head at half the rate
    backward_tiles0: float = 0.0
    launch_s: float = 0.0
    head_dims: tuple[float, ...] = (128.0,)  # mean of the head sizes of queries and values, rising
    forward_head_factors: tuple[float, ...] = (1.0,)
    backward_head_factors: tuple[float, ...] = (1.0,)
    sustained_fraction: float = 1.0  # of these rates of short bursts, in training
    low_precision: Mapping[Precision, LowPrecisionAttention] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CollectiveFit:
    """Measured collective on ``num_ranks`` of one scale-up domain.

    ``latency_s[i] + busbw_factor · bytes / busbw_bytes_per_s[i]``, where i counts the
    ``switch_bytes`` at or below the message: the library changes protocol or algorithm there.
    """

    num_ranks: int
    switch_bytes: tuple[float, ...] = ()  # rising, one less than there are regimes
    latency_s: tuple[float, ...]
    busbw_bytes_per_s: tuple[float, ...]


# Vendor of accelerators that are threads of the host's own processor.
PROCESSOR = "CPU"


@dataclass(frozen=True, kw_only=True)
class AcceleratorSpec:
    """One device as its software sees it (one GCD, one die pair, one chip)."""

    name: str
    vendor: str
    architecture: str = ""  # the vendor's generation; empty where it has no name
    hbm_bytes: float  # total memory that the driver shows (usable), not the label on the box
    hbm_bytes_per_s: float
    peak_flops_per_s: Mapping[Dtype, float]  # dense (no sparsity) matrix rates
    memory_bound_fraction: float  # fraction of the HBM bandwidth that element-wise kernels reach
    gemm: GemmEfficiency
    attention: AttentionEfficiency  # the vendor library's kernel (cuDNN), or the best there is
    attention_flash2: AttentionEfficiency  # torch's FlashAttention-2, where it differs
    attention_flash_attn: AttentionEfficiency | None = None  # its package, where torch's differs
    collectives: Mapping[Collective, tuple[CollectiveFit, ...]] = field(default_factory=dict)
    tdp_w: float | None = None
    compute_capability: float = 0.0  # CUDA's number of what it can do; 0: none, or not known
    context_bytes: float | None = None  # of a process, its kernels loaded, where published
    usual_node: str | None = None
    kubernetes_resource: str = ""  # its device plugin's name of it; empty: none is known
    skypilot_name: str = ""  # empty: SkyPilot does not offer it
    assumptions: tuple[str, ...] = ()  # figures that no source gave, with their rule


@dataclass(frozen=True, kw_only=True)
class LevelSpec:
    """One network level: groups of ``num_accelerators`` that reach each other through it."""

    name: str
    topology: Topology = "switch"
    num_accelerators: int  # in one group of this level; the outermost spans the cluster
    bytes_per_s: float  # per direction and accelerator, datasheet; of a torus, along one dimension
    latency_s: float  # latency of one hop between neighbours through this level
    efficiency_fraction: float  # fraction of ``bytes_per_s`` that large collectives reach
    oversubscription: float = 1.0  # rate of the ports below over that of the links into this level
    ring_bytes_per_s: float = inf  # of the ports of a node that one ring uses, datasheet
    reduces_in_network: bool = False  # its switches add vectors on the way (SHARP, NVLink SHARP)
    dims: tuple[int, ...] = ()  # members along each dimension of a torus or mesh; empty otherwise
    kubernetes_resource: str = ""  # of its ports past the kernel (RDMA); empty: none
    wired_accelerators: int = 0  # members its links were laid for, of a part; 0: no others
    root_accelerators: int = 0  # so few reach root_fraction, below one root of PCIe; 0: no roots
    root_fraction: float = 0.0  # of ``bytes_per_s``, in place of efficiency_fraction

    @property
    def num_wired(self) -> int:
        """Members that share the links of one: those of the whole, where this is a part of it."""
        return self.wired_accelerators or self.num_accelerators

    @property
    def achieved_bytes_per_s(self) -> float:
        """Rate of all accelerators at once: ``bytes_per_s · efficiency / oversubscription``."""
        return self.bytes_per_s * self.efficiency_fraction / self.oversubscription

    @property
    def ring_achieved_bytes_per_s(self) -> float:
        """Rate that one ring gets at most, on the same terms."""
        return self.ring_bytes_per_s * self.efficiency_fraction / self.oversubscription

    def within(self, num_accelerators: int) -> "LevelSpec":
        """Return this level in a machine of so many accelerators; a torus becomes a slice."""
        if num_accelerators >= self.num_accelerators:
            return self
        return replace(
            self,
            num_accelerators=num_accelerators,
            dims=slice_dims(num_accelerators, self.dims),
            wired_accelerators=self.num_wired,
        )


def slice_dims(num_members: int, largest: tuple[int, ...]) -> tuple[int, ...]:
    """Return the most cubic dimensions of a slice of a torus, shortest first.

    Their product is ``num_members``, and none is longer than its dimension of the whole torus;
    where there is no such shape, one long dimension: a line through it.
    """
    if not largest:
        return ()
    *rest, longest = sorted(largest)
    if not rest:
        return (num_members,)
    divisors = [n for n in range(1, num_members + 1) if num_members % n == 0]
    for last in divisors:
        shorter = slice_dims(num_members // last, tuple(rest))
        fits = all(d <= most for d, most in zip(shorter, rest, strict=True))
        if shorter[-1] <= last <= longest and fits:
            return (*shorter, last)
    return (*(1 for _ in rest), num_members)


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A server: its accelerators, how they are joined, its host memory, disks and price."""

    name: str
    accelerator: AcceleratorSpec
    num_accelerators: int
    scale_up: LevelSpec  # the NVLink/xGMI/ICI/PCIe domain; may be larger than one node (NVL72)
    package: LevelSpec | None = None  # devices of one package, joined closer than the domain
    nic_bytes_per_s: float  # all network ports together, one direction; 0: no network known
    fabric: str
    host_memory_bytes: float | None
    host_memory_note: str = ""  # reason for the size of host memory, where that is assumed
    host_cores: float  # cores of all its processors
    host_memory_bytes_per_s: float  # of the memory of all its processors, datasheet
    host_core_bytes_per_s: float  # rate at which one thread alone reads and writes host memory
    launch_factor: float = 1.0  # its hosts' time to launch a kernel, over that of others
    host_link_bytes_per_s: float  # to one accelerator, one direction, achieved with all at it
    accelerators_per_host_slot: int = 1  # accelerators that share one link to the host
    nvme_bytes: float | None = None
    nvme_read_bytes_per_s: float | None = None
    nvme_write_bytes_per_s: float | None = None
    power_w: float | None = None  # rated, of the whole node at full load
    usd_per_hour: float | None = None
    price_note: str = ""
    assumptions: tuple[str, ...] = ()
    whole: "NodeSpec | None" = None  # the node that this is a part of


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """``num_nodes`` equal nodes joined by a fabric."""

    name: str
    node: NodeSpec
    num_nodes: int
    fabric: LevelSpec  # the outermost level; spans the cluster
    inner_fabric: tuple[LevelSpec, ...] = ()  # between domain and fabric, smallest first
    assumptions: tuple[Note, ...] = ()  # what its names or its file leave open or replace

    @cached_property
    def levels(self) -> tuple[LevelSpec, ...]:
        """All levels, innermost to outermost; none is larger than the cluster."""
        package = () if self.node.package is None else (self.node.package,)
        inner = (*package, self.node.scale_up, *self.inner_fabric)
        return (*(level.within(self.num_accelerators) for level in inner), self.fabric)

    @property
    def num_inner_levels(self) -> int:
        """Levels below the scale-up domain, whose place in ``levels`` this is."""
        return 0 if self.node.package is None else 1

    @property
    def domain(self) -> LevelSpec:
        """The scale-up domain, no larger than the cluster."""
        return self.levels[self.num_inner_levels]

    @property
    def accelerator(self) -> AcceleratorSpec:
        """The accelerator of every node."""
        return self.node.accelerator

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the whole cluster."""
        return self.num_nodes * self.node.num_accelerators
