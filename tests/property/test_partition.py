"""Layers dealt out by the sweep and the non-dominated filter against their definitions."""

from itertools import product
from unittest import mock

import numpy as np
from depth import of_all
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.search.ranking.goals import non_dominated
from planner.search.stages import partition as dealing
from planner.search.stages.partition import Pipeline, partition_layers
from planner.search.stages.stage_table import StageTable

NUMBERS = st.integers(1, 40).map(lambda n: n / 8.0)


@st.composite
def tables(draw: st.DrawFn) -> tuple[StageTable, int, Pipeline]:
    """A few stages whose times and tails need not grow with their layers; some cells are barred."""
    num_stages, first, size = draw(st.integers(1, 4)), draw(st.integers(0, 2)), 4
    cells = num_stages * size
    seconds, tails = (draw(st.lists(NUMBERS, min_size=cells, max_size=cells)) for _ in range(2))
    barred = draw(st.lists(st.sampled_from([False, False, True]), min_size=cells, max_size=cells))
    table = StageTable(
        layers=np.arange(first, first + size) * 1.0,
        seconds=np.where(barred, np.inf, seconds).reshape(num_stages, size),
        tail_s=np.array(tails).reshape(num_stages, size),
        counts=np.zeros((3, num_stages, size)),
    )
    pipeline = Pipeline(
        num_micro_batches=float(draw(st.integers(1, 6))),
        vpp=float(draw(st.integers(1, 3))),
        filled_s=draw(st.sampled_from([0.0, 2.0])),
    )
    return table, draw(st.integers(num_stages, num_stages * (first + size))), pipeline


def seconds_of(table: StageTable, pipeline: Pipeline, columns: tuple[int, ...]) -> float:
    stages = np.arange(len(columns))
    seconds, tails = table.seconds[stages, columns], table.tail_s[stages, columns]
    if np.isinf(seconds).any():
        return np.inf
    return pipeline.seconds(float(seconds.max()), float(seconds.sum()), float(tails.max()))


def by_force(table: StageTable, num_layers: int, pipeline: Pipeline) -> float:
    size = len(table.layers)
    every = product(range(size), repeat=len(table.seconds))
    held = (c for c in every if table.layers[list(c)].sum() == num_layers)
    return min((seconds_of(table, pipeline, columns) for columns in held), default=np.inf)


@settings(max_examples=of_all(400), derandomize=True)
@given(drawn=tables(), sweeps=st.sampled_from([1, 2, 3, 48]), below=st.floats(0.5, 1.5))
def test_a_deal_is_called_best_only_where_it_is(
    drawn: tuple[StageTable, int, Pipeline], sweeps: int, below: float
) -> None:
    table, num_layers, pipeline = drawn
    best_s = by_force(table, num_layers, pipeline)
    finite = np.isfinite(table.seconds)
    work_s = float(np.where(finite, table.seconds, np.inf).min(axis=1).sum())
    work_s = work_s if np.isfinite(work_s) else 0.0
    with mock.patch.object(dealing, "MOST_PROGRAMMES", sweeps):
        free = partition_layers(table, num_layers, pipeline, work_s, np.inf)
        limited = partition_layers(table, num_layers, pipeline, work_s, best_s * below)
    assert (free is None) == np.isinf(best_s)
    event(f"proved: {free is not None and free.is_optimal}")
    for dealt in (free, limited):
        if dealt is None:
            continue
        assert dealt.columns is not None
        columns = tuple(dealt.columns.tolist())
        assert table.layers[list(columns)].sum() == num_layers
        assert seconds_of(table, pipeline, columns) <= dealt.seconds * (1 + 1e-12)
        assert dealt.seconds >= best_s * (1 - 1e-12)
        if dealt.is_optimal:
            assert dealt.seconds <= best_s * (1 + 1e-12)
    if limited is None:
        assert np.isinf(best_s) or below < 1.0
    if sweeps == 48 and free is not None and len(table.seconds) < 3:
        assert free.is_optimal


VALUES = st.one_of(st.integers(0, 4).map(float), st.sampled_from([0.5, np.inf]))
SHAPES = st.tuples(st.integers(0, 40), st.integers(1, 5))
POINTS = arrays.arrays(np.float64, SHAPES, elements=VALUES)
"""Few values, so that ties and duplicates are common."""


def dominates(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one <= other).all() and (one < other).any())


def undominated(points: np.ndarray) -> list[int]:
    """Rows that no row dominates and that no earlier row equals."""
    return [
        j
        for j, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
        and not any((points[i] == point).all() for i in range(j))
    ]


@given(points=POINTS)
def test_it_equals_brute_force(points: np.ndarray) -> None:
    assert non_dominated(points).tolist() == undominated(points)
