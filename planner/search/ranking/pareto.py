"""The points of a matrix that no other point beats: the non-dominated filter."""

import numpy as np

from planner.units import Array, Index, Mask

BLOCK_ROWS = 256
"""Points compared at once with all kept before them."""


def non_dominated(points: Array) -> Index:
    """Rows of ``points`` (points x objectives, all minimised) that no other row dominates.

    A row dominates another when it is no larger in any objective and smaller in one. Of equal
    rows the first is kept. Rows come in ascending order; infinities are allowed, NaN is not.

    In lexicographic order a row can only be dominated by an earlier one, and earlier means "no
    larger anywhere" is dominance or equality. One or two objectives take O(n log n), more take
    O(n · kept) comparisons in blocks.
    """
    points = np.asarray(points, dtype=np.float64)
    assert points.ndim == 2
    assert not np.isnan(points).any()
    if not points.size:
        return np.arange(min(len(points), 1))
    order = np.lexsort(points.T[::-1])
    ranked = points[order]
    kept = _kept_of_two(ranked) if points.shape[1] <= 2 else _kept_of_many(ranked)
    return np.sort(order[kept])


def _kept_of_two(ranked: Array) -> Mask:
    """Of rows in lexicographic order, those whose last objective is below all before."""
    last = ranked[:, -1]
    before = np.concatenate(([np.inf], np.minimum.accumulate(last)[:-1]))
    kept = np.asarray(last < before)
    kept[0] = True
    return kept


def _kept_of_many(ranked: Array) -> Mask:
    """Of rows in lexicographic order, those that no earlier row covers."""
    kept = np.zeros(len(ranked), dtype=bool)
    front = ranked[:0]
    for start in range(0, len(ranked), BLOCK_ROWS):
        block = ranked[start : start + BLOCK_ROWS]
        left = np.flatnonzero(~_is_covered(front, block))
        inside = block[left]
        left = left[~np.triu(_covers(inside, inside), 1).any(axis=0)]
        kept[start + left] = True
        front = np.concatenate((front, block[left]))
    return kept


def _covers(one: Array, other: Array) -> Mask:
    """Matrix: whether row i of ``one`` is no larger than row j of ``other`` anywhere."""
    covers = np.ones((len(one), len(other)), dtype=bool)
    for objective in range(one.shape[1]):
        covers &= one[:, objective, None] <= other[None, :, objective]
    return covers


def _is_covered(front: Array, block: Array) -> Mask:
    return np.asarray(_covers(front, block).any(axis=0))
