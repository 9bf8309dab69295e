"""Algorithms on one level: rings and chains, trees, halving and doubling, everyone to everyone.

Rings take least bytes, in rounds that grow with the number of ranks; trees take rounds that grow
with its logarithm. Recursive halving and doubling has partners at distance 1, 2, 4 ...: where n is
no power of two, p is the largest one below, and the n - p ranks beyond hand their vector to a
partner before and get the result after. Direct algorithms take few rounds of many messages at
once, or one partner after the other. Switches that add (NVLink SHARP and SHARP) come last.
"""

import numpy as np

from planner.collectives.cost import (
    CollectiveCost,
    Link,
    Number,
    busbw_factor,
    cost_of,
    log2_down,
    log2_up,
)
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
    sent = busbw_factor("all_reduce", num_ranks) * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=2.0 * (num_ranks - 1.0), sent_bytes=sent)


def ring_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts go round and are added on the way: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4 (pairwise has the same cost).
    """
    sent = busbw_factor("reduce_scatter", num_ranks) * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=num_ranks - 1.0, sent_bytes=sent)


def ring_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts go round: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    return ring_reduce_scatter(num_bytes, num_ranks, link)


def chain_broadcast(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Every rank passes the vector on in small pieces: ``(n-1) α + S/B``.

    Source: NCCL, src/graph/tuning.cc (broadcast, ring). Excludes the pieces' own overhead.
    """
    return cost_of(num_bytes, num_ranks, link, rounds=num_ranks - 1.0, sent_bytes=num_bytes)


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
    rounds = 2.0 * log2_up(num_ranks)
    path, sent = rounds * num_bytes, rounds / 2.0 * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=rounds, sent_bytes=sent, path_bytes=path)


def binomial_broadcast(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Return the cost if each rank with the vector sends it on every round: ``⌈log2 n⌉ (α + S/B)``.

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
    sent = busbw_factor("all_reduce", num_ranks) * num_bytes
    return cost_of(
        num_bytes, num_ranks, link, rounds=log2_up(num_ranks) + num_ranks - 1.0, sent_bytes=sent
    )


def _power_below(num_ranks: Number) -> tuple[Array, Array]:
    """Largest power of two up to n, and 1 where n is none itself."""
    power = 2.0 ** log2_down(num_ranks)
    return power, np.where(power < num_ranks, 1.0, 0.0)


def halving_doubling_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive halving, recursive doubling: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: two more rounds of S bytes, of which the busiest rank sends the second:
    ``2(p-1)/p S + S``, and waits for the first. Source: Thakur, Rabenseifner, Gropp 2005,
    section 4.5.
    """
    power, odd = _power_below(num_ranks)
    core = busbw_factor("all_reduce", power) * num_bytes
    return cost_of(
        num_bytes,
        num_ranks,
        link,
        rounds=2.0 * log2_up(num_ranks),
        sent_bytes=core + odd * num_bytes,
        path_bytes=core + 2.0 * odd * num_bytes,
    )


def rabenseifner_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Halving and doubling that adds halves first: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: pairs swap halves, add them and join them again (S/2 twice, so that no
    rank adds a whole vector), S goes back at the end: ``(2 ⌊log2 n⌋ + 3) α +
    (2(p-1)/p + 2) S/B``. Source: Rabenseifner 2004 (recalled).
    """
    power, odd = _power_below(num_ranks)
    core = busbw_factor("all_reduce", power) * num_bytes
    return cost_of(
        num_bytes,
        num_ranks,
        link,
        rounds=2.0 * log2_down(num_ranks) + 3.0 * odd,
        sent_bytes=core + 1.5 * odd * num_bytes,
        path_bytes=core + 2.0 * odd * num_bytes,
    )


def butterfly_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive doubling with whole vectors: ``log2 n · (α + S/B)``.

    Not a power of two: two more rounds of S, as in halving-doubling. Source: Thakur,
    Rabenseifner, Gropp 2005, section 4.5.
    """
    _, odd = _power_below(num_ranks)
    rounds = log2_down(num_ranks) + 2.0 * odd
    path, sent = rounds * num_bytes, (rounds - odd) * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=rounds, sent_bytes=sent, path_bytes=path)


def halving_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive halving: ``log2 n · α + (n-1)/n · S/B``.

    Not a power of two: one round of S before (the partner's vector) and one of S/n after.
    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4.
    """
    power, odd = _power_below(num_ranks)
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    core = busbw_factor("reduce_scatter", power) * size
    return cost_of(
        size,
        n,
        link,
        rounds=log2_down(n) + 2.0 * odd,
        sent_bytes=np.where(odd > 0, np.maximum(size, core + size / n), core),
        path_bytes=core + odd * (size + size / n),
    )


def doubling_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive doubling: ``log2 n · α + (n-1)/n · S/B``; Bruck's for other n: ``⌈log2 n⌉ α``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    sent = busbw_factor("all_gather", num_ranks) * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=log2_up(num_ranks), sent_bytes=sent)


def direct_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to each owner, the sums back: ``2 (α + (n-2) o) + 2(n-1)/n · S/B``.

    All links work at once, but a rank starts its n - 1 messages one after the other, o apart.
    Source: fully connected levels in ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    sent = busbw_factor("all_reduce", num_ranks) * num_bytes
    return cost_of(
        num_bytes, num_ranks, link, rounds=2.0, sent_bytes=sent, messages=num_ranks - 1.0
    )


def direct_exchange(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to each other rank at once: ``α + (n-2) o + (n-1)/n · S/B``.

    Reduce-scatter, all-gather and all-to-all; a rank starts its n - 1 messages one after the
    other, o apart. Source: ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    sent = busbw_factor("all_to_all", num_ranks) * num_bytes
    return cost_of(
        num_bytes, num_ranks, link, rounds=1.0, sent_bytes=sent, messages=num_ranks - 1.0
    )


def pairwise_all_to_all(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to one other rank after the other: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.3 (MPICH); NCCL sends this way, several
    partners at a time.
    """
    sent = busbw_factor("all_to_all", num_ranks) * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=num_ranks - 1.0, sent_bytes=sent)


def bruck_all_to_all(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts travel by the bits of their distance: ``⌈log2 n⌉ α + ⌈log2 n⌉ / 2 · S/B``.

    Exact for powers of two, an upper bound between them. Source: Bruck et al. 1997; Thakur,
    Rabenseifner, Gropp 2005, section 4.3.
    """
    depth = log2_up(num_ranks)
    sent = depth / 2.0 * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=depth, sent_bytes=sent)


def naive_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Every rank sends its whole vector to every other, who adds: ``(n-1) (α + S/B)``.

    Source: Patarasuk, Yuan 2009 (recalled; all-to-all broadcast, then local reduction).
    """
    return cost_of(
        num_bytes, num_ranks, link, rounds=num_ranks - 1.0, sent_bytes=(num_ranks - 1.0) * num_bytes
    )


def send(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """One message from one rank to another: ``α + S/B``. Source: Hockney 1994."""
    return cost_of(num_bytes, num_ranks, link, rounds=1.0, sent_bytes=num_bytes)


def nvls_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank reads its part added up by the switch, and multicasts it: ``2 α + (n+1)/n · S/B``.

    To serve the reads of all n parts a rank sends S, then S/n for its own result. Source:
    stas00/ml-engineering, network/README.md (2N sends become N + 1); Klenk et al. 2020 (recalled).
    """
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    return cost_of(size, n, link, rounds=2.0, sent_bytes=(n + 1.0) / n * size)


def nvls_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank reads its part added up by the switch: ``α + S/B`` (a rank serves all n reads).

    Source: Klenk et al. 2020 (recalled).
    """
    return cost_of(num_bytes, num_ranks, link, rounds=1.0, sent_bytes=num_bytes)


def nvls_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank multicasts its part and receives the others': ``α + (n-1)/n · S/B``.

    A rank sends S/n; what it receives takes the time. Source: Klenk et al. 2020 (recalled).
    """
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    received = (n - 1.0) / n * size
    return cost_of(size, n, link, rounds=1.0, sent_bytes=size / n, path_bytes=received)


def sharp_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Up a tree of switches that add, and down again: ``2 α + S/B``.

    α is the way to the top of the tree. Source: Graham et al. 2016 (SHArP; recalled).
    """
    return cost_of(num_bytes, num_ranks, link, rounds=2.0, sent_bytes=num_bytes)


def nvls_tree_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Trees of domains that each add inside: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B`` for n domains.

    Source: NCCL, src/graph/tuning.cc (NVLSTree); bytes as planner.cost.network has them.
    """
    sent = busbw_factor("all_reduce", num_ranks) * num_bytes
    rounds = 2.0 * log2_up(num_ranks)
    return cost_of(num_bytes, num_ranks, link, rounds=rounds, sent_bytes=sent)
