"""Bookkeeping of the best-first search: shapes, the strategies priced so far, their splits."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from planner.cost.context import Context
from planner.cost.layer_table import LayerTable
from planner.cost.stage import StageModel, fits, iteration_s, weighed
from planner.search.ranking.handicaps import degree_handicap
from planner.search.ranking.pricing import Pricing
from planner.search.space.interleaving import regular_layers
from planner.search.space.policies import Policy, offered, policies_of
from planner.search.space.shapes import Footprint, ShapeBounds, shape_bounds
from planner.search.space.space import Columns, Enumeration, joined, take
from planner.search.stages.bounds import free_bound_s, may_keep, refine, within
from planner.search.stages.capacity import capacity_of, stage_limits
from planner.search.stages.solver import CLOSED, Effort, Split
from planner.search.stages.ways import Variant, Way, Ways, below
from planner.spec.strategy import COLUMNS, POLICIES, StrategyColumns, gpus_of
from planner.units import Array, Index, Mask

CHUNK_ROWS = 2**16
MOST_PAIRS = 2**13
"""Rows times variants of their policy (sets of modules, numbers of layers) bounded together."""
FEW_WAYS = 8
"""Solved without another look at their bounds."""


LAYOUT = (
    *(name for name, each in COLUMNS.items() if each.kind in ("degrees", "expert layout")),
    "zero_stage",
)
"""What tells layouts apart; all else is a knob of one."""
LARGE_NUMBER = 2**38
"""No column has more than 2**24 values, so that numbers stay below 2**63."""


@dataclass(frozen=True)
class _Screened:
    """Strategies under a policy that may be worth looking at, as columns."""

    strategy: StrategyColumns
    policy: Index
    weight: Array
    lower_s: Array


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
    layers: LayerTable | None = None
    """What is known of layers already."""
    shape_weight: Array | None = None
    """By which the bounds of shapes are multiplied already."""
    one_per_layout: bool = False
    """Of the strategies of one layout only the best is of interest."""
    longest_s: Array = field(init=False)
    """Per group the time, not weighed, from which on strategies are of no interest."""
    strategy: StrategyColumns = field(init=False)
    policy: Index = field(init=False)
    """Of every row, among ``policies``."""
    layout: Index = field(init=False)
    """Number of every row's layout."""
    weight: Array = field(init=False)
    """Of every row, by which its time is multiplied: bounds and limits are weighed seconds."""
    lower_s: Array = field(init=False)
    upper_s: Array = field(init=False)
    is_refined: Mask = field(init=False)
    group: Index = field(init=False)
    splits: dict[int, Split] = field(init=False, default_factory=dict)
    """Best split known per row."""
    _ways: dict[int, Ways] = field(init=False, default_factory=dict)
    most_weight: Array = field(init=False)
    """Of every policy: by how much more its variants and splits are multiplied at most."""
    _is_limited: Mask = field(init=False)
    """Groups of which rows may have been proved under a finite limit."""
    _opened_s: Array = field(init=False)
    """Of every shape the largest limit, and the longest time, under which it was opened."""

    def __post_init__(self) -> None:
        shapes = self.shapes
        gpus = gpus_of(shapes)
        self.gpus, self.shape_group = np.unique(gpus, return_inverse=True)
        self.is_closed = np.ones(len(gpus), dtype=bool)
        self.shape_bound_s = self.shape_lower_s.copy()
        self.longest_s = np.full(len(self.gpus), np.inf)
        self._opened_s = np.full((2, len(gpus)), -np.inf)
        self._is_limited = np.zeros(len(self.gpus), dtype=bool)
        if self.shape_weight is None:
            self.shape_weight = np.ones(len(gpus))
        layers = self.layers or LayerTable(context=self.context)
        self.pricing = Pricing(context=self.context, layers=layers)
        self.policies = policies_of(self.context, self.enumeration.narrowing)
        self.most_weight = np.array([self.pricing.most_weight(one) for one in self.policies])
        none = take(shapes, np.zeros(0, dtype=int))
        self._start(self.enumeration.strategies(none), np.zeros(0, dtype=int), np.zeros(0))

    @property
    def context(self) -> Context:
        """What is searched for."""
        return self.enumeration.context

    def _start(self, strategy: StrategyColumns, policy: Index, weight: Array) -> None:
        rows = len(strategy)
        self.strategy, self.policy, self.weight = strategy, policy, weight
        self.lower_s, self.upper_s = np.zeros(rows), np.full(rows, np.inf)
        self.is_refined, self.group = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=int)
        self._number_layouts()

    @property
    def is_late(self) -> bool:
        """The time limit has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def limits_s(self, rows: Index) -> Array:
        """Weighed time from which on rows are of no interest, whatever their variant and split."""
        most: Array = self.most_weight[self.policy[rows]]
        return self.longest_s[self.group[rows]] * self.weight[rows] * most

    def keep_to(self, longest_s: Array) -> None:
        """Change the times that keep the limits, per group.

        Among splits of a row that differ in weight, the best one that keeps a limit need not be
        the best without: what was proved of rows under a limit that goes is taken back.
        """
        lifted = self._is_limited & (longest_s > self.longest_s)
        self.longest_s = longest_s
        self._is_limited = (self._is_limited & ~lifted) | np.isfinite(longest_s)
        for row in np.flatnonzero(lifted[self.group]).tolist():
            self.lower_s[row] /= self.most_weight[self.policy[row]]
            self._ways.pop(row, None)
            if row in self.splits:
                self.splits[row] = replace(self.splits[row], is_optimal=False)

    def shapes_below(self, limit_s: Array, among: Index | None = None) -> Index:
        """Shapes that may hold something below their group's limit that was not priced yet.

        Of all, or of those found before under limits that were no lower.
        """
        assert self.shape_weight is not None
        if among is None:
            among = self._shapes_of((limit_s > -np.inf) & (self.longest_s > 0))
        lower = self.shape_lower_s[among]
        group = self.shape_group[among]
        kept = self.is_closed[among] & (lower < limit_s[group])
        among, lower, group = among[kept], lower[kept], group[kept]
        limit, longest = limit_s[group], self.longest_s[group]
        opened, opened_longest = self._opened_s[:, among]
        asks = lower < np.where(np.isneginf(opened), longest * self.shape_weight[among], np.inf)
        asks &= (limit > opened) | (longest > opened_longest)
        return np.asarray(among[asks])

    @cached_property
    def _by_group(self) -> list[Index]:
        """Positions of the shapes of every group."""
        order = np.argsort(self.shape_group, kind="stable")
        starts = np.cumsum(np.bincount(self.shape_group, minlength=len(self.gpus)))
        return np.split(order, starts[:-1])

    def _shapes_of(self, groups: Mask) -> Index:
        """Ascending positions of the shapes of some groups."""
        if groups.all():
            return np.arange(len(self.shape_group))
        parts = [self._by_group[group] for group in np.flatnonzero(groups).tolist()]
        return np.sort(np.concatenate([np.zeros(0, dtype=int), *parts]))

    def rows_below(self, limit_s: Array) -> Mask:
        """Rows not refined yet that may be below their group's limit."""
        limit = np.minimum(limit_s[self.group], self.limits_s(np.arange(len(self.group))))
        return np.asarray(~self.is_refined & (self.lower_s < limit))

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit below its group's limit.

        Where a limit sets some aside, the shape stays closed with the least of their bounds: a
        later limit may ask for them.
        """
        strategy, shape = self.enumeration.strategies_of(take(self.shapes, shapes))
        is_new = np.isneginf(self._opened_s[0, shapes])[shape]
        self.num_configurations += int(np.count_nonzero(is_new))
        shape = shapes[shape]
        if self.footprint is not None:
            holds = self.footprint.can_fit(strategy, shape)
            strategy, shape, is_new = strategy.take(holds), shape[holds], is_new[holds]
        self.num_priced += int(np.count_nonzero(is_new))
        before = self._opened_s.copy()
        group = self.shape_group[shapes]
        now = np.stack([limit_s[group], self.longest_s[group]])
        self._opened_s[:, shapes] = np.maximum(before[:, shapes], now)
        self.shape_lower_s[shapes] = np.inf
        kept = [_Screened(self.strategy, self.policy, self.weight, self.lower_s)]
        for start in range(0, len(strategy), CHUNK_ROWS):
            rows = np.arange(start, min(start + CHUNK_ROWS, len(strategy)))
            kept += self._screened(strategy.take(rows), shape[rows], before)
        self.is_closed[shapes] = np.isfinite(self.shape_lower_s[shapes])
        self.strategy = StrategyColumns.concatenate([part.strategy for part in kept])
        self.policy = np.concatenate([part.policy for part in kept])
        self.weight = np.concatenate([part.weight for part in kept])
        self.lower_s = np.concatenate([part.lower_s for part in kept])
        added = len(self.lower_s) - len(self.upper_s)
        self.upper_s = np.concatenate([self.upper_s, np.full(added, np.inf)])
        self.is_refined = np.concatenate([self.is_refined, np.zeros(added, dtype=bool)])
        self.group = np.searchsorted(self.gpus, self.strategy.num_gpus)
        self._number_layouts()

    def _number_layouts(self) -> None:
        """Rows of one layout share a number."""
        if self.one_per_layout:
            number = np.zeros(len(self.strategy), dtype=np.int64)
            for name in LAYOUT:
                column = getattr(self.strategy, name)
                number = number * (int(column.max(initial=0)) + 1) + column
                if number.max(initial=0) > LARGE_NUMBER:
                    number = np.unique(number, return_inverse=True)[1]
            self.layout = np.unique(number, return_inverse=True)[1]
        else:
            self.layout = np.arange(len(self.strategy))

    def kth_upper_s(self, rows: Mask, k: int, scale: Array | None = None) -> float:
        """The k-th least time known of these rows, counting the best of every layout.

        Only times that keep the limits count; ``scale`` is a factor of every row.
        """
        known = self.upper_s if scale is None else self.upper_s * scale
        rows = rows & (self.upper_s <= self.limits_s(np.arange(len(self.group))))
        known, layout = known[rows], self.layout[rows]
        if self.one_per_layout:
            best = np.full(layout.max(initial=-1) + 1, np.inf)
            np.minimum.at(best, layout, known)
            known = best[np.isfinite(best)]
        return float(np.partition(known, k - 1)[k - 1]) if len(known) >= k else float("inf")

    def may_lead(self) -> Mask:
        """Rows that may be the best of their layout."""
        if not self.one_per_layout:
            return np.ones(len(self.lower_s), dtype=bool)
        best = np.full(self.layout.max(initial=-1) + 1, np.inf)
        np.minimum.at(best, self.layout, self.upper_s)
        return np.asarray(self.lower_s < best[self.layout])

    def _screened(
        self, strategy: StrategyColumns, shape: Index, before_s: Array
    ) -> list[_Screened]:
        """Strategies under each policy that bounds let fit below a limit, and not the one before.

        Limits are those of the strategies' shapes. What is set aside is noted there.
        """
        num_layers = self.context.model.num_blocks
        model = self.pricing.model(strategy)
        free_s = free_bound_s(model, num_layers)
        found, is_fitting = [], np.zeros(len(strategy), dtype=bool)
        for code, policy in enumerate(self.policies):
            weight = self.pricing.weights(strategy, policy)
            limit = self._limit_of_shapes(self._opened_s, shape, weight)
            possible = offered(model, policy)
            below = possible[free_s[possible] * weight[possible] < limit[possible]]
            aside = np.setdiff1d(possible, below, assume_unique=True)
            np.minimum.at(self.shape_lower_s, shape[aside], free_s[aside] * weight[aside])
            if not len(below):
                continue
            bound = self.pricing.price(model.take(below), policy, weight[below]).bound
            lower = np.maximum(free_bound_s(bound, num_layers), free_s[below] * weight[below])
            kept = lower < limit[below]
            kept &= may_keep(bound, num_layers, limit[below])
            least = np.where(kept, np.inf, np.maximum(lower, limit[below]))
            np.minimum.at(self.shape_lower_s, shape[below], least)
            earlier = self._limit_of_shapes(before_s, shape[below], weight[below])
            again = np.flatnonzero(kept & (lower < earlier))
            if len(again):
                known = may_keep(bound.take(again), num_layers, earlier[again])
                kept[again[known]] = False
            rows = below[kept]
            is_fitting[rows] = True
            found.append(
                _Screened(
                    strategy=strategy.take(rows),
                    policy=np.full(len(rows), code),
                    weight=weight[rows],
                    lower_s=lower[kept],
                )
            )
        is_new = np.isneginf(before_s[0, shape])
        self.num_fitting += int(np.count_nonzero(is_fitting & is_new))
        return found

    def _limit_of_shapes(self, opened_s: Array, shape: Index, weight: Array) -> Array:
        """Weighed time below which strategies of shapes are kept."""
        longest = opened_s[1, shape] * weight
        limit: Array = np.minimum(opened_s[0, shape], longest)
        return limit

    def refine(self, rows: Index, limit_s: Array | None = None) -> None:
        """Tighten the bounds of ``rows`` with memory limits and find a split for each.

        Those that cannot be below the limit of their group are left at it.
        """
        rows = rows[~self.is_refined[rows]]
        if not len(rows):
            return
        limit = self.limits_s(rows)
        if limit_s is not None:
            limit = np.minimum(limit, limit_s[self.group[rows]])
        for policy, index in self._by_policy(rows):
            part = rows[index]
            model = self.pricing.model(self.strategy.take(part))
            uneven = self.pricing.uneven_weight(policy, is_open=True)
            priced = self.pricing.price(model, policy, self.weight[part] * uneven)
            modules = [
                None if priced.best_set is None else self.pricing.module_sets(policy)[int(chosen)]
                for chosen in (priced.best_set if priced.best_set is not None else part)
            ]
            variants = [Variant(policy=policy, modules=chosen) for chosen in modules]
            bound = None if priced.best_set is None else priced.bound
            model = weighed(priced.model, self.pricing.variant_weights(variants))
            lower = self._refine(part, model, bound, variants, limit[index], uneven)
            self.lower_s[part] = np.maximum(self.lower_s[part], lower)
        self.is_refined[rows] = True
        self._note_proofs(rows)

    def _by_policy(self, rows: Index) -> Iterator[tuple[Policy, Index]]:
        """Positions of the rows under each policy."""
        codes = self.policy[rows]
        for code in np.unique(codes).tolist():
            yield self.policies[code], np.flatnonzero(codes == code)

    def _refine(
        self,
        rows: Index,
        model: StageModel,
        bound: StageModel | None,
        variants: list[Variant],
        limit_s: Array,
        uneven: float,
    ) -> Array:
        """Refine the given models of ``rows``; keep the best splits, return the bounds.

        A row whose policy still has a number of layers to choose has a bound only.
        """
        lower = np.zeros(len(rows))
        for num_stages, index in by_pipeline(model.strategy):
            part, limit = model.take(index), limit_s[index]
            relaxed = None if bound is None else bound.take(index)
            found = refine(part, num_stages, self.context.model.num_blocks, relaxed, limit)
            lower[index] = found.lower_s
            for place in np.flatnonzero(np.isfinite(found.upper_s)).tolist():
                variant, upper = variants[int(index[place])], float(found.upper_s[place])
                layers, counts = found.layers[place], found.counts[:, place]
                self._keep(int(rows[index[place]]), variant, layers, counts, upper, uneven)
        if uneven > 1.0:
            regular_s = self._regular_s(model, uneven)
            self._keep_regular(rows, variants, regular_s)
            bound_s = regular_s if bound is None else self._regular_s(bound, uneven)
            lower = np.minimum(lower, bound_s)
        return lower

    def _regular_s(self, model: StageModel, uneven: float) -> Array:
        """Time of every row with regular stages, infinite where they do not fit."""
        seconds = np.full(len(model), np.inf)
        shapes = np.stack([model.strategy.pp, model.strategy.vpp])
        for pp, vpp in np.unique(shapes, axis=1).T.tolist():
            layers = regular_layers(self.context.model.num_blocks, pp, vpp)
            index = np.flatnonzero((shapes[0] == pp) & (shapes[1] == vpp))
            if layers is None:
                continue
            part, split = model.take(index), np.tile(np.array(layers, dtype=float), (len(index), 1))
            legal = fits(part, split) & (split.min() >= part.least_chunk_layers * vpp)
            part_s = iteration_s(part, split) / uneven
            seconds[index] = np.where(legal, part_s, np.inf)
        return seconds

    def _keep_regular(self, rows: Index, variants: list[Variant], seconds: Array) -> None:
        """Note the regular splits that fit."""
        for place in np.flatnonzero(np.isfinite(seconds)).tolist():
            row = int(rows[place])
            pp, vpp = int(self.strategy.pp[row]), int(self.strategy.vpp[row])
            regular = regular_layers(self.context.model.num_blocks, pp, vpp)
            counts, split_s = np.zeros((len(POLICIES), pp)), float(seconds[place])
            self._keep(row, variants[place], np.array(regular, dtype=float), counts, split_s, 1.0)

    def _keep(
        self,
        row: int,
        variant: Variant,
        layers: Array,
        counts: Array,
        seconds: float,
        uneven: float,
    ) -> None:
        """Note a split of a row where it is the best one known."""
        if seconds >= self.upper_s[row] or not variant.is_complete:
            return
        pp = int(self.strategy.pp[row])
        weight = float(self.weight[row]) * self.pricing.variant_weight(variant) * uneven
        if seconds > self.longest_s[self.group[row]] * weight:
            return
        split = Split(
            layers=layers[:pp],
            counts=counts[:, :pp],
            iteration_s=seconds,
            is_optimal=False,
            weight=weight,
        )
        self.upper_s[row] = seconds
        self.splits[row] = variant.completed(split, int(self.strategy.vpp[row]))

    def _note_proofs(self, rows: Index) -> None:
        """Splits that reach the bound of their row are optimal."""
        upper = self.upper_s[rows]
        closed = np.isfinite(upper) & (upper <= self.lower_s[rows] * (1.0 + CLOSED))
        for row in rows[closed].tolist():
            self.splits[row] = replace(self.splits[row], is_optimal=True)

    def take_strategies(self, strategy: StrategyColumns) -> None:
        """Make these the strategies to refine and solve, whatever their shapes."""
        rows = np.arange(len(strategy))
        model = self.pricing.model(strategy)
        places = [offered(model, policy) for policy in self.policies]
        codes = np.repeat(np.arange(len(places)), [len(rows) for rows in places])
        rows = np.concatenate([np.zeros(0, dtype=int), *places])
        weights = [
            self.pricing.weights(strategy.take(p), x)
            for p, x in zip(places, self.policies, strict=True)
        ]
        self._start(strategy.take(rows), codes, np.concatenate([np.zeros(0), *weights]))
        self.gpus, self.longest_s = np.zeros(1, dtype=int), np.full(1, np.inf)

    def ways(self, row: int) -> list[Way]:
        """Every variant of a row's policy worth trying; empty where it was proved already."""
        if not self.is_prepared(row, np.inf):
            self.prepare(np.array([row]), np.full(len(self.gpus), np.inf))
        return self._ways[row].ways if row in self._ways else []

    def prepare(self, rows: Index, limit_s: Array) -> None:
        """Build the models of rows that may have to be solved, one per variant, at once.

        Only of variants that may take less than the limit of the row's group.
        """
        limits = np.minimum(limit_s[self.group[rows]], self.limits_s(rows)).tolist()
        missing = [
            row
            for row, limit in zip(rows.tolist(), limits, strict=True)
            if not self.is_prepared(row, limit)
        ]
        for policy, index in self._by_policy(np.array(missing, dtype=int)):
            rows = np.array(missing, dtype=int)[index]
            size = max(MOST_PAIRS // self.pricing.num_variants(policy), 1)
            for start in range(0, len(rows), size):
                self._prepare(rows[start : start + size], policy, limit_s)

    def _prepare(self, rows: Index, policy: Policy, limit_s: Array) -> None:
        limits = np.minimum(limit_s[self.group[rows]], self.limits_s(rows))
        for row, below_s in zip(rows.tolist(), limits.tolist(), strict=True):
            self._ways[row] = Ways(below_s=below_s, ways=[])
        model, weight = self.pricing.model(self.strategy.take(rows)), self.weight[rows]
        if self.pricing.num_variants(policy) > 1:
            alive = self._may_beat(self.pricing.price(model, policy, weight).bound, limits)
            self.lower_s[rows[~alive]] = np.maximum(self.lower_s[rows], limits)[~alive]
            rows, model = rows[alive], model.take(alive)
            if not len(rows):
                return
        model, places, variants = self.pricing.variants(model, policy)
        pairs = rows[places]
        uneven = self.pricing.uneven_weight(policy)
        model = weighed(model, self.weight[pairs] * self.pricing.variant_weights(variants) * uneven)
        below_s = np.minimum(limit_s[self.group[pairs]], self.limits_s(pairs))
        lower = self._refine(pairs, model, None, variants, below_s, uneven)
        least = np.full(len(self.lower_s), np.inf)
        np.minimum.at(least, pairs, lower)
        self.lower_s[rows] = np.maximum(self.lower_s[rows], least[rows])
        kept = np.flatnonzero(lower < below_s)
        chosen = [variants[place] for place in kept.tolist()]
        self._keep_ways(pairs[kept], model.take(kept), lower[kept], chosen)
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

    def _keep_ways(
        self, rows: Index, model: StageModel, lower: Array, variants: list[Variant]
    ) -> None:
        """Note the ways of every row, those of the least bound first."""
        for num_stages, index in by_pipeline(model.strategy):
            models = model.take(index)
            limits = stage_limits(models, num_stages, self.context.model.num_blocks)
            for place, pair in enumerate(index.tolist()):
                row, variant = int(rows[pair]), variants[pair]
                weight = float(self.weight[row]) * self.pricing.variant_weight(variant)
                way = Way(
                    lower_s=float(lower[pair]),
                    variant=variant,
                    weight=weight * self.pricing.uneven_weight(variant.policy),
                    models=models,
                    limits=limits,
                    place=place,
                )
                self._ways[row].ways.append(way)
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
        limit_s = min(limit_s, float(self.limits_s(np.array([row]))[0]))
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
        longest_s = float(self.longest_s[self.group[row]])
        while left:
            below_s = min(limit_s, best.iteration_s if best else np.inf)
            if below_s < checked_s and len(left) > FEW_WAYS:
                left, checked_s = below(left, below_s, num_layers), below_s
                continue
            way, left = left[0], left[1:]
            if way.lower_s >= below_s:
                break
            below_s = min(below_s, longest_s * way.weight)
            split = way.solve(num_layers, below_s, Effort(seconds=self._seconds_left()))
            if split is None:
                continue
            proved &= split.is_optimal
            if not np.isfinite(split.iteration_s) or split.iteration_s > below_s:
                continue
            best = split
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


def unweighed(candidates: Candidates) -> Candidates:
    """The same shapes, none opened, with no mechanism weighed."""
    context = replace(candidates.context, weighs_evidence=False)
    assert candidates.shape_weight is not None
    return Candidates(
        enumeration=replace(candidates.enumeration, context=context, dropped={}),
        shapes=candidates.shapes,
        shape_lower_s=candidates.shape_bound_s / candidates.shape_weight,
        footprint=candidates.footprint,
        layers=candidates.pricing.layers,
        deadline=candidates.deadline,
    )


def candidates_of(
    enumeration: Enumeration, *, deadline: float | None = None, one_per_layout: bool = False
) -> tuple[Candidates, int]:
    """Shapes that can fit, with their bounds; and how many shapes were legal.

    Listing and bounding take half of the time to the deadline; what is not listed by then is left
    out, which ``enumeration.is_cut`` says.
    """
    until = None if deadline is None else 0.5 * (time.monotonic() + deadline)
    states = {name: list(enumeration.values[name]) for name in ("zero_stage", "offload")}
    context = enumeration.context
    layers = LayerTable(context=context)
    weigh = {"weight_of": partial(degree_handicap, context)} if context.weighs_evidence else {}
    kinds = enumeration.narrowing.kinds
    num_shapes, parts, bounds = 0, list[Columns](), list[ShapeBounds]()
    for shapes in enumeration.listed(until):
        num_shapes += len(shapes["tp"])
        bound = shape_bounds(context, shapes, kinds, states, layers, **weigh)
        parts.append(take(shapes, bound.can_fit))
        bounds.append(bound.take(bound.can_fit))
    found = Candidates(
        enumeration=enumeration,
        shapes=joined(parts),
        shape_lower_s=np.concatenate([each.lower_s for each in bounds]),
        shape_weight=np.concatenate([each.weight for each in bounds]),
        one_per_layout=one_per_layout,
        footprint=Footprint.joined([each.footprint for each in bounds]),
        layers=layers,
        deadline=deadline,
    )
    return found, num_shapes
