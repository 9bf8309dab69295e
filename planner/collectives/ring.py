"""Rings and chains: least bytes, rounds that grow with the number of ranks."""

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number, busbw_factor, cost_of
from planner.spec.cluster import CollectiveKind
from planner.units import Array


def ring_s(
    collective: CollectiveKind,
    num_bytes: Number,
    num_ranks: Number,
    hops_s: Number,
    bandwidth_bytes_per_s: Number,
) -> Array:
    """α–β time of a ring: ``rounds · hops + factor · S / B``; all-reduce goes round twice.

    ``hops_s`` is the latency of the n - 1 steps of one round. Source: Thakur, Rabenseifner, Gropp
    2005, sections 4.1, 4.5. Zero for a group of one or an empty message.
    """
    rounds = 2.0 if collective == "all_reduce" else 1.0
    factor = busbw_factor(collective, num_ranks)
    seconds = rounds * hops_s + factor * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)


def ring_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Ring reduce-scatter, then ring all-gather: ``2(n-1) α + 2(n-1)/n · S/B``.

    Source: Patarasuk, Yuan 2009 (recalled); the number of bytes is the least possible.
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_reduce", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=2.0 * (n - 1.0), sent_bytes=sent)


def ring_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts go round and are added on the way: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4 (pairwise has the same cost).
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("reduce_scatter", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=n - 1.0, sent_bytes=sent)


def ring_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts go round: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    return ring_reduce_scatter(num_bytes, num_ranks, link)


def chain_broadcast(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Every rank passes the vector on in small pieces: ``(n-1) α + S/B``.

    Source: NCCL, src/graph/tuning.cc (broadcast, ring). Excludes the pieces' own overhead.
    """
    n = np.asarray(num_ranks, dtype=float)
    return cost_of(num_bytes, n, link, rounds=n - 1.0, sent_bytes=num_bytes)
