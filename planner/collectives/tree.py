"""Trees: rounds that grow with the logarithm of the number of ranks."""

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number, busbw_factor, cost_of, log2_up
from planner.units import Array


def tree_all_reduce_s(num_bytes: Number, depth_s: Number, bandwidth_bytes_per_s: Number) -> Array:
    """Double binary tree, pipelined: ``2 · depth + 2 S / B``, up and down again.

    ``depth_s`` is the latency from leaf to root, ``ceil(log2 n) α`` over one level. Source:
    Sanders, Speck, Träff 2009; NCCL 2.4. Zero for an empty message. The lean form
    of :func:`double_tree_all_reduce` for columns of strategies.
    """
    seconds = 2.0 * depth_s + 2.0 * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)


def double_tree_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Two binary trees, half the vector each, pipelined: ``2 ⌈log2 n⌉ α + 2 S/B``.

    An inner rank of one tree is a leaf of the other: it sends S/2 up twice and S/2 to each of
    two children. Source: Sanders, Speck, Träff 2009; NCCL 2.4. Excludes the pieces
    of the pipeline and that shallow trees of two or three ranks send less.
    """
    depth = log2_up(num_ranks)
    sent = 2.0 * np.asarray(num_bytes, dtype=float)
    return cost_of(num_bytes, num_ranks, link, rounds=2.0 * depth, sent_bytes=sent)


def double_tree_broadcast(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Two binary trees, half the vector each, pipelined: ``⌈log2 n⌉ α + S/B``.

    Source: Sanders, Speck, Träff 2009.
    """
    depth = log2_up(num_ranks)
    return cost_of(num_bytes, num_ranks, link, rounds=depth, sent_bytes=num_bytes)


def tree_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Binomial reduce to one rank, binomial broadcast back: ``2 ⌈log2 n⌉ (α + S/B)``.

    The root sends in the second half, its children in the first; time counts both, bytes only
    the root's ``⌈log2 n⌉ S``. Source: Thakur, Rabenseifner, Gropp 2005, sections 4.2, 4.5.
    """
    depth, size = log2_up(num_ranks), np.asarray(num_bytes, dtype=float)
    path = cost_of(size, num_ranks, link, rounds=2.0 * depth, sent_bytes=2.0 * depth * size)
    sent = path.sent_bytes / 2.0
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=sent)


def binomial_broadcast(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Those who have the vector send it on, twice as many each round: ``⌈log2 n⌉ (α + S/B)``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.2.
    """
    depth = log2_up(num_ranks)
    return cost_of(num_bytes, num_ranks, link, rounds=depth, sent_bytes=depth * num_bytes)


def scatter_all_gather_broadcast(
    num_bytes: Number, num_ranks: Number, link: Link
) -> CollectiveCost:
    """Binomial scatter, ring all-gather: ``(⌈log2 n⌉ + n - 1) α + 2(n-1)/n · S/B``.

    Source: van de Geijn, in Thakur, Rabenseifner, Gropp 2005, section 4.2.
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_reduce", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=log2_up(n) + n - 1.0, sent_bytes=sent)
