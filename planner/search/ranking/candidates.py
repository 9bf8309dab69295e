"""Bookkeeping of the best-first search: shapes, the strategies priced so far, their splits."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.build import slowest_pace, stage_model
from planner.cost.context import Context
from planner.cost.layer import distinct_shapes
from planner.cost.module_sets import SelectiveCosts, relaxed_options, selective_options
from planner.cost.policies import with_selective
from planner.cost.stage import StageModel
from planner.search.space.kinds import all_counts, of_kinds
from planner.search.space.shapes import Footprint, shape_bounds
from planner.search.space.space import Columns, Enumeration, take
from planner.search.stages.bounds import free_bound_s, may_keep, refine, within
from planner.search.stages.capacity import capacity_of, stage_limits
from planner.search.stages.solver import CLOSED, Effort, Split
from planner.search.stages.ways import Way, Ways, below, undominated
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Index, Mask

CHUNK_ROWS = 2**16
MOST_PAIRS = 2**13
"""Rows times sets of modules that are bounded together."""
FEW_WAYS = 8
"""Solved without another look at their bounds."""


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Strategies with their stage models as a search bounds them."""

    model: StageModel
    """Under the best real set of modules, and only the kinds of policies allowed."""
    bound: StageModel
    """No costlier: under all sets of modules at once."""
    best_set: Index | None
    """Position of the model's set of modules; None where there is no choice."""


@dataclass(kw_only=True)
class Candidates:
    """Shapes with bounds; strategies of the shapes opened so far; bounds tighten as asked."""

    enumeration: Enumeration
    shapes: Columns
    shape_lower_s: Array
    deadline: float | None = None
    """Of time.monotonic, after which nothing is opened, refined or solved any more."""
    footprint: Footprint | None = None
    num_configurations: int = 0
    """Legal strategies of the shapes opened."""
    num_priced: int = 0
    num_fitting: int = 0
    num_solved: int = 0
    is_unsure: bool = False
    """Some row was left without proof that it has no split below its limit."""
    strategy: StrategyColumns = field(init=False)
    lower_s: Array = field(init=False)
    upper_s: Array = field(init=False)
    is_refined: Mask = field(init=False)
    group: Index = field(init=False)
    splits: dict[int, Split] = field(init=False, default_factory=dict)
    """Best split known per row."""
    _ways: dict[int, Ways] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shapes = self.shapes
        gpus = shapes["dp"] * shapes["tp"] * shapes["pp"] * shapes["cp"]
        self.gpus, self.shape_group = np.unique(gpus, return_inverse=True)
        self.is_closed = np.ones(len(gpus), dtype=bool)
        none = take(shapes, np.zeros(0, dtype=int))
        self.strategy = self.enumeration.strategies(none)
        self.lower_s, self.upper_s = np.zeros(0), np.zeros(0)
        self.is_refined, self.group = np.zeros(0, dtype=bool), np.zeros(0, dtype=int)

    @property
    def context(self) -> Context:
        """What is searched for."""
        return self.enumeration.context

    @property
    def kinds(self) -> tuple[str, ...]:
        """What layers may be under."""
        return self.enumeration.narrowing.kinds

    @property
    def is_late(self) -> bool:
        """The time limit has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def module_sets(self) -> tuple[tuple[str, ...], ...]:
        """Sets of modules to choose from; empty where there is no choice."""
        sets = self.context.module_sets
        return sets if len(sets) > 1 and "selective" in self.kinds else ()

    def price(self, model: StageModel) -> Priced:
        """Stage models under the sets of modules and the kinds of policies allowed."""
        if not self.module_sets:
            model = of_kinds(model, self.kinds)
            return Priced(model=model, bound=model, best_set=None)
        pace = slowest_pace(self.context, model.strategy)
        by_rate = "none" in self.kinds
        options = relaxed_options(
            self.context, model.strategy, self.module_sets, pace, by_rate=by_rate
        )
        return Priced(
            model=self._under(model, options.best),
            bound=self._under(model, options.bound),
            best_set=options.best_set,
        )

    def _under(self, model: StageModel, selective: SelectiveCosts) -> StageModel:
        model = replace(model, policies=with_selective(model.policies, selective))
        return of_kinds(model, self.kinds)

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit below its group's limit."""
        self.is_closed[shapes] = False
        strategy, shape = self.enumeration.strategies_of(take(self.shapes, shapes))
        self.num_configurations += len(strategy)
        if self.footprint is not None:
            strategy = strategy.take(self.footprint.can_fit(strategy, shapes[shape]))
        self.num_priced += len(strategy)
        kept = [(self.strategy, self.lower_s)]
        for start in range(0, len(strategy), CHUNK_ROWS):
            rows = np.arange(start, min(start + CHUNK_ROWS, len(strategy)))
            kept.append(self._screened(strategy.take(rows), limit_s))
        self.strategy = StrategyColumns.concatenate([columns for columns, _ in kept])
        self.lower_s = np.concatenate([lower for _, lower in kept])
        added = len(self.lower_s) - len(self.upper_s)
        self.upper_s = np.concatenate([self.upper_s, np.full(added, np.inf)])
        self.is_refined = np.concatenate([self.is_refined, np.zeros(added, dtype=bool)])
        self.group = np.searchsorted(self.gpus, self.strategy.num_gpus)

    def _screened(self, strategy: StrategyColumns, limit_s: Array) -> tuple[StrategyColumns, Array]:
        num_layers = self.context.model.num_blocks
        model = stage_model(self.context, strategy)
        bound = model if "none" in self.kinds else self.price(model).bound
        lower = free_bound_s(bound, num_layers)
        limit = limit_s[np.searchsorted(self.gpus, strategy.num_gpus)]
        below = np.flatnonzero(lower < limit)
        if not len(below):
            return strategy.take(below), lower[below]
        model = self.price(model.take(below)).bound
        kept = below[may_keep(model, num_layers, limit[below])]
        self.num_fitting += len(kept)
        return strategy.take(kept), lower[kept]

    def refine(self, rows: Index, limit_s: Array | None = None) -> None:
        """Tighten the bounds of ``rows`` with memory limits and find a split for each.

        Those that cannot be below the limit of their group are left at it.
        """
        rows = rows[~self.is_refined[rows]]
        if not len(rows):
            return
        priced = self.price(stage_model(self.context, self.strategy.take(rows)))
        bound = None if priced.best_set is None else priced.bound
        sets = priced.best_set
        limit = np.full(len(rows), np.inf) if limit_s is None else limit_s[self.group[rows]]
        lower = self._refine(rows, priced.model, bound, sets, limit)
        self.lower_s[rows] = np.maximum(self.lower_s[rows], lower)
        self.is_refined[rows] = True
        self._note_proofs(rows)

    def _refine(
        self,
        rows: Index,
        model: StageModel,
        bound: StageModel | None,
        sets: Index | None,
        limit_s: Array,
    ) -> Array:
        """Refine the given models of ``rows``; keep the best splits, return the bounds."""
        lower = np.zeros(len(rows))
        for num_stages, index in by_pipeline(model.strategy):
            relaxed = None if bound is None else bound.take(index)
            part, limit = model.take(index), limit_s[index]
            found = refine(part, num_stages, self.context.model.num_blocks, relaxed, limit)
            lower[index] = found.lower_s
            for position in np.flatnonzero(np.isfinite(found.upper_s)).tolist():
                place = int(index[position])
                row, upper = int(rows[place]), float(found.upper_s[position])
                if upper >= self.upper_s[row]:
                    continue
                pp = int(part.strategy.pp[position])
                layers = found.layers[position, :pp]
                counts = found.counts[:, position, :pp]
                self.upper_s[row] = upper
                self.splits[row] = Split(
                    layers=layers,
                    counts=all_counts(layers, counts, self.kinds),
                    iteration_s=upper,
                    is_optimal=False,
                    modules=None if sets is None else self.module_sets[int(sets[place])],
                )
        return lower

    def _note_proofs(self, rows: Index) -> None:
        """Splits that reach the bound of their row are optimal."""
        upper = self.upper_s[rows]
        closed = np.isfinite(upper) & (upper <= self.lower_s[rows] * (1.0 + CLOSED))
        for row in rows[closed].tolist():
            self.splits[row] = replace(self.splits[row], is_optimal=True)

    def take_strategies(self, strategy: StrategyColumns) -> None:
        """Make these the strategies to refine and solve, whatever their shapes."""
        rows = len(strategy)
        self.strategy = strategy
        self.lower_s, self.upper_s = np.zeros(rows), np.full(rows, np.inf)
        self.is_refined, self.group = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=int)
        self.gpus = np.zeros(1, dtype=int)

    def ways(self, row: int) -> list[Way]:
        """Every set of modules worth trying for a row; empty where it was proved already."""
        if not self.is_prepared(row, np.inf):
            self.prepare(np.array([row]), np.full(len(self.gpus), np.inf))
        return self._ways[row].ways if row in self._ways else []

    def prepare(self, rows: Index, limit_s: Array) -> None:
        """Build the models of rows that may have to be solved, one per set of modules, at once.

        Only of sets that may take less than the limit of the row's group.
        """
        limits = limit_s[self.group[rows]].tolist()
        missing = [
            row
            for row, limit in zip(rows.tolist(), limits, strict=True)
            if not self.is_prepared(row, limit)
        ]
        size = max(MOST_PAIRS // max(len(self.module_sets), 1), 1)
        for start in range(0, len(missing), size):
            self._prepare(np.array(missing[start : start + size]), limit_s)

    def _prepare(self, rows: Index, limit_s: Array) -> None:
        limits = limit_s[self.group[rows]]
        for row, below_s in zip(rows.tolist(), limits.tolist(), strict=True):
            self._ways[row] = Ways(below_s=below_s, ways=[])
        model, sets = stage_model(self.context, self.strategy.take(rows)), None
        if self.module_sets:
            alive = self._may_beat(self.price(model).bound, limits)
            self.lower_s[rows[~alive]] = np.maximum(self.lower_s[rows], limits)[~alive]
            rows, model = rows[alive], model.take(alive)
            if not len(rows):
                return
            sets, places, options = self._options(model.strategy)
            model, pairs = self._under(model.take(places), options), rows[places]
        else:
            model, pairs = of_kinds(model, self.kinds), rows
        below_s = limit_s[self.group[pairs]]
        lower = self._refine(pairs, model, None, sets, below_s)
        least = np.full(len(self.lower_s), np.inf)
        np.minimum.at(least, pairs, lower)
        self.lower_s[rows] = np.maximum(self.lower_s[rows], least[rows])
        kept = np.flatnonzero(lower < below_s)
        its_sets = None if sets is None else sets[kept]
        self._keep_ways(pairs[kept], model.take(kept), lower[kept], its_sets)
        self._note_proofs(rows)

    def _may_beat(self, bound: StageModel, limit_s: Array) -> Mask:
        """Rows that a bound leaves below their limit."""
        num_layers = self.context.model.num_blocks
        alive = np.zeros(len(bound), dtype=bool)
        for num_stages, index in by_pipeline(bound.strategy):
            part = bound.take(index)
            capacity = capacity_of(part, stage_limits(part, num_stages, num_layers))
            kept, _ = within(part, capacity, num_layers, limit_s[index])
            alive[index[kept]] = True
        return alive

    def _options(self, strategy: StrategyColumns) -> tuple[Index, Index, SelectiveCosts]:
        """Pairs of a set of modules worth trying and a strategy, and the set's costs for it."""
        alike, index = distinct_shapes(strategy)
        even = np.ones(len(alike))
        options = selective_options(self.context, alike, self.module_sets, even)
        sets, places = np.nonzero(undominated(options)[:, index])
        chosen = options[sets, index[places]]
        pace = slowest_pace(self.context, strategy)[places]
        return sets, places, replace(chosen, added_s=pace * chosen.added_s)

    def _keep_ways(self, rows: Index, model: StageModel, lower: Array, sets: Index | None) -> None:
        """Note the ways of every row, those of the least bound first."""
        for num_stages, index in by_pipeline(model.strategy):
            models = model.take(index)
            limits = stage_limits(models, num_stages, self.context.model.num_blocks)
            for place, pair in enumerate(index.tolist()):
                way = Way(
                    lower_s=float(lower[pair]),
                    modules=None if sets is None else self.module_sets[int(sets[pair])],
                    models=models,
                    limits=limits,
                    place=place,
                )
                self._ways[int(rows[pair])].ways.append(way)
        for row in np.unique(rows).tolist():
            self._ways[row].ways.sort(key=lambda way: way.lower_s)

    def is_prepared(self, row: int, limit_s: float) -> bool:
        """Whether the row can be solved for less than ``limit_s`` without building models first."""
        return self._is_proved(row) or (row in self._ways and self._ways[row].below_s >= limit_s)

    def _is_proved(self, row: int) -> bool:
        known = self.splits.get(row)
        return known is not None and known.is_optimal

    def solve(self, row: int, limit_s: float = np.inf) -> Split | None:
        """Return the optimal split of a row, from the bounds where they meet, else exactly.

        None, or a slower one, where none is faster than ``limit_s``.
        """
        if self._is_proved(row):
            return self.splits[row]
        if not self.is_prepared(row, limit_s):
            self.prepare(np.array([row]), np.full(len(self.gpus), limit_s))
        return self.splits[row] if self._is_proved(row) else self._search(row, limit_s)

    def _search(self, row: int, limit_s: float) -> Split | None:
        """Solve the stage problem under every set of modules, and note what that proves."""
        self.num_solved += 1
        best, proved = self._best_way(row, limit_s)
        if best is None or best.iteration_s > limit_s:
            self.is_unsure |= not proved
            if proved:
                self.lower_s[row] = max(self.lower_s[row], limit_s)
            return best
        best = replace(best, is_optimal=proved)
        self.splits[row] = best
        self.upper_s[row] = best.iteration_s
        if proved:
            del self._ways[row]
            self.lower_s[row] = best.iteration_s
        return best

    def _best_way(self, row: int, limit_s: float) -> tuple[Split | None, bool]:
        """The best split known in the end, and whether no way can beat it and the limit."""
        best, proved = self.splits.get(row), True
        num_layers = self.context.model.num_blocks
        left, checked_s = self._ways[row].ways, self._ways[row].below_s
        while left:
            below_s = min(limit_s, best.iteration_s if best else np.inf)
            if below_s < checked_s and len(left) > FEW_WAYS:
                left, checked_s = below(left, below_s, num_layers), below_s
                continue
            way, left = left[0], left[1:]
            if way.lower_s >= below_s:
                break
            split = way.solve(num_layers, below_s, Effort(seconds=self._seconds_left()))
            if split is None:
                continue
            proved &= split.is_optimal
            if not np.isfinite(split.iteration_s) or split.iteration_s > below_s:
                continue
            best = replace(split, counts=all_counts(split.layers, split.counts, self.kinds))
            if best.iteration_s <= self.lower_s[row] * (1.0 + CLOSED):
                return best, True
        return best, proved

    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.01)


def by_pipeline(strategy: StrategyColumns) -> Iterator[tuple[int, Index]]:
    """Positions of rows whose pipeline degrees lie between two powers of two, and the largest."""
    if not len(strategy):
        return
    size = np.ceil(np.log2(strategy.pp)).astype(int)
    for exponent in np.unique(size).tolist():
        index = np.flatnonzero(size == exponent)
        yield int(strategy.pp[index].max()), index


def candidates_of(
    enumeration: Enumeration, *, deadline: float | None = None
) -> tuple[Candidates, int]:
    """Shapes that can fit, with their bounds; and how many shapes were legal."""
    shapes = enumeration.shapes()
    states = {name: list(enumeration.values[name]) for name in ("zero_stage", "offload")}
    bounds = shape_bounds(enumeration.context, shapes, enumeration.narrowing.kinds, states)
    index = np.flatnonzero(bounds.can_fit)
    found = Candidates(
        enumeration=enumeration,
        shapes=take(shapes, index),
        shape_lower_s=bounds.lower_s[index],
        footprint=bounds.footprint.take(index),
        deadline=deadline,
    )
    return found, len(bounds.can_fit)
