"""One collective on one group: every algorithm by level, and what plans count on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from planner.answers.row import Row
from planner.collectives import algorithms
from planner.collectives.algorithms import ALGORITHMS
from planner.collectives.cost import CollectiveCost, busbw_factor
from planner.collectives.flat import SHORTEST_CLOSED_DIMENSION
from planner.collectives.hierarchy import GroupLevel, on_levels, unsuitable
from planner.cost.network import collective_s, link_share, point_to_point_s
from planner.cost.topology import Group
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec, Collective, CollectiveKind

# Messages of which the fastest algorithm is sought: 1 KiB to 16 GiB, two points to a doubling.
SIZES = 2.0 ** np.arange(10.0, 34.25, 0.5)


class ShareRow(Row):
    """Cost of an algorithm on one level; rounds are messages one after another."""

    name: str
    time_s: float
    rounds: float
    sent_bytes: float


class AlgorithmRow(ShareRow):
    """An algorithm; bus bandwidth is as nccl-tests defines it, and one level takes longest."""

    busbw_bytes_per_s: float
    bottleneck: str
    levels: tuple[ShareRow, ...]


class WayRow(Row):
    """Another way to add up gradients, by a textbook formula on the group's slowest level."""

    name: str
    time_s: float
    exposed_s: float | None
    sent_bytes: float | None
    changes_training: bool
    note: str


class Crossover(Row):
    """Size from which an algorithm is the fastest of those compared."""

    from_bytes: float
    algorithm: str


class CollectiveAnswer(Row):
    """Algorithms, fastest first, and the time that plans take; null where they have none."""

    collective: CollectiveKind
    bytes: float
    cluster: str
    accelerator: str
    accelerators: int
    ranks: int
    note: str
    levels: tuple[GroupLevel, ...]
    algorithms: tuple[AlgorithmRow, ...]
    plan_s: float | None
    plan_busbw_bytes_per_s: float | None
    plan_is_measured: bool
    crossovers: tuple[Crossover, ...]
    ways: tuple[WayRow, ...]


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
            part = level.within(inside)
            share = float(np.asarray(link_share(part, np.asarray(inside))))
            # Between the starts of two messages over a network 1 µs (NCCL, src/graph/tuning.cc: net
            # overhead); inside a domain threads write to several partners side by side: assumed.
            issue_s = 1e-7 if index <= cluster.num_inner_levels else 1e-6
            is_closed = (
                part.topology.startswith("torus") and d == length >= SHORTEST_CLOSED_DIMENSION
                for d, length in zip(part.dims, level.dims, strict=True)
            )
            found.append(
                GroupLevel(
                    name=part.name,
                    members=inside // below,
                    latency_s=part.latency_s,
                    bytes_per_s=part.achieved_bytes_per_s * share,
                    topology=part.topology,
                    dims=part.dims,
                    closes=tuple(is_closed),
                    reduces_in_network=part.reduces_in_network,
                    issue_s=issue_s,
                )
            )
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


def collective_answer(
    kind: CollectiveKind,
    num_bytes: float,
    cluster: ClusterSpec,
    num_ranks: int,
    *,
    names: Sequence[str] = (),
    note: str = "",
    **ways: Any,  # noqa: ANN401 - as _ways has them
) -> CollectiveAnswer:
    """Costs and crossovers of a collective of the first ranks, by these algorithms or all suitable.

    ``ways``: other ways to add gradients. Raises InputError for what cannot be done.
    """
    levels = group_levels(cluster, num_ranks)
    if kind == "p2p":  # between two, through the outermost level that the group spans
        levels = (replace(levels[-1], members=2, dims=()),)
    suitable = [each.name for each in ALGORITHMS if not unsuitable(each.name, kind, levels)]
    names = names or suitable
    for name in names:
        if problem := unsuitable(name, kind, levels):
            raise InputError.single("command line", "--algorithm", f"{name} {problem}")
    costs = [on_levels(name, kind, num_bytes, levels) for name in names]
    costs.sort(key=lambda cost: float(cost.total.time_s))
    plan_s = planned_s(kind, num_bytes, num_ranks, cluster)
    bus_bytes = float(busbw_factor(kind, float(num_ranks))) * num_bytes

    def busbw(seconds: float) -> float:
        """Bus bandwidth, as nccl-tests defines it, of the collective in so many seconds."""
        return bus_bytes / seconds if seconds else 0.0

    # The fastest algorithm from each size of SIZES on at which it changes.
    by_size = [on_levels(name, kind, SIZES, levels) for name in names]
    best = np.argmin([cost.total.time_s for cost in by_size], axis=0)
    return CollectiveAnswer(
        collective=kind,
        bytes=num_bytes,
        cluster=cluster.name,
        accelerator=cluster.accelerator.name,
        accelerators=cluster.num_accelerators,
        ranks=num_ranks,
        note=note,
        levels=levels,
        algorithms=tuple(
            AlgorithmRow(
                name=cost.algorithm,
                **_figures(cost.total),
                busbw_bytes_per_s=busbw(float(cost.total.time_s)),
                bottleneck=cost.bottleneck,
                levels=tuple(
                    ShareRow(name=level.name, **_figures(share))
                    for level, share in zip(levels, cost.levels, strict=True)
                ),
            )
            for cost in costs
        ),
        plan_s=plan_s,
        plan_busbw_bytes_per_s=None if plan_s is None else busbw(plan_s),
        plan_is_measured=kind in cluster.accelerator.collectives
        and num_ranks <= cluster.domain.num_accelerators,
        crossovers=tuple(
            Crossover(from_bytes=float(SIZES[at]), algorithm=names[best[at]])
            for at in [0, *(np.flatnonzero(np.diff(best)) + 1)]
        ),
        ways=tuple(_ways(num_bytes, num_ranks, levels, float(costs[0].total.time_s), **ways)),
    )


def _figures(cost: CollectiveCost) -> dict[str, float]:
    return {name: float(value) for name, value in vars(cost).items()}


def _ways(
    size: float,
    ranks: int,
    levels: Sequence[GroupLevel],
    reduce_s: float,
    *,
    servers: int | None = None,
    compress: Literal["", "topk", "int8"] = "",
    density: float = 1.0,
    buckets: int | None = None,
    by_priority: bool = False,
    backward_s: float = math.inf,
) -> Iterator[WayRow]:
    """Servers, compression and buckets, by formulas of one level: the group's slowest.

    Backward seconds without a value stand for a backward pass that hides all that it can.
    """
    link = min(levels, key=lambda level: level.bytes_per_s).link
    if servers is not None:
        cost = algorithms.parameter_server_all_reduce(size, ranks, link, servers)
        note = "the same sums: all push before any pulls"
        way = _way(f"parameter server, {servers} servers", cost, note, changes=False)
        yield way
        if math.isfinite(backward_s):
            # A worker that waits for no other takes the longer of computation, and push and pull;
            # without what staleness costs in iterations. Source: Dean et al. 2012, section 4.1.
            yield replace(
                way,
                name="the same, asynchronous",
                exposed_s=max(way.time_s - backward_s, 0.0),
                changes_training=True,
                note=f"changes training: gradients meet weights {ranks - 1} updates younger",
            )
    if compress == "topk":
        cost = algorithms.top_k_all_gather(size, ranks, link, density)
        note = "changes training: the other gradients wait for a later iteration"
        yield _way(f"top-k {density:g}, all-gather", cost, note, changes=True)
    if compress == "int8":
        cost = algorithms.int8_all_gather(size, ranks, link)
        note = "changes training: gradients are rounded to 8 bits"
        yield _way("int8, all-gather", cost, note, changes=True)
    if buckets is not None:
        share = 1.0 / buckets
        exposed_s = float(algorithms.exposed_in_order_s(reduce_s, backward_s, share))
        name, note = f"{buckets} buckets as backward fills them", "the same gradients"
        if by_priority:
            # A forward pass has half the products of a backward one: no gradients of weights.
            spans_s = (reduce_s, backward_s, backward_s / 2.0)
            exposed_s = float(algorithms.exposed_by_priority_s(*spans_s, share))
            name = f"{buckets} buckets by priority"
            note = "the same gradients; the optimizer steps layer by layer"
        yield WayRow(
            name=name,
            time_s=reduce_s,
            exposed_s=exposed_s,
            sent_bytes=None,
            changes_training=False,
            note=note,
        )


def _way(name: str, cost: CollectiveCost, note: str, *, changes: bool) -> WayRow:
    """A way that nothing hides, by its cost."""
    return WayRow(
        name=name,
        time_s=float(cost.time_s),
        exposed_s=None,
        sent_bytes=float(cost.sent_bytes),
        changes_training=changes,
        note=note,
    )


def planned_s(
    kind: CollectiveKind, num_bytes: float, num_ranks: int, cluster: ClusterSpec
) -> float | None:
    """Seconds that plans take for a collective of the first ranks; None where they have none."""
    inside = [min(num_ranks, level.num_accelerators) for level in cluster.levels]
    group = Group(
        members=tuple(np.array([number]) for number in inside),
        domain=cluster.num_inner_levels,
        spans=tuple(np.array([length]) for length in cluster.domain.within(num_ranks).dims),
    )
    size = np.array([num_bytes])
    if kind == "p2p":
        return float(point_to_point_s(size, group, cluster)[0])
    for known in get_args(Collective):
        if known == kind:
            return float(collective_s(known, size, group, cluster)[0])
    return None
