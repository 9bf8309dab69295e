"""Positions of a parallel group's ranks: how many of them share a group of each level.

The order in which axes are placed is the strategy's ``placement``, innermost first; sharding lies
inside replication. Experts have a mesh of their own over the ranks of a stage: etp innermost,
then ep, then their replicas (arXiv 2504.14960, section 3.2; megatron/core/parallel_state.py).
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.strategy import (
    GPU_DEGREES,
    PLACEMENTS,
    Strategy,
    StrategyColumns,
    ranks_of_sequence,
    ranks_of_stage,
)
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communication group: its members inside one group of each level of the cluster."""

    members: tuple[Array, ...]
    """Innermost level first, never decreasing; the last is the size of the group."""
    domain: int = 0  # Index of the scale-up domain among the levels
    spans: tuple[Array, ...] = ()
    """Members along each dimension of the domain, where that is a torus or mesh."""

    @property
    def size(self) -> Array:
        """Ranks of the group."""
        return self.members[-1]

    @property
    def local(self) -> Array:
        """Members inside one scale-up domain."""
        return self.members[self.domain]

    @property
    def num_domains(self) -> Array:
        """Scale-up domains the group touches."""
        return np.ceil(self.size / self.local)

    def part(self, size: Array) -> "Group":
        """Return the first ``size`` neighbouring members as a group of their own."""
        members = tuple(np.minimum(inside, size) for inside in self.members)
        return Group(members=members, domain=self.domain, spans=self.spans)

    def every(self, step: float) -> "Group":
        """Return the first of each ``step`` neighbouring members as a group of their own."""
        members = tuple(np.maximum(inside // step, 1) for inside in self.members)
        return Group(members=members, domain=self.domain, spans=self.spans)


def _placed_inside(axis: str, strategy: StrategyColumns) -> Array:
    """The product of the degrees that the strategy's placement has inside ``axis``."""
    inside = [
        prod(getattr(strategy, name) for name in order[: order.index(axis)] if name in GPU_DEGREES)
        for order in PLACEMENTS.values()
    ]
    return np.asarray(np.choose(strategy.placement.astype(int), inside))


def extent_of(axis: str, strategy: StrategyColumns) -> tuple[Array, Array]:
    """Ranks of a group of ``axis``, and the distance between neighbours.

    That is the product of the degrees placed inside it.
    """
    if axis in GPU_DEGREES:
        return getattr(strategy, axis), _placed_inside(axis, strategy)
    if axis == "etp":
        return strategy.etp, np.ones_like(strategy.etp)
    shard, cut = strategy.dp // strategy.dp_replicate, ranks_of_sequence(vars(strategy))
    inside = _placed_inside("dp", strategy)
    inner = ranks_of_stage(vars(strategy)) // strategy.dp
    expert = strategy.etp * (inside // inner)
    alike = inner * shard
    whole = strategy.etp * strategy.ep
    extents: dict[str, tuple[Array, Array]] = {
        "ep": (strategy.ep, expert),
        "dp_replicate": (strategy.dp_replicate, inside * shard),
        "dp_shard": (shard, inside),
        "dp_shard_cp": (shard * cut, inside // cut),
        "expert_dp_shard_cp": (np.maximum(alike // whole, 1), expert * strategy.ep),
    }
    return extents[axis]


def _inside(size: Array, stride: Array, number: int, cluster: ClusterSpec) -> Array:
    """Members inside one group of ``number`` accelerators of the cluster, where that has fewest.

    ``min(size, max(1, number // stride))`` where groups start where those of accelerators do: one
    extent, ``stride · size``, divides the other. Else some group lies across a border, and the
    smallest piece is ``gcd(extent, number)`` accelerators: with 5 on nodes of 8, one stands alone,
    and all traffic between nodes goes through its port. Only nodes are filled by the launcher; of
    larger groups (racks of 72) jobs take as many nodes as fit their own. Excludes layouts that fit
    into one node and leave others idle.
    """
    usual = np.minimum(size, np.maximum(1, number // stride))
    if cluster.num_nodes == 1 or number > cluster.node.num_accelerators:
        return usual
    extent = stride * size
    across = (number % extent != 0) & (extent % number != 0) & (stride < number)
    if not across.any():
        return usual
    return np.where(
        across, np.minimum(usual, np.maximum(1, np.gcd(extent, number) // stride)), usual
    )


def group_of(axis: str, strategy: StrategyColumns, cluster: ClusterSpec) -> Group:
    """Place ``axis`` with stride equal to the product of the axes inside it.

    Under a placement with pp inside dp, groups that also span cp, which is 1, are those of dp.
    """
    size, stride = extent_of(axis, strategy)
    inside: tuple[Array, ...] = ()
    for level in cluster.levels[:-1]:
        own = _inside(size, stride, level.num_accelerators, cluster)
        inside += (np.maximum(own, inside[-1]) if inside else own,)
    # Places of a torus are counted along the first dimension first: dimension d covers places
    # [S_d, S_d · n_d), S_d the product of the dimensions before it; the group covers
    # [stride, stride · size).
    spans, below = [], 1
    for length in cluster.domain.dims:
        first = np.maximum(stride, below)
        last = np.minimum(stride * size, below * length)
        spans.append(np.maximum(last // first, 1))
        below *= length
    return Group(members=(*inside, size), domain=cluster.num_inner_levels, spans=tuple(spans))


Ranks = tuple[int, ...]


def stage_ranks(strategy: Strategy, stage: int) -> Ranks:
    """Ranks of a stage, rising: they number the axes in the order of the placement."""
    axes = [axis for axis in reversed(PLACEMENTS[strategy.placement]) if axis in GPU_DEGREES]
    grid = np.arange(strategy.num_gpus).reshape([getattr(strategy, axis) for axis in axes])
    return tuple(grid.take(stage, axis=axes.index("pp")).ravel().tolist())


def groups_of(axis: str, strategy: Strategy, stage: int) -> tuple[Ranks, ...]:
    """Groups of an axis inside one stage, each in the order of its members.

    As :func:`topology.group_of` places it among the ranks of the stage; the mesh of experts lies
    over them whatever is placed between.
    """
    columns = {**vars(strategy.columns()), "pp": np.ones(1, dtype=int)}
    size, stride = (int(each[0]) for each in extent_of(axis, StrategyColumns(**columns)))
    ranks = np.array(stage_ranks(strategy, stage))
    grid = ranks.reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    return tuple(tuple(group) for group in grid.tolist())


def pairs_of(strategy: Strategy, stages: tuple[int, int]) -> tuple[Ranks, ...]:
    """Ranks of two stages that stand in the same place."""
    return tuple(zip(*(stage_ranks(strategy, stage) for stage in stages), strict=True))
