"""The algorithms by name: which collectives they do, and how they lie on several levels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.collectives import flat, gradients
from planner.collectives.cost import Flat, Steps, alpha_beta
from planner.spec.cluster import CollectiveKind
from planner.units import Array

# How an algorithm uses several levels; see planner.collectives.hierarchy.
Placement: TypeAlias = Literal["around", "tree", "shards", "chunks", "whole", "peers", "all_peers"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm: its formula on one level by collective, and its way over several."""

    name: str
    placement: Placement
    flat: Mapping[CollectiveKind, Flat]


@alpha_beta
def leader_all_reduce(n: Array) -> Steps:
    """Chain reduce to a leader, chain broadcast from it: ``2(n-1) α + 2 S/B``.

    The inner phases of a hierarchy with one leader per unit; the outermost level is a ring of
    leaders. Source: Jia et al. 2018 (recalled; hierarchical all-reduce with masters).
    """
    return Steps(2.0 * (n - 1.0), 2.0)


RING: Mapping[CollectiveKind, Flat] = {
    "all_reduce": flat.ring_all_reduce,
    "reduce_scatter": flat.ring_reduce_scatter,
    "all_gather": flat.ring_all_gather,
}
HALVING: Mapping[CollectiveKind, Flat] = {
    "all_reduce": flat.halving_doubling_all_reduce,
    "reduce_scatter": flat.halving_reduce_scatter,
    "all_gather": flat.doubling_all_gather,
}
ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(name="ring", placement="around", flat={**RING, "broadcast": flat.chain_broadcast}),
    Algorithm(
        name="tree",
        placement="whole",
        flat={"all_reduce": flat.tree_all_reduce, "broadcast": flat.binomial_broadcast},
    ),
    Algorithm(
        name="double-tree",
        placement="tree",
        flat={"all_reduce": flat.double_tree_all_reduce, "broadcast": flat.double_tree_broadcast},
    ),
    Algorithm(
        name="scatter-gather",
        placement="shards",
        flat={"broadcast": flat.scatter_all_gather_broadcast},
    ),
    Algorithm(name="halving-doubling", placement="shards", flat=HALVING),
    Algorithm(
        name="rabenseifner", placement="shards", flat={"all_reduce": flat.rabenseifner_all_reduce}
    ),
    Algorithm(name="butterfly", placement="whole", flat={"all_reduce": flat.butterfly_all_reduce}),
    Algorithm(
        name="direct",
        placement="all_peers",
        flat={
            "all_reduce": flat.direct_all_reduce,
            "reduce_scatter": flat.direct_exchange,
            "all_gather": flat.direct_exchange,
            "all_to_all": flat.direct_exchange,
        },
    ),
    Algorithm(name="pairwise", placement="peers", flat={"all_to_all": flat.pairwise_all_to_all}),
    Algorithm(name="bruck", placement="whole", flat={"all_to_all": flat.bruck_all_to_all}),
    Algorithm(name="hierarchical", placement="shards", flat=RING),
    Algorithm(name="leader", placement="whole", flat={"all_reduce": leader_all_reduce}),
    Algorithm(name="multi-dimensional", placement="chunks", flat=HALVING),
    Algorithm(
        name="in-network",
        placement="chunks",
        flat={
            "all_reduce": flat.nvls_all_reduce,
            "reduce_scatter": flat.nvls_reduce_scatter,
            "all_gather": flat.nvls_all_gather,
        },
    ),
    Algorithm(
        name="parameter-server",
        placement="all_peers",
        flat={"all_reduce": gradients.parameter_server_all_reduce},
    ),
    Algorithm(name="naive", placement="peers", flat={"all_reduce": flat.naive_all_reduce}),
    Algorithm(name="send", placement="all_peers", flat={"p2p": flat.send}),
)
BY_NAME: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in ALGORITHMS}
