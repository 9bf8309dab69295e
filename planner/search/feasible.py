"""Feasibility: the first layout found that fits, or the proof that there is none.

The same bounds and stage problem as the ranking, without its order: any layout will do.
"""

import time

import numpy as np

from planner.cost.context import Context
from planner.search.ranking.exploration import Exploration, explored, of_strategies
from planner.search.ranking.rank import Ranked
from planner.search.search import Found, found_of
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING, Enumeration
from planner.spec.strategy import StrategyColumns, gpus_of
from planner.units import Index

FIRST_SHAPES, MOST_SHAPES = 16, 128  # opened at once; doubled from the first to the most
BATCH_ROWS = 1024  # strategies refined before the first that fits is looked for


class SearchTimeoutError(Exception):
    """The deadline passed before the answer was known."""


def first_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> Found | None:
    """Some layout that fits; None where there is none.

    Raises SearchTimeoutError after ``deadline``, of time.monotonic().
    """
    exploration = _explored(context, narrowing, deadline)
    shapes, gpus = exploration.shapes.columns, gpus_of(exploration.shapes.columns)
    order = np.lexsort((-shapes["tp"] * shapes["pp"], shapes["micro_batch"], -gpus))
    return _decided(exploration, _opened(exploration, order, deadline), deadline)


def smallest_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> tuple[Found, bool] | None:
    """Some layout of those with the fewest GPUs that fit; None where none fits.

    And whether none is smaller: after the deadline, smaller ones that bounds leave open are not
    decided any more. Raises SearchTimeoutError where nothing was found by then.
    """
    exploration = _explored(context, narrowing, deadline)
    all_shapes = exploration.shapes
    unsure: list[int] = []
    for group in range(len(all_shapes.gpus)):
        shapes = np.flatnonzero(all_shapes.group == group)
        found = _opened(exploration, shapes, deadline)
        if isinstance(found, Found):
            try:
                smaller = _decided(exploration, unsure, deadline)
            except SearchTimeoutError:
                return found, False
            return smaller or found, True
        unsure += found
    decided = _decided(exploration, unsure, deadline)
    return None if decided is None else (decided, True)


def _explored(context: Context, narrowing: Narrowing, deadline: float | None) -> Exploration:
    enumeration = Enumeration(context=context, narrowing=narrowing)
    exploration, _ = explored(enumeration, deadline=deadline)
    if enumeration.is_cut:
        raise SearchTimeoutError
    return exploration


def first_of(
    context: Context,
    narrowing: Narrowing,
    strategy: StrategyColumns,
    *,
    solves: bool = True,
    deadline: float | None = None,
) -> Found | None:
    """A layout of one of the strategies given, all of them legal; None where none fits.

    Without ``solves`` only a layout that bounds come upon.
    """
    enumeration = Enumeration(context=context, narrowing=narrowing)
    exploration = of_strategies(enumeration, strategy)
    found = _refined(exploration, np.arange(len(exploration.candidates.strategy)), deadline)
    if not solves:
        return found if isinstance(found, Found) else None
    return _decided(exploration, found, deadline)


def _opened(exploration: Exploration, shapes: Index, deadline: float | None) -> Found | list[int]:
    """Open shapes in order, more and more at once: a layout that bounds come upon, or open rows."""
    unsure: list[int] = []
    start, number = 0, FIRST_SHAPES
    candidates = exploration.candidates
    limits = np.full(len(candidates.gpus), np.inf)
    while start < len(shapes):
        _check(deadline)
        first = len(candidates.lower_s)
        exploration.open(shapes[start : start + number], limits)
        found = _refined(exploration, np.arange(first, len(candidates.lower_s)), deadline)
        if isinstance(found, Found):
            return found
        unsure += found
        start, number = start + number, min(2 * number, MOST_SHAPES)
    return unsure


def _refined(exploration: Exploration, rows: Index, deadline: float | None) -> Found | list[int]:
    """The first layout that bounds come upon, else the rows of which they leave it open."""
    candidates, unsure = exploration.candidates, list[int]()
    for part in np.split(rows, range(BATCH_ROWS, len(rows), BATCH_ROWS)):
        _check(deadline)
        exploration.solving.refine(part)
        known = part[np.isfinite(candidates.upper_s[part])]
        if len(known):
            return _fit(exploration, int(known[0]))
        unsure += part[np.isfinite(candidates.lower_s[part])].tolist()
    return unsure


def _decided(
    exploration: Exploration, found: Found | list[int], deadline: float | None
) -> Found | None:
    """Solve the rows left open, one after the other, until one has a layout."""
    if isinstance(found, Found):
        return found
    splits = exploration.candidates.splits
    for row in found:
        for way in exploration.solving.ways(row):
            _check(deadline)
            num_layers = exploration.context.model.num_blocks
            split = way.solve(num_layers)
            if split is not None and np.isfinite(split.iteration_s):
                splits[row] = split
                return _fit(exploration, row)
        if row in splits:
            return _fit(exploration, row)
    return None


def _check(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise SearchTimeoutError


def _fit(exploration: Exploration, row: int) -> Found:
    candidates = exploration.candidates
    return found_of(candidates.strategy, Ranked(row=row, split=candidates.splits[row]))
