"""Feasibility: the first layout found that fits, the proof that there is none, or what is lacking.

The same bounds and stage problem as the ranking, without its order: any layout will do. One walk
opens shapes, refines their strategies, and solves those that bounds leave open.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.cost.stage import StageModel
from planner.search.ranking.exploration import Exploration, explored, of_strategies
from planner.search.ranking.pricing import Pricing
from planner.search.ranking.rank import Ranked
from planner.search.search import FoundLayout, found_of
from planner.search.space.narrow import Narrowing
from planner.search.space.policies import least_memory_policy, policies_of
from planner.search.space.shapes import micro_batch_bounds
from planner.search.space.space import EVERYTHING, Enumeration, take
from planner.search.stages.bounds import feasible, group_by_pp
from planner.spec.strategy import MICRO_BATCH, StrategyColumns, gpus_of, gpus_of_replica
from planner.units import Array, Index

MOST_FACTOR = 2.0**12  # times a limit; what needs more is not looked for
CHUNK_ROWS = 2**13  # strategies bounded at once, so that memory stays bounded
CLOSE = 0.02  # of the gap, up to which the least is looked for

# The context with so many times a limit.
Widened = Callable[[float], Context]
# A stage model, with so many times the limit in every row.
Limited = Callable[[StageModel, Array], StageModel]


class SearchTimeoutError(Exception):
    """The deadline passed before the answer was known."""


def first_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> FoundLayout | None:
    """Some layout that fits; None where there is none.

    Raises SearchTimeoutError after ``deadline``, of time.monotonic().
    """
    walk = _walk(context, narrowing, deadline)
    shapes = walk.exploration.shapes.columns
    order = np.lexsort((-shapes["tp"] * shapes["pp"], -gpus_of(shapes)))
    found = walk.first([order])
    return found and found[0]


def smallest_feasible(
    context: Context, narrowing: Narrowing = EVERYTHING, *, deadline: float | None = None
) -> tuple[FoundLayout, bool] | None:
    """Some layout of those with the fewest GPUs that fit; None where none fits.

    And whether none is smaller: after the deadline, smaller ones that bounds leave open are not
    decided any more. Raises SearchTimeoutError where nothing was found by then.
    """
    walk = _walk(context, narrowing, deadline)
    group = walk.exploration.shapes.group
    return walk.first([np.flatnonzero(group == each) for each in np.unique(group)])


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

    def first(self, parts: Sequence[Index]) -> tuple[FoundLayout, bool] | None:
        """A layout of the first part of the shapes that has one, and whether that is sure."""
        unsure = list[int]()
        for part in parts:
            found = self.opened(part)
            if isinstance(found, FoundLayout):
                try:
                    return self.decided(unsure) or found, True
                except SearchTimeoutError:
                    return found, False
            unsure += found
        decided = self.decided(unsure)
        return None if decided is None else (decided, True)

    def opened(self, shapes: Index) -> FoundLayout | list[int]:
        """Open shapes in order: a layout, or the rows left open."""
        unsure = list[int]()
        limits = np.full(len(self.candidates.gpus), np.inf)
        for part in _growing(shapes, 64):
            self._check()
            first = len(self.candidates.lower_s)
            self.exploration.open(part, limits)
            found = self.refined(np.arange(first, len(self.candidates.lower_s)))
            if isinstance(found, FoundLayout):
                return found
            unsure += found
        return unsure

    def refined(self, rows: Index) -> FoundLayout | list[int]:
        """The first layout that bounds come upon, else the rows of which they leave it open."""
        known = self.candidates
        unsure = list[int]()
        for part in _growing(rows, 1024):
            self._check()
            self.exploration.solving.refine(part)
            found = part[np.isfinite(known.upper_s[part])]
            if len(found):
                return self._fit(int(found[0]))
            unsure += part[np.isfinite(known.lower_s[part])].tolist()
        return unsure

    def decided(self, found: FoundLayout | list[int], *, solves: bool = True) -> FoundLayout | None:
        """What was found, else solve the rows left open until one has a layout."""
        if isinstance(found, FoundLayout):
            return found
        splits, solving = self.candidates.splits, self.exploration.solving
        limits = np.full(len(self.candidates.gpus), np.inf)
        for part in _growing(np.array(found, dtype=int), 16) if solves else ():
            solving.prepare(part, limits)
            for row in part.tolist():
                for way in solving.ways(row):
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

    def _fit(self, row: int) -> FoundLayout:
        return found_of(self.candidates, Ranked(row=row, split=self.candidates.splits[row]))


def _growing(places: Index, first: int) -> list[Index]:
    """Parts that are looked at together, four times as many each time: where nothing is, few."""
    ends = first * (4 ** np.arange(1, 12) - 1) // 3
    return np.split(places, ends[ends < len(places)])


def least_over_limit(
    narrowing: Narrowing, widened: Widened, limited: Limited, *, deadline: float | None = None
) -> tuple[FoundLayout, bool] | None:
    """The layout that fits with the least more of a limit, and if it is the least; None: none fits.

    Nothing must fit with the limit as it is. After the deadline, the least of a sample.
    """
    enumeration = Enumeration(context=widened(1.0), narrowing=narrowing)
    if not policies_of(enumeration.context, narrowing):
        return None
    shapes, _ = enumeration.expanded(enumeration.shapes(deadline), MICRO_BATCH)
    order = np.lexsort((-gpus_of_replica(shapes), shapes["micro_batch"]))
    # Layouts of the first shapes bound the factor from above.
    sample = _least(enumeration, limited, take(shapes, order[:128]))
    upper = 1.0 + (1.0 + CLOSE) * (float(sample[1].min(initial=np.inf)) - 1.0)
    while upper <= MOST_FACTOR:
        wider = Enumeration(context=widened(upper), narrowing=narrowing)
        bounds = micro_batch_bounds(wider, shapes, LayerTable(context=wider.context))
        can_fit = np.isfinite(bounds.least_weight(shapes, enumeration.values))
        possible = take(shapes, np.flatnonzero(can_fit))
        try:
            strategy, factors = _least(enumeration, limited, possible, deadline)
        except SearchTimeoutError:
            found = _first(narrowing, widened, *sample, MOST_FACTOR, solves=False)
            return found and (found[0], False)
        try:
            found = _first(narrowing, widened, strategy, factors, upper, deadline=deadline)
        except SearchTimeoutError:
            found = _first(narrowing, widened, strategy, factors, upper, solves=False)
        if found is not None:
            return found
        upper = 1.0 + 2.0 * (upper - 1.0)
    return None


def _least(
    enumeration: Enumeration,
    limited: Limited,
    shapes: dict[str, Array],
    deadline: float | None = None,
) -> tuple[StrategyColumns, Array]:
    """All strategies of the shapes, and the least factor of the limit that bounds leave."""
    context = enumeration.context
    pricing = Pricing(context=context, layers=LayerTable(context=context))
    policy = least_memory_policy(policies_of(context, enumeration.narrowing))
    strategy = enumeration.strategies_of(shapes)[0]
    factors = np.full(len(strategy), np.inf)
    for start in range(0, len(strategy), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, len(strategy)))
        if deadline is not None and time.monotonic() > deadline:
            raise SearchTimeoutError
        model = pricing.model(strategy.take(rows))
        model = pricing.price(model, policy, np.ones(len(model))).bound
        for num_stages, index in group_by_pp(model.strategy):
            # On a logarithmic scale, no more than the least by the last step.
            part = model.take(index)
            low = np.zeros(len(part))
            high = np.full(len(part), np.log(MOST_FACTOR))
            never = ~feasible(limited(part, np.exp(high)), num_stages)
            # 16 halvings of log(MOST_FACTOR): the factor to 0.013 %.
            for _ in range(16):
                middle = 0.5 * (low + high)
                possible = feasible(limited(part, np.exp(middle)), num_stages)
                low, high = np.where(possible, low, middle), np.where(possible, middle, high)
            factors[rows[index]] = np.where(never, np.inf, np.exp(low))
    return strategy, factors


def _first(
    narrowing: Narrowing,
    widened: Widened,
    strategy: StrategyColumns,
    factors: Array,
    upper: float,
    *,
    solves: bool = True,
    deadline: float | None = None,
) -> tuple[FoundLayout, bool] | None:
    """The first layout as the factor grows up to ``upper``; only as bounds find them, or decided.

    ``factors`` are the least that bounds leave each strategy. The gap grows in steps that double;
    the last factor is no less than ``upper``.
    """
    lowest = proved = float(factors.min(initial=np.inf))
    step = CLOSE / 2
    while True:
        factor = 1.0 + (lowest - 1.0) * (1.0 + step)
        rows = np.flatnonzero(factors <= factor)
        tried = strategy.take(rows[np.argsort(factors[rows], kind="stable")])
        enumeration = Enumeration(context=widened(factor), narrowing=narrowing)
        walk = _Walk(of_strategies(enumeration, tried), deadline)
        found = walk.refined(np.arange(len(walk.candidates.strategy)))
        fit = walk.decided(found, solves=solves)
        if fit is not None:
            return fit, factor - proved <= CLOSE * (factor - 1.0)
        if factor >= upper:
            return None
        proved = factor if solves else proved
        step *= 2.0
