"""Tori and meshes: one ring per dimension, a part of the vector starting in each."""

import math
from collections.abc import Sequence

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number
from planner.spec.cluster import CollectiveKind

# Members from which a dimension of a torus closes into a ring (Google, TPU v4 and v5p pages).
SHORTEST_CLOSED_DIMENSION = 4


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
