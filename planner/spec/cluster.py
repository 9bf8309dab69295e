"""ClusterSpec: accelerators, the node they sit in, and the network levels above it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


@dataclass(frozen=True, kw_only=True)
class GemmEfficiency:
    """What a dense matrix multiplication reaches of the peak rate, and its offsets.

    ``sustained_fraction`` is the fraction of dense peak of a large, long-running kernel. The
    offsets m0, n0, k0 (in elements) make small shapes slower; ``wave_weight`` says how strictly
    work is quantised to whole waves of output tiles over the multiprocessors.
    """

    sustained_fraction: float
    m0: float
    n0: float
    k0: float
    launch_s: float
    num_multiprocessors: int = 0
    """0: unknown, tiles and waves are not modelled."""
    wave_weight: float = 0.0
    tile_k0: float = 130.0
    tile_128x128_fraction: float = 0.88
    tile_128x64_fraction: float = 0.70
    fp8_factor: float = 0.9
    """sustained_fraction in fp8 over that in bf16."""
    fp4_factor: float = 0.73
    """sustained_fraction in fp4 over that in bf16."""


@dataclass(frozen=True, kw_only=True)
class AttentionEfficiency:
    """One fused attention kernel: fraction of dense peak ``e · s / (s + s0)``, causal FLOPs."""

    forward_fraction: float
    forward_s0: float
    backward_fraction: float
    backward_s0: float


@dataclass(frozen=True, kw_only=True)
class CollectiveFit:
    """Measured collective on ``num_ranks`` of one scale-up domain.

    ``t = min_i(latency_s[i] + busbw_factor · bytes / busbw_bytes_per_s[i])``: two protocols of
    the library, of which the faster is taken.
    """

    num_ranks: int
    latency_s: tuple[float, ...]
    busbw_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AcceleratorSpec:
    """One device as its software sees it (one GCD, one die pair, one chip)."""

    name: str
    vendor: str
    architecture: str = ""
    """The vendor's generation; empty where it has no name."""
    hbm_bytes: float
    """What the driver shows as total memory (usable), not the label on the box."""
    hbm_bytes_per_s: float
    peak_flops_per_s: Mapping[Dtype, float]
    """Dense (no sparsity) matrix rates."""
    memory_bound_fraction: float
    """What element-wise kernels reach of the HBM bandwidth."""
    gemm: GemmEfficiency
    attention: AttentionEfficiency
    """The vendor library's kernel (cuDNN), or the best there is."""
    attention_flash2: AttentionEfficiency
    """FlashAttention-2, where it differs."""
    collectives: Mapping[Collective, tuple[CollectiveFit, ...]] = field(default_factory=dict)
    tdp_w: float | None = None
    context_bytes: float | None = None
    """Of a process's device context with its kernels loaded, where it was published."""
    usual_node: str | None = None
    assumptions: tuple[str, ...] = ()
    """Figures that no source gave and that were filled by a stated rule."""


@dataclass(frozen=True, kw_only=True)
class LevelSpec:
    """One network level: groups of ``num_accelerators`` that reach each other through it."""

    name: str
    num_accelerators: int
    """Accelerators inside one group of this level; the outermost level spans the cluster."""
    bytes_per_s: float
    """Per direction and accelerator, datasheet."""
    latency_s: float
    efficiency_fraction: float
    """What large collectives reach of ``bytes_per_s``."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A server: its accelerators, how they are joined, its host memory, disks and price."""

    name: str
    accelerator: AcceleratorSpec
    num_accelerators: int
    scale_up: LevelSpec
    """The NVLink/xGMI/ICI/PCIe domain; may be larger than one node (NVL72)."""
    nic_bytes_per_s: float
    """All network ports of the node together, one direction; 0: no network known."""
    fabric: str
    host_memory_bytes: float | None
    host_link_bytes_per_s: float
    """Host to one accelerator, one direction, achieved."""
    nvme_bytes: float | None = None
    nvme_read_bytes_per_s: float | None = None
    nvme_write_bytes_per_s: float | None = None
    usd_per_hour: float | None = None
    price_note: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """``num_nodes`` equal nodes joined by a fabric."""

    name: str
    node: NodeSpec
    num_nodes: int
    fabric: LevelSpec
    assumptions: tuple[str, ...] = ()

    @property
    def accelerator(self) -> AcceleratorSpec:
        """The accelerator of every node."""
        return self.node.accelerator

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the whole cluster."""
        return self.num_nodes * self.node.num_accelerators
