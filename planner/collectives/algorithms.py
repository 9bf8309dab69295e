"""The algorithms by name: which collectives they do, and how they lie on several levels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.collectives import (
    direct,
    gradients,
    halving,
    hierarchical,
    in_network,
    ring,
    tree,
)
from planner.collectives.cost import CollectiveCost, Link, Number
from planner.spec.cluster import CollectiveKind

Flat: TypeAlias = Callable[[Number, Number, Link], CollectiveCost]
Placement: TypeAlias = Literal["around", "tree", "shards", "chunks", "whole", "peers", "all_peers"]
"""How an algorithm uses several levels; see planner.collectives.placed."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm: its formula on one level by collective, and its way over several."""

    name: str
    placement: Placement
    flat: Mapping[CollectiveKind, Flat]


RING: Mapping[CollectiveKind, Flat] = {
    "all_reduce": ring.ring_all_reduce,
    "reduce_scatter": ring.ring_reduce_scatter,
    "all_gather": ring.ring_all_gather,
}
HALVING: Mapping[CollectiveKind, Flat] = {
    "all_reduce": halving.halving_doubling_all_reduce,
    "reduce_scatter": halving.halving_reduce_scatter,
    "all_gather": halving.doubling_all_gather,
}
ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        name="ring",
        placement="around",
        flat={**RING, "broadcast": ring.chain_broadcast},
    ),
    Algorithm(
        name="tree",
        placement="whole",
        flat={"all_reduce": tree.tree_all_reduce, "broadcast": tree.binomial_broadcast},
    ),
    Algorithm(
        name="double-tree",
        placement="tree",
        flat={
            "all_reduce": tree.double_tree_all_reduce,
            "broadcast": tree.double_tree_broadcast,
        },
    ),
    Algorithm(
        name="scatter-gather",
        placement="shards",
        flat={"broadcast": tree.scatter_all_gather_broadcast},
    ),
    Algorithm(
        name="halving-doubling",
        placement="shards",
        flat=HALVING,
    ),
    Algorithm(
        name="rabenseifner",
        placement="shards",
        flat={"all_reduce": halving.rabenseifner_all_reduce},
    ),
    Algorithm(
        name="butterfly", placement="whole", flat={"all_reduce": halving.butterfly_all_reduce}
    ),
    Algorithm(
        name="direct",
        placement="all_peers",
        flat={
            "all_reduce": direct.direct_all_reduce,
            "reduce_scatter": direct.direct_exchange,
            "all_gather": direct.direct_exchange,
            "all_to_all": direct.direct_exchange,
        },
    ),
    Algorithm(name="pairwise", placement="peers", flat={"all_to_all": direct.pairwise_all_to_all}),
    Algorithm(name="bruck", placement="whole", flat={"all_to_all": direct.bruck_all_to_all}),
    Algorithm(
        name="hierarchical",
        placement="shards",
        flat=RING,
    ),
    Algorithm(
        name="leader", placement="whole", flat={"all_reduce": hierarchical.leader_all_reduce}
    ),
    Algorithm(
        name="multi-dimensional",
        placement="chunks",
        flat=HALVING,
    ),
    Algorithm(
        name="in-network",
        placement="chunks",
        flat={
            "all_reduce": in_network.nvls_all_reduce,
            "reduce_scatter": in_network.nvls_reduce_scatter,
            "all_gather": in_network.nvls_all_gather,
        },
    ),
    Algorithm(
        name="parameter-server",
        placement="all_peers",
        flat={"all_reduce": gradients.parameter_server_all_reduce},
    ),
    Algorithm(name="naive", placement="peers", flat={"all_reduce": direct.naive_all_reduce}),
    Algorithm(name="send", placement="all_peers", flat={"p2p": direct.send}),
)
BY_NAME: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in ALGORITHMS}
