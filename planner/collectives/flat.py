"""Algorithms on one level: rings and chains, trees, halving and doubling, everyone to everyone.

Rings take least bytes, in rounds that grow with the number of ranks; trees take rounds that grow
with its logarithm. Recursive halving and doubling has partners at distance 1, 2, 4 ...: where n is
no power of two, p is the largest one below, and the n - p ranks beyond hand their vector to a
partner before and get the result after. Direct algorithms take few rounds of many messages at
once, or one partner after the other. Switches that add (NVLink SHARP and SHARP) follow, then tori
and meshes: one ring per dimension, a part of the vector starting in each.
"""

import math
from collections.abc import Sequence

import numpy as np

from planner.collectives.cost import (
    CollectiveCost,
    Link,
    Number,
    Steps,
    alpha_beta,
    busbw_factor,
    log2_down,
    log2_up,
)
from planner.spec.cluster import CollectiveKind
from planner.units import Array

# Members from which a dimension of a torus closes into a ring (Google, TPU v4 and v5p pages).
SHORTEST_CLOSED_DIMENSION = 4


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


@alpha_beta
def ring_all_reduce(n: Array) -> Steps:
    """Ring reduce-scatter, then ring all-gather: ``2(n-1) α + 2(n-1)/n · S/B``.

    Source: Patarasuk, Yuan 2009 (recalled); the number of bytes is the least possible.
    """
    return Steps(2.0 * (n - 1.0), busbw_factor("all_reduce", n))


@alpha_beta
def ring_reduce_scatter(n: Array) -> Steps:
    """Parts go round and are added on the way: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4 (pairwise has the same cost).
    """
    return Steps(n - 1.0, busbw_factor("reduce_scatter", n))


@alpha_beta
def ring_all_gather(n: Array) -> Steps:
    """Parts go round: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    return Steps(n - 1.0, busbw_factor("all_gather", n))


@alpha_beta
def chain_broadcast(n: Array) -> Steps:
    """Every rank passes the vector on in small pieces: ``(n-1) α + S/B``.

    Source: NCCL, src/graph/tuning.cc (broadcast, ring). Excludes the pieces' own overhead.
    """
    return Steps(n - 1.0, 1.0)


def tree_all_reduce_s(num_bytes: Number, depth_s: Number, bandwidth_bytes_per_s: Number) -> Array:
    """Double binary tree, pipelined: ``2 · depth + 2 S / B``, up and down again.

    ``depth_s`` is the latency from leaf to root, ``ceil(log2 n) α`` over one level. Source:
    Sanders, Speck, Träff 2009; NCCL 2.4. Zero for an empty message. The lean form
    of :func:`double_tree_all_reduce` for columns of strategies.
    """
    seconds = 2.0 * depth_s + 2.0 * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)


@alpha_beta
def double_tree_all_reduce(n: Array) -> Steps:
    """Two binary trees, half the vector each, pipelined: ``2 ⌈log2 n⌉ α + 2 S/B``.

    An inner rank of one tree is a leaf of the other: it sends S/2 up twice and S/2 to each of
    two children. Source: Sanders, Speck, Träff 2009; NCCL 2.4. Excludes the pieces
    of the pipeline and that shallow trees of two or three ranks send less.
    """
    return Steps(2.0 * log2_up(n), 2.0)


@alpha_beta
def double_tree_broadcast(n: Array) -> Steps:
    """Two binary trees, half the vector each, pipelined: ``⌈log2 n⌉ α + S/B``.

    Source: Sanders, Speck, Träff 2009.
    """
    return Steps(log2_up(n), 1.0)


@alpha_beta
def tree_all_reduce(n: Array) -> Steps:
    """Binomial reduce to one rank, binomial broadcast back: ``2 ⌈log2 n⌉ (α + S/B)``.

    The root sends in the second half, its children in the first; time counts both, bytes only
    the root's ``⌈log2 n⌉ S``. Source: Thakur, Rabenseifner, Gropp 2005, sections 4.2, 4.5.
    """
    depth = log2_up(n)
    return Steps(2.0 * depth, depth, path=2.0 * depth)


@alpha_beta
def binomial_broadcast(n: Array) -> Steps:
    """Return the cost if each rank with the vector sends it on every round: ``⌈log2 n⌉ (α + S/B)``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.2.
    """
    return Steps(log2_up(n), log2_up(n))


@alpha_beta
def scatter_all_gather_broadcast(n: Array) -> Steps:
    """Binomial scatter, ring all-gather: ``(⌈log2 n⌉ + n - 1) α + 2(n-1)/n · S/B``.

    Source: van de Geijn, in Thakur, Rabenseifner, Gropp 2005, section 4.2.
    """
    return Steps(log2_up(n) + n - 1.0, busbw_factor("all_reduce", n))


def _power_below(n: Array) -> tuple[Array, Array]:
    """Largest power of two up to n, and 1 where n is none itself."""
    power = 2.0 ** log2_down(n)
    return power, np.where(power < n, 1.0, 0.0)


@alpha_beta
def halving_doubling_all_reduce(n: Array) -> Steps:
    """Recursive halving, recursive doubling: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: two more rounds of S bytes, of which the busiest rank sends the second:
    ``2(p-1)/p S + S``, and waits for the first. Source: Thakur et al. 2005, section 4.5.
    """
    power, odd = _power_below(n)
    core = busbw_factor("all_reduce", power)
    return Steps(2.0 * log2_up(n), core + odd, path=core + 2.0 * odd)


@alpha_beta
def rabenseifner_all_reduce(n: Array) -> Steps:
    """Halving and doubling that adds halves first: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: pairs swap halves, add them and join them again (S/2 twice, so that no
    rank adds a whole vector), S goes back at the end: ``(2 ⌊log2 n⌋ + 3) α +
    (2(p-1)/p + 2) S/B``. Source: Rabenseifner 2004 (recalled).
    """
    power, odd = _power_below(n)
    core = busbw_factor("all_reduce", power)
    return Steps(2.0 * log2_down(n) + 3.0 * odd, core + 1.5 * odd, path=core + 2.0 * odd)


@alpha_beta
def butterfly_all_reduce(n: Array) -> Steps:
    """Recursive doubling with whole vectors: ``log2 n · (α + S/B)``.

    Not a power of two: two more rounds of S, as in halving-doubling. Source: Thakur,
    Rabenseifner, Gropp 2005, section 4.5.
    """
    _, odd = _power_below(n)
    rounds = log2_down(n) + 2.0 * odd
    return Steps(rounds, rounds - odd, path=rounds)


@alpha_beta
def halving_reduce_scatter(n: Array) -> Steps:
    """Recursive halving: ``log2 n · α + (n-1)/n · S/B``.

    Not a power of two: one round of S before (the partner's vector) and one of S/n after.
    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4.
    """
    power, odd = _power_below(n)
    core = busbw_factor("reduce_scatter", power)
    sent = np.where(odd > 0, np.maximum(1.0, core + 1.0 / n), core)
    return Steps(log2_down(n) + 2.0 * odd, sent, path=core + odd * (1.0 + 1.0 / n))


@alpha_beta
def doubling_all_gather(n: Array) -> Steps:
    """Recursive doubling: ``log2 n · α + (n-1)/n · S/B``; Bruck's for other n: ``⌈log2 n⌉ α``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    return Steps(log2_up(n), busbw_factor("all_gather", n))


@alpha_beta
def direct_all_reduce(n: Array) -> Steps:
    """A part to each owner, the sums back: ``2 (α + (n-2) o) + 2(n-1)/n · S/B``.

    All links work at once, but a rank starts its n - 1 messages one after the other, o apart.
    Source: fully connected levels in ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    return Steps(2.0, busbw_factor("all_reduce", n), messages=n - 1.0)


@alpha_beta
def direct_exchange(n: Array) -> Steps:
    """A part to each other rank at once: ``α + (n-2) o + (n-1)/n · S/B``.

    Reduce-scatter, all-gather and all-to-all; a rank starts its n - 1 messages one after the
    other, o apart. Source: ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    return Steps(1.0, busbw_factor("all_to_all", n), messages=n - 1.0)


@alpha_beta
def pairwise_all_to_all(n: Array) -> Steps:
    """A part to one other rank after the other: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur et al. 2005, section 4.3 (MPICH); NCCL does so, several partners at a time.
    """
    return Steps(n - 1.0, busbw_factor("all_to_all", n))


@alpha_beta
def bruck_all_to_all(n: Array) -> Steps:
    """Parts travel by the bits of their distance: ``⌈log2 n⌉ α + ⌈log2 n⌉ / 2 · S/B``.

    Exact for powers of two, an upper bound between them. Source: Bruck et al. 1997; Thakur,
    Rabenseifner, Gropp 2005, section 4.3.
    """
    depth = log2_up(n)
    return Steps(depth, depth / 2.0)


@alpha_beta
def naive_all_reduce(n: Array) -> Steps:
    """Every rank sends its whole vector to every other, who adds: ``(n-1) (α + S/B)``.

    Source: Patarasuk, Yuan 2009 (recalled; all-to-all broadcast, then local reduction).
    """
    return Steps(n - 1.0, n - 1.0)


@alpha_beta
def send(_n: Array) -> Steps:
    """One message from one rank to another: ``α + S/B``. Source: Hockney 1994."""
    return Steps(1.0, 1.0)


@alpha_beta
def nvls_all_reduce(n: Array) -> Steps:
    """Each rank reads its part added up by the switch, and multicasts it: ``2 α + (n+1)/n · S/B``.

    To serve the reads of all n parts a rank sends S, then S/n for its own result. Source:
    stas00/ml-engineering, network/README.md (2N sends become N + 1); Klenk et al. 2020 (recalled).
    """
    return Steps(2.0, (n + 1.0) / n)


@alpha_beta
def nvls_reduce_scatter(_n: Array) -> Steps:
    """Each rank reads its part added up by the switch: ``α + S/B`` (a rank serves all n reads).

    Source: Klenk et al. 2020 (recalled).
    """
    return Steps(1.0, 1.0)


@alpha_beta
def nvls_all_gather(n: Array) -> Steps:
    """Each rank multicasts its part and receives the others': ``α + (n-1)/n · S/B``.

    A rank sends S/n; what it receives takes the time. Source: Klenk et al. 2020 (recalled).
    """
    return Steps(1.0, 1.0 / n, path=(n - 1.0) / n)


@alpha_beta
def sharp_all_reduce(_n: Array) -> Steps:
    """Up a tree of switches that add, and down again: ``2 α + S/B``.

    α is the way to the top of the tree. Source: Graham et al. 2016 (SHArP; recalled).
    """
    return Steps(2.0, 1.0)


@alpha_beta
def nvls_tree_all_reduce(n: Array) -> Steps:
    """Trees of domains that each add inside: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B`` for n domains.

    Source: NCCL, src/graph/tuning.cc (NVLSTree); bytes as planner.cost.network has them.
    """
    return Steps(2.0 * log2_up(n), busbw_factor("all_reduce", n))


def exchange_detour(dims: Sequence[int], closes: Sequence[bool]) -> float:
    """Slowdown of an exchange of everyone with everyone against one free link of each rank.

    ``n/(n-1) · max over dimensions of d/4`` on rings, ``d/2`` on lines: the links across the
    middle of the longest dimension carry half of all bytes. Source: JAX scaling book, chapter 3
    (bidirectional ring: V / (4 W)). One where no dimension has two members.
    """
    n = math.prod(dims)
    far = [d / 4.0 if closed else d / 2.0 for d, closed in zip(dims, closes, strict=True) if d > 1]
    return max(far) * n / (n - 1) if far else 1.0


def grid_collective(
    kind: CollectiveKind, num_bytes: Number, dims: Sequence[int], link: Link, *, wraps: bool
) -> CollectiveCost:
    """Reduce-scatter along x, y, z, all-gather back: ``2 Σ(d_i - 1) α + 2 max-part bytes / B``.

    On equal dimensions the bytes are ``2(n-1)/n · S/D`` for D dimensions: all links work at
    once. B counts one dimension, both directions of travel. A mesh has no link back: its rings
    go out over every second rank and back over the others, so a round passes two links and half
    of B is left. Reduce-scatter and all-gather are one half of it. Sources: Mikami et al. 2018
    (2D torus); Jouppi et al. 2023 (3D); Kumar, Jouppi 2020 (2D mesh), Ying et al. 2018; recalled.
    Dimensions of one member drop out.
    """
    long = [d for d in dims if d > 1]
    size = np.asarray(num_bytes, dtype=float)
    if not long:
        zero = np.zeros_like(size)
        return CollectiveCost(time_s=zero, rounds=zero, sent_bytes=zero)
    phases = 2.0 if kind == "all_reduce" else 1.0
    slower = 1.0 if wraps else 2.0
    # The vector is cut into as many parts as there are dimensions. Part i takes the dimensions in
    # the order i, i+1, ... and shrinks on the way; each step lasts as long as its largest part.
    count, total, busy_share = len(long), math.prod(long), 0.0
    for step in range(count):
        moved = []
        for part in range(count):
            before = math.prod(long[(part + i) % count] for i in range(step))
            here = long[(part + step) % count]
            moved.append((here - 1) / here / before / count)
        busy_share += max(moved)
    busy, share = size * busy_share, (total - 1) / total
    rounds = np.where(size > 0, phases * sum(d - 1 for d in long), 0.0)
    seconds = slower * (rounds * link.latency_s + phases * busy / link.bytes_per_s)
    return CollectiveCost(time_s=seconds, rounds=rounds, sent_bytes=phases * share * size)
