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


class SearchTimeoutError(Exception):
    """The deadline passed before the answer was known."""


def first_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> Found | None:
    """Some layout that fits; None where there is none.

    Raises SearchTimeoutError after ``deadline``, of time.monotonic().
    """
    walk = _walk(context, narrowing, deadline)
    shapes = walk.exploration.shapes.columns
    model_parallel = shapes["tp"] * shapes["pp"]
    order = np.lexsort((-model_parallel, shapes["micro_batch"], -gpus_of(shapes)))
    return walk.decided(walk.opened(order))


def smallest_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> tuple[Found, bool] | None:
    """Some layout of those with the fewest GPUs that fit; None where none fits.

    And whether none is smaller: after the deadline, smaller ones that bounds leave open are not
    decided any more. Raises SearchTimeoutError where nothing was found by then.
    """
    walk = _walk(context, narrowing, deadline)
    unsure = list[int]()
    all_shapes = walk.exploration.shapes
    for group in range(len(all_shapes.gpus)):
        found = walk.opened(np.flatnonzero(all_shapes.group == group))
        if isinstance(found, Found):
            try:
                return walk.decided(unsure) or found, True
            except SearchTimeoutError:
                return found, False
        unsure += found
    decided = walk.decided(unsure)
    return None if decided is None else (decided, True)


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
    exploration = of_strategies(Enumeration(context=context, narrowing=narrowing), strategy)
    walk = _Walk(exploration, deadline)
    found = walk.refined(np.arange(len(exploration.candidates.strategy)))
    if not solves:
        return found if isinstance(found, Found) else None
    return walk.decided(found)


def _walk(context: Context, narrowing: Narrowing, deadline: float | None) -> "_Walk":
    """Over all shapes of a space."""
    enumeration = Enumeration(context=context, narrowing=narrowing)
    exploration, _ = explored(enumeration, deadline=deadline)
    if enumeration.is_cut:
        raise SearchTimeoutError
    return _Walk(exploration, deadline)


class _Walk:
    """Looks for a layout: bounds come upon one, or leave rows open that are then solved."""

    def __init__(self, exploration: Exploration, deadline: float | None) -> None:
        self.exploration, self.candidates = exploration, exploration.candidates
        self.deadline = deadline

    def opened(self, shapes: Index) -> Found | list[int]:
        """Open shapes in order, more and more at once: a layout, or the rows left open."""
        unsure = list[int]()
        start = 0
        number, most = 16, 128  # opened at once; doubled up to the most
        limits = np.full(len(self.candidates.gpus), np.inf)
        while start < len(shapes):
            self._check()
            first = len(self.candidates.lower_s)
            self.exploration.open(shapes[start : start + number], limits)
            found = self.refined(np.arange(first, len(self.candidates.lower_s)))
            if isinstance(found, Found):
                return found
            unsure += found
            start = start + number
            number = min(2 * number, most)
        return unsure

    def refined(self, rows: Index) -> Found | list[int]:
        """The first layout that bounds come upon, else the rows of which they leave it open."""
        known = self.candidates
        unsure = list[int]()
        size = 1024  # strategies refined before the first that fits is looked for
        for part in np.split(rows, range(size, len(rows), size)):
            self._check()
            self.exploration.solving.refine(part)
            found = part[np.isfinite(known.upper_s[part])]
            if len(found):
                return self._fit(int(found[0]))
            unsure += part[np.isfinite(known.lower_s[part])].tolist()
        return unsure

    def decided(self, found: Found | list[int]) -> Found | None:
        """Solve the rows left open, one after the other, until one has a layout."""
        if isinstance(found, Found):
            return found
        splits = self.candidates.splits
        for row in found:
            for way in self.exploration.solving.ways(row):
                self._check()
                split = way.solve()
                if split is not None and np.isfinite(split.iteration_s):
                    splits[row] = split
                    break
            if row in splits:
                return self._fit(row)
        return None

    def _check(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise SearchTimeoutError

    def _fit(self, row: int) -> Found:
        ranked = Ranked(row=row, split=self.candidates.splits[row])
        return found_of(self.candidates, ranked)
