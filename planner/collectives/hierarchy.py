"""Algorithms on a hierarchy of levels: what each level carries, and which one is the bottleneck.

A group has ``members[l]`` units of level l in every unit of level l + 1. Below level l a unit
holds ``below`` ranks, with it ``upto`` ranks; n in all. Each rank has its own port at each level.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.collectives.algorithms import BY_NAME, Placement
from planner.collectives.cost import CollectiveCost, Flat, Link, Number
from planner.collectives.flat import (
    exchange_detour,
    grid_collective,
    nvls_tree_all_reduce,
    sharp_all_reduce,
)
from planner.spec.cluster import CollectiveKind, Topology
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class GroupLevel:
    """One level as a group sees it."""

    name: str
    members: int  # Units of this level that the group has in each unit of the next one
    latency_s: float
    bytes_per_s: float
    """Rate of one rank through this level, one direction; along one dimension of a grid."""
    topology: Topology = "switch"
    dims: tuple[int, ...] = ()
    closes: tuple[bool, ...] = ()
    """True for each dimension that is a ring rather than a line; empty where not given."""
    reduces_in_network: bool = False
    issue_s: float = 0.0  # Between the starts of two messages of one rank

    @property
    def wraps(self) -> bool:
        """All its dimensions are rings: no mesh, no part of a torus."""
        return bool(self.closes) and all(
            closed for d, closed in zip(self.dims, self.closes, strict=True) if d > 1
        )

    @property
    def link(self) -> Link:
        """Link of a rank to the others through this level."""
        return Link(latency_s=self.latency_s, bytes_per_s=self.bytes_per_s, issue_s=self.issue_s)


@dataclass(frozen=True, kw_only=True)
class HierarchyCost:
    """An algorithm on a hierarchy: the whole, and each level's share, bytes by its busiest port."""

    algorithm: str
    total: CollectiveCost
    levels: tuple[CollectiveCost, ...]
    bottleneck: str  # with the largest share of the time; of the first size where there are several


@dataclass(frozen=True, kw_only=True)
class _Level:
    """A level with the ranks below it and up to it, and the group's size."""

    level: GroupLevel
    below: int
    upto: int
    num_ranks: int
    adds_below: bool  # the switches of a level below it add

    @property
    def crossings(self) -> float:
        """Sends of a ring or tree through all ranks that pass this level, of one per rank.

        ``1/below - 1/upto``: of ``upto`` ranks those that lead from one unit to the next;
        ``1/below`` at the outermost level, where the ring closes. All levels make one.
        """
        return 1.0 / self.below - (1.0 / self.upto if self.upto < self.num_ranks else 0.0)


def _around(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """A ring through all ranks: each level sees its own hops, its ports share the stream.

    ``c (n_l - 1) n / upto`` of the ring's c(n-1) rounds; time for the bytes of the whole ring
    over ``below`` ports, as NCCL gives every channel the speed of its slowest part; a rank sends
    every byte once, at the level its channel passes there. Source: NCCL, src/graph/tuning.cc.
    """
    one = flat(num_bytes, at.level.members, at.level.link)
    whole = flat(num_bytes, at.num_ranks, at.level.link)
    rounds = one.rounds * (at.num_ranks / at.upto)
    return _stream(at, rounds, np.where(one.rounds > 0, whole.sent_bytes, 0.0))


def _tree(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """Trees of trees, pipelined: every level's depth, bytes over ``below`` ports.

    A rank sends every byte once, at the level its part of the tree passes.
    """
    one = flat(num_bytes, at.level.members, at.level.link)
    return _stream(at, one.rounds, one.sent_bytes)


def _stream(at: _Level, rounds: Array, sent_bytes: Array) -> CollectiveCost:
    """Time for a stream over the ports of all ranks below; bytes as often as it crosses."""
    timed = _cost(at.level, rounds, sent_bytes / at.below)
    return replace(timed, sent_bytes=sent_bytes * at.crossings)


def _shards(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """One level after the other, on what the levels below have left: S over ``below``.

    Reduce-scatter inwards to outwards, all-gather back. Source: BlueConnect, Cho 2019, recalled.
    """
    return flat(np.asarray(num_bytes, dtype=float) / at.below, at.level.members, at.level.link)


def _whole(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """One level after the other, each with the whole vector."""
    return flat(num_bytes, at.level.members, at.level.link)


def _peers(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """One partner after the other: of n - 1, ``upto - below`` are first met at this level."""
    whole = flat(num_bytes, at.num_ranks, at.level.link)
    share = (at.upto - at.below) / max(at.num_ranks - 1, 1)
    return _cost(at.level, whole.rounds * share, whole.sent_bytes * share)


def _all_peers(flat: Flat, num_bytes: Number, at: _Level) -> CollectiveCost:
    """All partners at once, levels beside each other: the same bytes, every level's rounds.

    In each round a rank starts the messages to its partners at this level one after the other.
    """
    whole = flat(num_bytes, at.num_ranks, replace(at.level.link, issue_s=0.0))
    partners = at.upto - at.below
    share = partners / max(at.num_ranks - 1, 1)
    moving_s = whole.time_s - whole.rounds * at.level.latency_s
    rounds = np.where(share > 0, whole.rounds, 0.0)
    waits_s = at.level.latency_s + max(partners - 1, 0) * at.level.issue_s
    return CollectiveCost(
        time_s=rounds * waits_s + moving_s * share,
        rounds=rounds,
        sent_bytes=whole.sent_bytes * share,
    )


def _cost(level: GroupLevel, rounds: Array, sent_bytes: Array) -> CollectiveCost:
    seconds = rounds * level.latency_s + sent_bytes / level.bytes_per_s
    return CollectiveCost(time_s=seconds, rounds=rounds, sent_bytes=sent_bytes)


_SHARES: dict[Placement, Callable[[Flat, Number, _Level], CollectiveCost]] = {
    "around": _around,
    "tree": _tree,
    "shards": _shards,
    "chunks": _shards,
    "whole": _whole,
    "peers": _peers,
    "all_peers": _all_peers,
}
# What suits a level, source: Cho et al. 2019 (BlueConnect); Rashidi et al. 2022 (Themis).
_BY_TOPOLOGY: Mapping[Topology, str] = {
    "switch": "halving-doubling",
    "ring": "ring",
    "hybrid_cube_mesh": "ring",
    "fully_connected": "direct",
}


def _flat_of(name: str, kind: CollectiveKind, at: _Level) -> Flat:
    """The formula an algorithm uses on a level: its own, or the one that suits the level."""
    level = at.level

    def grid(num_bytes: Number, _: Number, link: Link) -> CollectiveCost:
        return grid_collective(kind, num_bytes, level.dims, link, wraps=level.wraps)

    if name == "multi-dimensional":
        return grid if level.dims else BY_NAME[_BY_TOPOLOGY[level.topology]].flat[kind]
    if name == "in-network" and not level.reduces_in_network:
        if at.adds_below and kind == "all_reduce":
            return nvls_tree_all_reduce
        return BY_NAME["ring"].flat[kind]
    if name == "in-network" and at.below > 1 and kind == "all_reduce":
        return sharp_all_reduce
    if name == "leader" and at.upto == at.num_ranks:
        return BY_NAME["ring"].flat[kind]
    return BY_NAME[name].flat[kind]


def _as_met(name: str, at: _Level) -> _Level:
    """A torus or mesh as an exchange of everyone with everyone meets it.

    Its bytes share the links across the middle (planner.collectives.flat.exchange_detour); where
    all partners are met at once, the farthest is all dimensions away.
    """
    level = at.level
    if name not in ("direct", "pairwise", "naive") or not level.dims:
        return at
    closes = level.closes or (False,) * len(level.dims)
    hops = sum(d - 1 for d in level.dims) if BY_NAME[name].placement == "all_peers" else 1
    slower = replace(
        level,
        latency_s=level.latency_s * max(hops, 1),
        bytes_per_s=level.bytes_per_s / exchange_detour(level.dims, closes),
    )
    return replace(at, level=slower)


def unsuitable(name: str, kind: CollectiveKind, levels: Sequence[GroupLevel]) -> str:
    """Return why an algorithm cannot do a collective on these levels, or an empty text."""
    if kind not in BY_NAME[name].flat:
        able = [known for known, algorithm in BY_NAME.items() if kind in algorithm.flat]
        return f"does no {kind.replace('_', '-')}; allowed are {', '.join(able)}"
    if name == "in-network" and not any(level.reduces_in_network for level in levels):
        return "needs a level whose switches reduce (NVLink SHARP, SHARP); there is none"
    return ""


def on_levels(
    name: str, kind: CollectiveKind, num_bytes: Number, levels: Sequence[GroupLevel]
) -> HierarchyCost:
    """Return what an algorithm takes on a hierarchy, whole and by level.

    ``around``, ``tree`` and ``chunks`` are pipelined: the levels' latencies add up, the slowest
    stream counts (for chunks: Rashidi et al. 2022, Themis; recalled). ``all_peers`` uses all
    levels at once: the slowest one counts. The others run level by level: the sum. The functions
    of this module give each share.
    """
    placement, below, places = BY_NAME[name].placement, 1, list[_Level]()
    for number, level in enumerate(levels):
        at = _Level(
            level=level,
            below=below,
            upto=below * level.members,
            num_ranks=math.prod(each.members for each in levels),
            adds_below=any(each.reduces_in_network for each in levels[:number]),
        )
        places.append(_as_met(name, at))
        below = at.upto
    shares = [_SHARES[placement](_flat_of(name, kind, at), num_bytes, at) for at in places]
    times = [share.time_s for share in shares]
    rounds = [share.rounds for share in shares]
    together = np.maximum if placement == "all_peers" else np.add
    seconds = together.reduce(times)
    if placement in ("around", "tree", "chunks"):
        waits = [number * level.latency_s for number, level in zip(rounds, levels, strict=True)]
        streams = [time - wait for time, wait in zip(times, waits, strict=True)]
        seconds = np.add.reduce(waits) + np.maximum.reduce(streams)
    slowest = int(np.argmax([np.ravel(time)[0] for time in times]))
    return HierarchyCost(
        algorithm=name,
        total=CollectiveCost(
            time_s=seconds,
            rounds=together.reduce(rounds),
            sent_bytes=np.add.reduce([share.sent_bytes for share in shares]),
        ),
        levels=tuple(shares),
        bottleneck=levels[slowest].name,
    )
