"""LibraryProfile: which algorithm and protocol a communication library takes, and when."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.spec.cluster import Collective

Kind: TypeAlias = Collective | Literal["broadcast", "p2p"]
Protocol = Literal["LL", "LL128", "Simple"]
ByProtocol: TypeAlias = Mapping[Protocol, float]
ByNodes: TypeAlias = tuple[float, float, float]
"""Values on one node, on two, on more."""


@dataclass(frozen=True, kw_only=True)
class LibraryRule:
    """Taken where the message, the group and the nodes fit; the first that fits counts."""

    kinds: tuple[Kind, ...]
    algorithm: str
    protocol: str = ""
    architectures: tuple[str, ...] = ()
    """Of accelerators; empty: any."""
    max_bytes: float = float("inf")
    max_bytes_per_rank: float = float("inf")
    min_nodes: int = 1
    max_nodes: float = float("inf")
    max_ranks: float = float("inf")
    power_of_two_ranks: bool = False
    power_of_two_nodes: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class NcclGeneration:
    """Constants of NCCL's tuning model for one generation of accelerators."""

    name: str
    min_compute_capability: float
    """Of its accelerators; generations are listed from the newest, whose bound is highest."""
    num_channels: float
    ll_bytes_per_s: float
    """Most that LL moves on one node."""
    ring_ll128_channel_bytes_per_s: ByNodes
    tree_ll128_channel_bytes_per_s: ByNodes
    tree_channel_bytes_per_s: ByNodes
    nvls_tree_channel_bytes_per_s: ByNodes
    nvls_fraction: float
    """0: no NVLS."""
    nvls_channel_bytes_per_s: float
    """Most of one of its channels, of which there is one per accelerator."""
    ring_plateau: float
    """Multi-node ring, Simple, large pieces: factor of its latency."""


@dataclass(frozen=True, kw_only=True)
class NcclTuning:
    """NCCL's own model of time, by which it chooses."""

    generations: tuple[NcclGeneration, ...]
    """Newest first; the last one stands for everything else."""
    base_latency_s: Mapping[str, ByProtocol]
    """By algorithm."""
    hardware_latency_s: Mapping[str, Mapping[str, ByProtocol]]
    """By link (nvlink, pci, net), by algorithm."""
    ll_network_bytes_per_s: ByNodes
    tree_correction: Mapping[Protocol, tuple[float, ...]]
    """Of the tree's bandwidth, by ⌊log2(bytes / 64)⌋."""
    net_overhead_s: float
    nvlink_fraction: float
    """Channels times their speed over the scale-up datasheet rate."""
    network_fraction: float


@dataclass(frozen=True, kw_only=True)
class LibraryProfile:
    """A communication library."""

    name: str
    title: str
    vendors: tuple[str, ...]
    """Of the accelerators it is made for; empty: any."""
    max_ranks: float
    rules: tuple[LibraryRule, ...]
    tuning: NcclTuning | None = None
    note: str = ""
