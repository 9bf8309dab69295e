"""One collective on one group: every algorithm by level, and what plans count on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from planner.collectives.algorithms import ALGORITHMS
from planner.collectives.cost import busbw_factor
from planner.collectives.grid import SHORTEST_CLOSED_DIMENSION
from planner.collectives.hierarchy import GroupLevel, HierarchyCost, on_levels, unsuitable
from planner.cost.network import collective_s, link_share, point_to_point_s
from planner.cost.topology import Group
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec, Collective, CollectiveKind, LevelSpec
from planner.units import Array

PLOT_SIZES = tuple(2.0 ** (exponent / 2.0) for exponent in range(20, 69))
"""1 KiB to 16 GiB, two points to a doubling."""
P2P_RANKS = 2
NETWORK_ISSUE_S = 1e-6
"""Between the starts of two messages over a network (NCCL, src/graph/tuning.cc: net overhead)."""
DOMAIN_ISSUE_S = 1e-7
"""The same inside a domain, where threads write to several partners side by side; assumed."""


@dataclass(frozen=True, kw_only=True)
class CollectiveQuestion:
    """What is asked: a collective of a size on the first ranks of a cluster."""

    kind: CollectiveKind
    num_bytes: float
    cluster: ClusterSpec
    num_ranks: int
    algorithms: tuple[str, ...]
    note: str = ""
    """What the program decided by itself about the group."""


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """From this size on an algorithm is the fastest of those asked for."""

    from_bytes: float
    algorithm: str


@dataclass(frozen=True, kw_only=True)
class CollectiveAnswer:
    """Every algorithm's cost, fastest first, and the time that plans take."""

    question: CollectiveQuestion
    levels: tuple[GroupLevel, ...]
    costs: tuple[HierarchyCost, ...]
    plan_s: float | None
    """What plans use: measured fit, ring or tree; None where they have no such collective."""
    plan_is_measured: bool
    crossovers: tuple[Crossover, ...]

    def busbw_bytes_per_s(self, seconds: float) -> float:
        """Bus bandwidth as nccl-tests defines it."""
        factor = float(busbw_factor(self.question.kind, float(self.question.num_ranks)))
        return factor * self.question.num_bytes / seconds if seconds else 0.0


def group_levels(cluster: ClusterSpec, num_ranks: int) -> tuple[GroupLevel, ...]:
    """Levels that the first ``num_ranks`` ranks span, with what one rank achieves through each.

    Fully connected levels and hybrid meshes give a part of a rank's links (planner.cost.network);
    a torus becomes a slice. Raises InputError for a group that does not fill whole units.
    """
    found: list[GroupLevel] = []
    below = 1
    for index, level in enumerate(cluster.levels):
        inside = min(num_ranks, level.num_accelerators)
        if inside % below:
            nearest = f"{inside // below * below} and {(inside // below + 1) * below}"
            message = f"{num_ranks} ranks do not fill whole units of {below}; nearest are {nearest}"
            raise InputError.single("command line", "--group", message)
        if inside > below:
            part = _group_level(level.within(inside), level, inside // below, inside)
            in_domain = index <= cluster.num_inner_levels
            found.append(replace(part, issue_s=DOMAIN_ISSUE_S if in_domain else NETWORK_ISSUE_S))
        below = max(below, inside)
    return tuple(found)


def most_whole_ranks(cluster: ClusterSpec) -> int:
    """Ranks of the largest group that fills whole units of every level it spans."""
    below = 1
    for level in cluster.levels:
        inside = min(cluster.num_accelerators, level.num_accelerators)
        if inside % below:
            return inside // below * below
        below = max(below, inside)
    return cluster.num_accelerators


def _group_level(part: LevelSpec, whole: LevelSpec, members: int, inside: int) -> GroupLevel:
    share = float(np.asarray(link_share(part, np.asarray(inside))))
    return GroupLevel(
        name=part.name,
        members=members,
        latency_s=part.latency_s,
        bytes_per_s=part.achieved_bytes_per_s * share,
        topology=part.topology,
        dims=part.dims,
        closes=tuple(
            part.topology.startswith("torus") and d == length >= SHORTEST_CLOSED_DIMENSION
            for d, length in zip(part.dims, whole.dims, strict=True)
        ),
        reduces_in_network=part.reduces_in_network,
    )


def collective_answer(question: CollectiveQuestion) -> CollectiveAnswer:
    """Return costs and crossovers. Raises InputError for what cannot be done."""
    levels = _levels_of(question)
    names = question.algorithms or _suitable(question.kind, levels)
    problems = {name: unsuitable(name, question.kind, levels) for name in names}
    for name, problem in problems.items():
        if problem:
            raise InputError.single("command line", "--algorithm", f"{name} {problem}")
    costs = [on_levels(name, question.kind, question.num_bytes, levels) for name in names]
    costs.sort(key=lambda cost: float(cost.total.time_s))
    fits = question.cluster.accelerator.collectives
    return CollectiveAnswer(
        question=question,
        levels=levels,
        costs=tuple(costs),
        plan_s=planned_s(question.kind, question.num_bytes, question.num_ranks, question.cluster),
        plan_is_measured=question.kind in fits and _num_domains(question) == 1,
        crossovers=_crossovers(question.kind, names, levels),
    )


def _levels_of(question: CollectiveQuestion) -> tuple[GroupLevel, ...]:
    """Levels of the group; of a message between two, the outermost one it spans."""
    levels = group_levels(question.cluster, question.num_ranks)
    if question.kind == "p2p":
        return tuple(replace(level, members=P2P_RANKS, dims=()) for level in levels[-1:])
    return levels


def _suitable(kind: CollectiveKind, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
    return tuple(a.name for a in ALGORITHMS if not unsuitable(a.name, kind, levels))


def _times(name: str, kind: CollectiveKind, levels: Sequence[GroupLevel]) -> Array:
    return on_levels(name, kind, np.array(PLOT_SIZES), levels).total.time_s


def _crossovers(
    kind: CollectiveKind, names: Sequence[str], levels: Sequence[GroupLevel]
) -> tuple[Crossover, ...]:
    """Fastest algorithm from each size of PLOT_SIZES on at which it changes."""
    best = np.argmin([_times(name, kind, levels) for name in names], axis=0)
    changes = [0, *(np.flatnonzero(np.diff(best)) + 1)]
    return tuple(
        Crossover(from_bytes=PLOT_SIZES[index], algorithm=names[best[index]]) for index in changes
    )


def _num_domains(question: CollectiveQuestion) -> int:
    return -(-question.num_ranks // question.cluster.domain.num_accelerators)


def planned_s(
    kind: CollectiveKind, num_bytes: float, num_ranks: int, cluster: ClusterSpec
) -> float | None:
    """Seconds that plans take for a collective of the first ranks; None where they have none."""
    inside = [min(num_ranks, level.num_accelerators) for level in cluster.levels]
    dims = cluster.domain.within(num_ranks).dims
    group = Group(
        members=tuple(np.array([number]) for number in inside),
        domain=cluster.num_inner_levels,
        spans=tuple(np.array([length]) for length in dims),
    )
    size = np.array([num_bytes])
    if kind == "p2p":
        return float(point_to_point_s(size, group, cluster)[0])
    for known in get_args(Collective):
        if kind == known:
            return float(collective_s(known, size, group, cluster)[0])
    return None
