"""Rings and trees: the two α–β forms that collectives over any level are made of."""

import numpy as np

from planner.spec.cluster import Collective
from planner.units import Array


def busbw_factor(collective: Collective, num_ranks: Array) -> Array:
    """Share of the vector each rank must move: 2(n-1)/n for all-reduce, (n-1)/n otherwise.

    Source: nccl-tests, doc/PERFORMANCE.md. Zero for a group of one.
    """
    n = np.asarray(num_ranks, dtype=float)
    share: Array = (n - 1.0) / n
    return 2.0 * share if collective == "all_reduce" else share


def ring_s(
    collective: Collective,
    num_bytes: Array,
    num_ranks: Array,
    hops_s: Array | float,
    bandwidth_bytes_per_s: Array | float,
) -> Array:
    """α–β time of a ring: ``rounds · hops + factor · S / B``; all-reduce goes round twice.

    ``hops_s`` is the latency of the n - 1 steps of one round. Source: Thakur, Rabenseifner, Gropp
    2005, sections 4.1, 4.5. Zero for a group of one or an empty message.
    """
    rounds = 2.0 if collective == "all_reduce" else 1.0
    factor = busbw_factor(collective, num_ranks)
    seconds = rounds * hops_s + factor * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)


def tree_all_reduce_s(
    num_bytes: Array, depth_s: Array | float, bandwidth_bytes_per_s: Array | float
) -> Array:
    """Double binary tree, pipelined: ``2 · depth + 2 S / B``, up and down again.

    ``depth_s`` is the latency from leaf to root, ``ceil(log2 n) α`` over one level. Source:
    Sanders, Speck, Träff 2009; NCCL 2.4. Zero for an empty message.
    """
    seconds = 2.0 * depth_s + 2.0 * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)
