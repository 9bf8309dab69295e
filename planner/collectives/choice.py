"""Which algorithm and protocol a library takes for one message of one group."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planner.spec.library import (
    Kind,
    LibraryProfile,
    LibraryRule,
    NcclGeneration,
    NcclTuning,
    Protocol,
)
from planner.units import format_seconds

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
CANDIDATES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a library sees: message, group, machine. A node is one scale-up domain."""

    kind: Kind
    num_bytes: float
    num_ranks: int
    num_nodes: int
    architecture: str
    """Of the accelerators."""
    compute_capability: float
    link: Literal["nvlink", "pci"]
    scale_up_bytes_per_s: float
    """Datasheet, per accelerator and direction."""
    network_bytes_per_s: float
    reduces_in_network: bool = False
    """The switches of the scale-up domain can add."""

    @property
    def ranks_per_node(self) -> float:
        """Ranks of the group in one node."""
        return self.num_ranks / self.num_nodes


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An algorithm with a protocol, and the time the library's own model gives it."""

    algorithm: str
    protocol: Protocol
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the library takes and why; ``algorithm`` is a name of planner.collectives."""

    algorithm: str
    protocol: str
    why: str


def choose(profile: LibraryProfile, at: Situation) -> Choice:
    """Return what a library takes: by its own model of time, else by the first rule that fits.

    Raises ValueError for a group it cannot form.
    """
    if at.num_ranks > profile.max_ranks:
        message = f"{profile.title} is not made for more than {profile.max_ranks:,.0f} ranks"
        raise ValueError(f"{message}; given {at.num_ranks:,}")
    if profile.tuning is not None:
        candidates = sorted(nccl_candidates(profile.tuning, at), key=lambda c: c.time_s)
        if candidates:
            best = candidates[0]
            shown = ", ".join(
                f"{c.algorithm} {c.protocol} {format_seconds(c.time_s)}"
                for c in candidates[:CANDIDATES_SHOWN]
            )
            return Choice(
                algorithm=best.algorithm,
                protocol=best.protocol,
                why=f"least time in its own model: {shown}",
            )
    rule = next((rule for rule in profile.rules if _fits(rule, at)), None)
    if rule is None:
        raise ValueError(f"no rule of {profile.title} covers {at.kind}")
    return Choice(algorithm=rule.algorithm, protocol=rule.protocol, why=rule.why)


def _fits(rule: LibraryRule, at: Situation) -> bool:
    return (
        at.kind in rule.kinds
        and (not rule.architectures or at.architecture in rule.architectures)
        and at.num_bytes <= rule.max_bytes
        and at.num_bytes / at.num_ranks <= rule.max_bytes_per_rank
        and rule.min_nodes <= at.num_nodes <= rule.max_nodes
        and at.num_ranks <= rule.max_ranks
        and (not rule.power_of_two_ranks or at.num_ranks & (at.num_ranks - 1) == 0)
        and (not rule.power_of_two_nodes or at.num_nodes & (at.num_nodes - 1) == 0)
    )


def generation_of(tuning: NcclTuning, compute_capability: float) -> NcclGeneration:
    """Return the newest generation that accelerators of this compute capability reach."""
    reached = (g for g in tuning.generations if g.min_compute_capability <= compute_capability)
    return next(reached, tuning.generations[-1])


@dataclass(frozen=True, kw_only=True)
class _Model:
    """NCCL's tuning model in one situation."""

    tuning: NcclTuning
    generation: NcclGeneration
    at: Situation

    @property
    def place(self) -> int:
        """Column of tables by nodes: one, two, more."""
        return min(self.at.num_nodes, 3) - 1

    @property
    def num_steps(self) -> int:
        n = self.at.num_ranks
        return {"all_reduce": 2 * (n - 1), "broadcast": n}.get(self.at.kind, n - 1)

    @property
    def bus_bytes_per_s(self) -> float:
        """Channels times their speed: NVLink's, and not more than all network ports of a node."""
        inside = self.tuning.nvlink_fraction * self.at.scale_up_bytes_per_s
        return inside if self.at.num_nodes == 1 else min(inside, self.ports_bytes_per_s)

    @property
    def ports_bytes_per_s(self) -> float:
        ports = self.at.network_bytes_per_s * self.at.ranks_per_node
        return self.tuning.network_fraction * ports

    @property
    def ll_bytes_per_s(self) -> float:
        if self.at.num_nodes == 1:
            return self.generation.ll_bytes_per_s
        return self.tuning.ll_network_bytes_per_s[self.place]

    def protocols(self) -> tuple[Protocol, ...]:
        """LL128 needs NVLink."""
        return PROTOCOLS if self.at.link == "nvlink" else ("LL", "Simple")

    def latencies(self, algorithm: str, protocol: Protocol) -> tuple[float, float, float]:
        """Base, inside a node, between nodes."""
        tables = self.tuning.hardware_latency_s
        network = "tree" if self.at.ranks_per_node == 1 and algorithm == "ring" else algorithm
        return (
            self.tuning.base_latency_s[algorithm][protocol],
            tables[self.at.link][algorithm][protocol],
            tables["net"][network][protocol],
        )


def nccl_candidates(tuning: NcclTuning, at: Situation) -> Iterator[Candidate]:
    """Times of NCCL's model for every algorithm and protocol it would consider.

    ``latency + bytes / bandwidth`` with its tables. Source: NCCL 2.30, src/graph/tuning.cc
    (ncclTopoTuneModel, ncclTopoGetAlgoTime). Excludes CollNet and PAT, aggregation, and what the
    graph search finds on a particular machine: bandwidths are shares of the datasheet.
    """
    model = _Model(tuning=tuning, generation=generation_of(tuning, at.compute_capability), at=at)
    if at.kind in ("all_to_all", "p2p") or at.num_ranks < 2:
        return
    yield from (_ring(model, protocol) for protocol in model.protocols())
    if at.kind == "all_reduce":
        yield from (_tree(model, protocol) for protocol in model.protocols())
    if model.generation.nvls_fraction and at.reduces_in_network and at.link == "nvlink":
        if at.num_nodes == 1 and at.kind != "broadcast":
            yield _nvls(model)
        elif at.ranks_per_node > 1 and at.kind == "all_reduce":
            yield _nvls_tree(model)


def _ring(model: _Model, protocol: Protocol) -> Candidate:
    at, bus = model.at, model.bus_bytes_per_s
    channels = model.generation.ring_ll128_channel_bytes_per_s[model.place]
    rate = {
        "LL": min(model.ll_bytes_per_s, 0.5 * bus),
        "LL128": min(0.92 * bus, model.generation.num_channels * channels),
        "Simple": bus,
    }[protocol]
    base, inside, between = model.latencies("ring", protocol)
    if at.kind == "broadcast":
        latency = base + (inside if at.num_nodes == 1 else between)
    else:
        crossings = (2 if at.kind == "all_reduce" else 1) * (at.num_nodes - 1)
        if at.num_nodes > 1:
            posting = model.tuning.net_overhead_s * (3 if protocol == "Simple" else 1)
            inside = max(inside, posting)
        latency = base + (model.num_steps - crossings) * inside + crossings * between
    pieces = at.num_bytes / (model.generation.num_channels * at.num_ranks)
    if protocol == "Simple" and at.num_nodes > 1 and at.kind == "all_reduce" and pieces >= 64:
        latency *= model.generation.ring_plateau
    seconds = latency + at.num_bytes / (rate * at.num_ranks / model.num_steps)
    return Candidate(algorithm="ring", protocol=protocol, time_s=seconds)


def _tree(model: _Model, protocol: Protocol) -> Candidate:
    at, generation = model.at, model.generation
    most = generation.num_channels * generation.tree_channel_bytes_per_s[model.place]
    rate = min(0.92 * model.bus_bytes_per_s, most)
    if protocol == "LL":
        rate = min(rate / 3.8, model.ll_bytes_per_s)
    elif protocol == "LL128":
        channels = generation.tree_ll128_channel_bytes_per_s[model.place]
        share = 7.0 / 9.0 if at.num_nodes == 1 else 120.0 / 128.0
        rate = min(rate * share, generation.num_channels * channels)
    base, inside, between = model.latencies("tree", protocol)
    depth = math.floor(math.log2(at.num_nodes))
    latency = base + 2 * ((at.ranks_per_node - 1) * inside + depth * between)
    factors = model.tuning.tree_correction[protocol]
    size = math.floor(math.log2(at.num_bytes / 64)) if at.num_bytes >= 64 else -1
    factor = factors[size] if 0 <= size < len(factors) else 1.0
    seconds = latency + at.num_bytes / (0.5 * rate * factor)
    return Candidate(algorithm="double-tree", protocol=protocol, time_s=seconds)


def _nvls_bytes_per_s(model: _Model) -> float:
    """All channels of NVLS inside a node, one per rank of the node."""
    count = model.at.ranks_per_node
    inside = model.tuning.nvlink_fraction * model.at.scale_up_bytes_per_s
    rate = min(model.generation.nvls_channel_bytes_per_s * count, inside)
    rate *= model.generation.nvls_fraction * (count - 1) / count
    return rate * (2.0 if model.at.kind == "all_reduce" else (count - 1) / count)


def _nvls(model: _Model) -> Candidate:
    at = model.at
    latency = model.tuning.hardware_latency_s["nvlink"]["nvls"]["Simple"]
    rate = _nvls_bytes_per_s(model)
    if at.kind == "all_reduce":
        rate *= at.num_ranks / model.num_steps
    seconds = latency + at.num_bytes / rate
    return Candidate(algorithm="in-network", protocol="Simple", time_s=seconds)


def _nvls_tree(model: _Model) -> Candidate:
    at = model.at
    base, inside, between = model.latencies("nvls_tree", "Simple")
    most = model.generation.nvls_tree_channel_bytes_per_s[model.place] * at.ranks_per_node
    ports = model.ports_bytes_per_s * (2.0 if at.num_nodes == 2 else 1.0)
    rate = min(_nvls_bytes_per_s(model), ports, most)
    latency = base + inside + 2 * math.floor(math.log2(at.num_nodes)) * between
    seconds = latency + at.num_bytes / (rate * at.num_ranks / model.num_steps)
    return Candidate(algorithm="in-network", protocol="Simple", time_s=seconds)
