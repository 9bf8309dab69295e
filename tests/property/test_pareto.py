"""The non-dominated filter against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.search.ranking.goals import BLOCK_ROWS, non_dominated

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


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(BLOCK_ROWS, 3 * BLOCK_ROWS),
    d=st.integers(1, 4),
)
def test_it_equals_brute_force_over_several_blocks(seed: int, size: int, d: int) -> None:
    points = np.random.default_rng(seed).integers(0, 30, (size, d)).astype(float)
    le = (points[:, None] <= points[None]).all(axis=2)
    equal = le & le.T
    dominated = (le & ~equal).any(axis=0) | np.triu(equal, 1).any(axis=0)
    assert non_dominated(points).tolist() == np.flatnonzero(~dominated).tolist()


def test_without_objectives_all_points_are_equal() -> None:
    assert non_dominated(np.empty((3, 0))).tolist() == [0]
    assert non_dominated(np.empty((0, 3))).tolist() == []


@pytest.mark.parametrize("num_objectives", [2, 5])
def test_twenty_thousand_points_of_which_none_is_dominated(num_objectives: int) -> None:
    first = np.random.default_rng(0).random((20_000, num_objectives - 1))
    points = np.column_stack((first, -first.sum(axis=1)))
    assert len(non_dominated(points)) == 20_000
