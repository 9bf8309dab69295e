"""The non-dominated filter against its definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.search.ranking.goals import non_dominated

VALUES = st.one_of(st.integers(0, 4).map(float), st.sampled_from([0.5, np.inf]))
SHAPES = st.tuples(st.integers(0, 40), st.integers(1, 5))
POINTS = arrays.arrays(np.float64, SHAPES, elements=VALUES)
"""Few values, so that ties and duplicates are common."""


def dominates(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one <= other).all() and (one < other).any())


def by_force(points: np.ndarray) -> list[int]:
    """Rows that no row dominates and that no earlier row equals."""
    return [
        j
        for j, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
        and not any((points[i] == point).all() for i in range(j))
    ]


@given(points=POINTS)
def test_it_equals_brute_force(points: np.ndarray) -> None:
    assert non_dominated(points).tolist() == by_force(points)
