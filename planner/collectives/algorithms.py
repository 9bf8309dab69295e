"""The algorithms by name: which collectives they do, and how they lie on several levels.

Behind them other ways to sum gradients: order of buckets, compression.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from planner.collectives import flat
from planner.collectives.cost import CollectiveCost, Flat, Link, Number, Steps, alpha_beta, cost_of
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


def parameter_server_all_reduce(
    num_bytes: Number, num_ranks: Number, link: Link, num_servers: Number = 1
) -> CollectiveCost:
    """Push, then pull, of n workers to k servers: ``2 (α + (n-2) o) + 2 max(n/k, 1) S/B``.

    Each server takes in and gives out ``n S / k``; from k = n on the workers' own links are the
    limit. It starts the messages to its workers one after the other, o apart. Source: Li et al.
    2014 (parameter server), Jiang et al. 2020 (BytePS), both recalled.
    """
    sent = np.maximum(np.asarray(num_ranks, dtype=float) / num_servers, 1.0)
    steps = Steps(2.0, sent, path=2.0 * sent, messages=num_ranks - 1.0)
    return cost_of(num_bytes, num_ranks, link, steps)


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
        flat={"all_reduce": parameter_server_all_reduce},
    ),
    Algorithm(name="naive", placement="peers", flat={"all_reduce": flat.naive_all_reduce}),
    Algorithm(name="send", placement="all_peers", flat={"p2p": flat.send}),
)
BY_NAME: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in ALGORITHMS}


# Other ways for replicas to sum gradients: textbook formulas for single messages; plans count plain
# all-reduces of buckets in order. R is the whole reduction of gradients in seconds, W the backward
# pass beside which it runs.


def exposed_in_order_s(reduce_s: Number, backward_s: Number, last_fraction: Number) -> Array:
    """``max(f R, R - (1 - f) W)``: buckets sent as backward fills them.

    Wait-free: each bucket of the share f goes as soon as it is full, so the last one shows, and
    what the network has not sent by then. Source: arXiv 2006.15704, section 3.2.3. Excludes
    latency, which is part of R, and what a running collective takes of the computation.
    """
    last = np.asarray(last_fraction) * reduce_s
    return np.maximum(last, reduce_s - (1.0 - np.asarray(last_fraction)) * backward_s)


def exposed_by_priority_s(
    reduce_s: Number, backward_s: Number, forward_s: Number, first_fraction: Number
) -> Array:
    """``max(f R, R - (1 - f) (W + F))``: exposed at least, by priority.

    The next forward F needs the gradients of the first layers first and waits for none but them:
    messages are cut, and those of layers nearer to the input overtake the others. Source: Peng et
    al., SOSP 2019, section 4 (recalled); derived as :func:`exposed_in_order_s`, whose window grows
    by F. Excludes the cost of cutting and of crossing from one iteration into the next, for which
    the optimizer must step layer by layer.
    """
    return exposed_in_order_s(reduce_s, np.asarray(backward_s) + forward_s, first_fraction)


def top_k_all_gather(
    num_bytes: Number, num_ranks: Number, link: Link, density: float
) -> CollectiveCost:
    """Ring all-gather of ``n 2 d S``: the largest fp32 gradients of every rank, with indices.

    The share d of S bytes of gradients, each with its place in the tensor in 32 bits. Ranks keep
    other places each, so nothing is added on the way and volume grows with n: ``(n-1) 2 d S`` sent.
    Source: arXiv 1712.01887, section 3. Excludes choosing them, entropy coding, local sums.
    """
    return flat.ring_all_gather(2.0 * density * np.asarray(num_bytes) * num_ranks, num_ranks, link)


def int8_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Ring all-gather of ``n S / 4``: fp32 gradients in 8 bits, each rank's with its own scales.

    ``(n-1) S / 4`` sent. Source: quantization_pertensor_hook of torch/distributed/algorithms/
    ddp_comm_hooks/quantization_hooks.py. Excludes rounding, and scales, a few bytes a tensor.
    """
    return flat.ring_all_gather(0.25 * np.asarray(num_bytes) * num_ranks, num_ranks, link)
