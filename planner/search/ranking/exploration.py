"""State of a best-first search: shapes, the candidates of those opened, their splits."""

import time
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.search.ranking.candidates import Bounded, Candidates
from planner.search.ranking.penalties import degree_uses, evidence_penalty, sharding_uses
from planner.search.ranking.pricing import Pricing
from planner.search.ranking.solving import Solving
from planner.search.space.policies import offered, policies_of
from planner.search.space.shapes import (
    ShapeBounds,
    as_strategies,
    micro_batch_bounds,
    shape_bounds,
)
from planner.search.space.space import Columns, Enumeration, take
from planner.search.stages.bounds import bound_any_split_s, may_fit
from planner.spec.strategy import MICRO_BATCH, SHAPE, StrategyColumns, gpus_of
from planner.units import Array, Index


@dataclass(kw_only=True)
class Shapes:
    """All legal shapes that may fit, with bounds of what was not priced yet."""

    columns: Columns
    bounds: ShapeBounds  # Before they are opened
    lower_s: Array  # Weighed bound of what was not priced yet; infinite where all was
    weight: Array  # Factor that the bounds already include
    penalty: Array  # The part of it that is a penalty

    def __post_init__(self) -> None:
        # GPUs of every group, ascending.
        num_gpus = gpus_of(self.columns)
        self.gpus: Array = np.array(np.flatnonzero(np.bincount(num_gpus)))
        self.group = np.searchsorted(self.gpus, num_gpus)
        # The largest limits under which each was opened.
        self.opened_s = np.full((3, len(self.group)), -np.inf)

    def below(self, limits_s: Array) -> Index:
        """Shapes that may hold something below their group's limits that was not priced yet.

        ``limits_s``, 3 x groups: of weighed time, of time, and of time with penalties.
        """
        below_s = np.where(limits_s[1:].min(axis=0) > 0, limits_s[0], -np.inf)
        among = np.flatnonzero(self.lower_s < below_s[self.group])
        limits, opened = limits_s[:, self.group[among]], self.opened_s[:, among]
        below = self.lower_s[among] < kept_below_s(limits, self.weight[among], self.penalty[among])
        # What was set aside of an opened shape has a weight of its own.
        below |= opened[0] > -np.inf
        return np.asarray(among[below & (limits > opened).any(axis=0)])

    def open(self, shapes: Index, limits_s: Array) -> None:
        """Note under which limits shapes are opened."""
        now = limits_s[:, self.group[shapes]]
        self.opened_s[:, shapes] = np.maximum(self.opened_s[:, shapes], now)
        self.lower_s[shapes] = np.inf

    def kept(self, shape: Index, least_s: Array, weight: Array, penalty: Array) -> Index:
        """Rows below the limits their shape is opened under; notes the bounds of the others."""
        is_kept = least_s < kept_below_s(self.opened_s[:, shape], weight, penalty)
        np.minimum.at(self.lower_s, shape[~is_kept], least_s[~is_kept])
        return np.flatnonzero(is_kept)


def kept_below_s(limits_s: Array, weight: Array, penalty: Array) -> Array:
    """Weighed time below which strategies, or shapes, keep their limits, 3 x C."""
    limit_s, longest_s, tied_s = limits_s
    return np.asarray(np.minimum(limit_s, np.minimum(longest_s, tied_s / penalty) * weight))


@dataclass(kw_only=True)
class Exploration:
    """Shapes to open; their strategies become candidates, to be refined and solved."""

    enumeration: Enumeration
    layers: LayerTable
    shapes: Shapes
    deadline: float | None = None
    """Deadline on the clock of time.monotonic after which nothing is opened, refined or solved."""
    one_per_layout: bool = False
    """True if only the best of the strategies of one layout is of interest."""
    num_configurations: int = 0  # Legal strategies listed, as often as their shape was opened
    num_priced: int = 0

    def __post_init__(self) -> None:
        self.pricing = Pricing(context=self.context, layers=self.layers)
        self.candidates = Candidates(
            pricing=self.pricing,
            policies=policies_of(self.context, self.enumeration.narrowing),
            gpus=self.shapes.gpus,
            one_per_layout=self.one_per_layout,
        )
        self.solving = Solving(
            candidates=self.candidates,
            deadline=np.inf if self.deadline is None else self.deadline,
        )

    @property
    def context(self) -> Context:
        """Context of the search."""
        return self.enumeration.context

    @property
    def is_late(self) -> bool:
        """The time limit has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def keep_to(self, longest_s: Array, tied_s: Array | None = None) -> None:
        """Change the times that keep the limits, per group; ``tied_s``: with penalties."""
        tied_s = np.full(len(longest_s), np.inf) if tied_s is None else tied_s
        self.solving.forget(self.candidates.keep_to(longest_s, tied_s))

    def shapes_below(self, limit_s: Array) -> Index:
        """Shapes worth opening."""
        return self.shapes.below(self._limits_s(limit_s))

    def _limits_s(self, limit_s: Array) -> Array:
        """All limits of groups, 3 x groups."""
        return np.stack([limit_s, self.candidates.longest_s, self.candidates.tied_s])

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit below its group's limit.

        Where a limit sets some aside, the shape stays closed with the least of their bounds: a
        later limit may ask for them.
        """
        known = self.shapes
        opened_s = known.opened_s.copy()
        known.open(shapes, self._limits_s(limit_s))
        columns, place = self.enumeration.expanded(take(known.columns, shapes), MICRO_BATCH)
        bounds = micro_batch_bounds(self.enumeration, columns, self.layers)
        shape = shapes[place]
        weight = known.weight[shape]
        rows = known.kept(shape, bounds.least_s * weight, weight, known.penalty[shape])
        strategy, place = self.enumeration.strategies_of(take(columns, rows))
        self.num_configurations += len(strategy)
        place = rows[place]
        holds = bounds.can_fit(strategy, place)
        strategy, place = strategy.take(holds), place[holds]
        shape = shape[place]
        # What the bound of the shape sets aside under the strategy's own weight is not priced.
        own_weight, penalty = self.pricing.weights(strategy)
        weights = map(self.pricing.policy_weight, self.candidates.policies)
        weight = own_weight * min(weights, default=1.0)
        rows = known.kept(shape, bounds.least_s[place] * weight, weight, penalty)
        self.num_priced += len(rows)
        kept: list[Bounded] = []
        size = 2**16
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            kept += self._screened(
                strategy.take(part), shape[part], own_weight[part], penalty[part], opened_s
            )
        self.candidates.add(kept)

    def _screened(
        self,
        strategy: StrategyColumns,
        shape: Index,
        own_weight: Array,
        own_penalty: Array,
        opened_s: Array,
    ) -> list[Bounded]:
        """Strategies under each policy that bounds let fit below a limit, and not ``opened_s``.

        Limits are those of the strategies' shapes. What is set aside is noted there.
        """
        shapes = self.shapes
        pricing = self.pricing
        model = pricing.model(strategy)
        free_s = bound_any_split_s(model)
        found = []
        for code, policy in enumerate(self.candidates.policies):
            weight = own_weight * pricing.policy_weight(policy)
            penalty = own_penalty * pricing.policy_penalty(policy)
            limit = kept_below_s(shapes.opened_s[:, shape], weight, penalty)
            least_s = free_s * weight
            possible = offered(model, policy)
            is_below = least_s[possible] < limit[possible]
            below = possible[is_below]
            aside = possible[~is_below]
            np.minimum.at(shapes.lower_s, shape[aside], least_s[aside])
            if not len(below):
                continue
            bound = pricing.price(model.take(below), policy, weight[below]).bound
            lower = np.maximum(bound_any_split_s(bound), least_s[below])
            kept = lower < limit[below]
            kept &= may_fit(bound, limit[below])
            dropped_s = np.maximum(lower, limit[below])
            left_s = np.where(kept, np.inf, dropped_s)
            np.minimum.at(shapes.lower_s, shape[below], left_s)
            earlier = kept_below_s(opened_s[:, shape[below]], weight[below], penalty[below])
            again = np.flatnonzero(kept & (lower < earlier))
            if len(again):
                known = may_fit(bound.take(again), earlier[again])
                kept[again[known]] = False
            rows = below[kept]
            found.append(
                Bounded(
                    model=model.take(rows),
                    policy=np.full(len(rows), code),
                    weight=weight[rows],
                    penalty=penalty[rows],
                    lower_s=lower[kept],
                )
            )
        return found


def ranked_by(exploration: Exploration, context: Context, num_gpus: list[int]) -> Exploration:
    """The shapes of some numbers of GPUs, none opened, under the ranking of another context."""
    known = exploration.shapes
    kept = np.flatnonzero(np.isin(known.gpus[known.group], num_gpus))
    enumeration = replace(exploration.enumeration, context=context, dropped={})
    columns, bounds = take(known.columns, kept), known.bounds.take(kept)
    shapes = weighed_shapes(enumeration, columns, bounds, known.penalty[kept])
    return replace(exploration, enumeration=enumeration, shapes=shapes)


def weighed_shapes(
    enumeration: Enumeration,
    columns: Columns,
    bounds: ShapeBounds,
    penalty: Array | None = None,  # The part of the weight that is one, if not all of it
) -> Shapes:
    """The shapes that can fit, their bounds under the least weight with which they do."""
    context = enumeration.context
    weight = evidence_penalty(context, as_strategies(context, columns), degree_uses)
    weight *= bounds.least_weight(
        columns, enumeration.values, lambda each: evidence_penalty(context, each, sharding_uses)
    )
    kept = np.flatnonzero(np.isfinite(weight * bounds.least_s))
    weight, bounds = weight[kept], bounds.take(kept)
    return Shapes(
        columns=take(columns, kept),
        bounds=bounds,
        lower_s=weight * bounds.least_s,
        weight=weight,
        penalty=weight if penalty is None else penalty[kept],
    )


def of_strategies(enumeration: Enumeration, strategy: StrategyColumns) -> Exploration:
    """No shapes to open; these strategies, under every policy, to refine and solve."""
    layers = LayerTable(context=enumeration.context)
    columns = {name: getattr(strategy, name) for name in (*SHAPE, *MICRO_BATCH)}
    bounds = micro_batch_bounds(enumeration, columns, layers)
    free = np.ones(len(strategy))
    shapes = Shapes(columns=columns, bounds=bounds, lower_s=free, weight=free, penalty=free)
    found = Exploration(enumeration=enumeration, layers=layers, shapes=shapes)
    model = found.pricing.model(strategy)
    own_weight, _ = found.pricing.weights(strategy)
    for code, policy in enumerate(found.candidates.policies):
        rows = offered(model, policy)
        weight = own_weight[rows] * found.pricing.policy_weight(policy)
        bounded = Bounded(
            model=model.take(rows),
            policy=np.full(len(rows), code),
            weight=weight,
            penalty=weight,
            lower_s=np.zeros(len(rows)),
        )
        found.candidates.add([bounded])
    return found


def explored(
    enumeration: Enumeration, *, deadline: float | None = None, one_per_layout: bool = False
) -> tuple[Exploration, int]:
    """Shapes that can fit, with their bounds; and how many shapes were legal.

    Listing and bounding take half of the time to the deadline; what is not listed by then is left
    out, which ``enumeration.is_cut`` says.
    """
    until = None if deadline is None else 0.5 * (time.monotonic() + deadline)
    layers = LayerTable(context=enumeration.context)
    columns = enumeration.shapes(until)
    bounds = shape_bounds(enumeration, columns, layers)
    return Exploration(
        enumeration=enumeration,
        shapes=weighed_shapes(enumeration, columns, bounds),
        one_per_layout=one_per_layout,
        layers=layers,
        deadline=deadline,
    ), int(np.isfinite(bounds.least_s).sum())
