"""State of a best-first search: shapes, the candidates of those opened, their splits."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.search.ranking.candidates import Bounded, Candidates
from planner.search.ranking.penalties import degree_penalty, sharding_penalty
from planner.search.ranking.pricing import Pricing
from planner.search.ranking.solving import Solving
from planner.search.space.policies import offered, policies_of
from planner.search.space.shapes import Footprint, as_strategies, shape_bounds
from planner.search.space.space import Columns, Enumeration, joined, take
from planner.search.stages.bounds import bound_any_split_s, may_fit
from planner.spec.strategy import SHAPE, StrategyColumns, gpus_of
from planner.units import Array, Index, Mask


@dataclass(kw_only=True)
class Shapes:
    """Shapes with bounds of what each holds that was not priced yet."""

    columns: Columns
    lower_s: Array  # Weighed bound of what was not priced yet; infinite where all was
    weight: Array  # Factor that the bounds already include
    penalty: Array  # The part of it that is a penalty
    footprint: Footprint | None = None

    def __post_init__(self) -> None:
        # GPUs of every group, ascending.
        num_gpus = gpus_of(self.columns)
        self.gpus: Array = np.array(np.flatnonzero(np.bincount(num_gpus)))
        self.group = np.searchsorted(self.gpus, num_gpus)
        # The largest limits under which each was opened.
        self.opened_s = np.full((3, len(self.group)), -np.inf)
        self.bound_s = self.lower_s.copy()

    def below(self, limits_s: Array, among: Index | None = None) -> Index:
        """Shapes that may hold something below their group's limits that was not priced yet.

        ``limits_s``, 3 x groups: of weighed time, of time, and of time with penalties. Of all
        shapes, or of those found before under limits that were no lower.
        """
        below_s = np.where(limits_s[1:].min(axis=0) > 0, limits_s[0], -np.inf)
        if among is None:
            among = np.flatnonzero(self.lower_s < below_s[self.group])
        else:
            among = among[self.lower_s[among] < below_s[self.group[among]]]
        limits = limits_s[:, self.group[among]]
        opened = self.opened_s[:, among]
        unopened = kept_below_s(limits, self.weight[among], self.penalty[among])
        asks = self.lower_s[among] < np.where(np.isneginf(opened[0]), unopened, np.inf)
        return np.asarray(among[asks & (limits > opened).any(axis=0)])

    def open(self, shapes: Index, limits_s: Array) -> None:
        """Note under which limits of groups shapes are opened."""
        now = limits_s[:, self.group[shapes]]
        self.opened_s[:, shapes] = np.maximum(self.opened_s[:, shapes], now)
        self.lower_s[shapes] = np.inf


def kept_below_s(limits_s: Array, weight: Array, penalty: Array) -> Array:
    """Weighed time below which strategies, or shapes, keep their limits, 3 x C."""
    limit_s, longest_s, tied_s = limits_s
    return np.asarray(np.minimum(limit_s, np.minimum(longest_s, tied_s / penalty) * weight))


@dataclass(kw_only=True)
class Exploration:
    """Shapes to open; their strategies become candidates, to be refined and solved."""

    enumeration: Enumeration
    shapes: Shapes
    deadline: float | None = None
    """Deadline on the clock of time.monotonic after which nothing is opened, refined or solved."""
    layers: LayerTable | None = None  # Costs of layers that are known already
    one_per_layout: bool = False
    """True if only the best of the strategies of one layout is of interest."""
    num_configurations: int = 0  # Legal strategies of the shapes opened
    num_priced: int = 0
    num_fitting: int = 0

    def __post_init__(self) -> None:
        self.pricing = Pricing(
            context=self.context, layers=self.layers or LayerTable(context=self.context)
        )
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

    def shapes_below(self, limit_s: Array, among: Index | None = None) -> Index:
        """Shapes worth opening, of all or of those found before under limits no lower."""
        return self.shapes.below(self._limits_s(limit_s), among)

    def _limits_s(self, limit_s: Array) -> Array:
        """All limits of groups, 3 x groups."""
        return np.stack([limit_s, self.candidates.longest_s, self.candidates.tied_s])

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit below its group's limit.

        Where a limit sets some aside, the shape stays closed with the least of their bounds: a
        later limit may ask for them.
        """
        columns = take(self.shapes.columns, shapes)
        strategy, place = self.enumeration.strategies_of(columns)
        is_new = np.isneginf(self.shapes.opened_s[0, shapes])[place]
        self.num_configurations += int(np.count_nonzero(is_new))
        shape = shapes[place]
        if self.shapes.footprint is not None:
            holds = self.shapes.footprint.can_fit(strategy, shape)
            strategy, shape = strategy.take(holds), shape[holds]
        before_s = self.shapes.opened_s[:, shape]
        self.shapes.open(shapes, self._limits_s(limit_s))
        # What the bound of the shape sets aside under the strategy's own weight is not priced.
        own_weight, penalty = self.pricing.weights(strategy)
        weights = map(self.pricing.policy_weight, self.candidates.policies)
        weight = own_weight * min(weights, default=1.0)
        least_s = self.shapes.bound_s[shape] / self.shapes.weight[shape] * weight
        is_below = least_s < kept_below_s(self.shapes.opened_s[:, shape], weight, penalty)
        np.minimum.at(self.shapes.lower_s, shape[~is_below], least_s[~is_below])
        is_new = (least_s >= kept_below_s(before_s, weight, penalty))[is_below]
        strategy, shape = strategy.take(is_below), shape[is_below]
        before_s = before_s[:, is_below]
        own_weight, penalty = own_weight[is_below], penalty[is_below]
        self.num_priced += int(np.count_nonzero(is_new))
        kept: list[Bounded] = []
        size = 2**16
        for start in range(0, len(strategy), size):
            rows = slice(start, start + size)
            found, is_fitting = self._screened(
                strategy.take(rows),
                shape[rows],
                own_weight[rows],
                penalty[rows],
                before_s[:, rows],
            )
            kept += found
            self.num_fitting += int(np.count_nonzero(is_fitting & is_new[rows]))
        self.candidates.add(kept)

    def _screened(
        self,
        strategy: StrategyColumns,
        shape: Index,
        own_weight: Array,
        own_penalty: Array,
        before_s: Array,
    ) -> tuple[list[Bounded], Mask]:
        """Strategies under each policy that bounds let fit below a limit, and not ``before_s``.

        Limits are those of the strategies' shapes. What is set aside is noted there. And which
        strategies are left under some policy.
        """
        shapes = self.shapes
        pricing = self.pricing
        model = pricing.model(strategy)
        free_s = bound_any_split_s(model)
        found = []
        is_fitting = np.zeros(len(strategy), dtype=bool)
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
            earlier = kept_below_s(before_s[:, below], weight[below], penalty[below])
            again = np.flatnonzero(kept & (lower < earlier))
            if len(again):
                known = may_fit(bound.take(again), earlier[again])
                kept[again[known]] = False
            rows = below[kept]
            is_fitting[rows] = True
            found.append(
                Bounded(
                    model=model.take(rows),
                    policy=np.full(len(rows), code),
                    weight=weight[rows],
                    penalty=penalty[rows],
                    lower_s=lower[kept],
                )
            )
        return found, is_fitting


def ranked_by(exploration: Exploration, context: Context, num_gpus: list[int]) -> Exploration:
    """The shapes of some numbers of GPUs, none opened, under the ranking of another context."""
    shapes = exploration.shapes
    kept = np.flatnonzero(np.isin(gpus_of(shapes.columns), num_gpus))
    assert shapes.footprint is not None
    return Exploration(
        enumeration=replace(exploration.enumeration, context=context, dropped={}),
        shapes=weighed_shapes(
            context,
            take(shapes.columns, kept),
            shapes.bound_s[kept] / shapes.weight[kept],
            shapes.footprint.take(kept),
            exploration.enumeration.values,
            shapes.penalty[kept],
        ),
        one_per_layout=exploration.one_per_layout,
        layers=exploration.pricing.layers,
        deadline=exploration.deadline,
    )


def weighed_shapes(
    context: Context,
    columns: Columns,
    least_s: Array,
    footprint: Footprint,
    values: Mapping[str, Sequence[int]],
    penalty: Array | None = None,
) -> Shapes:
    """The shapes that can fit, their bounds under the least weight with which they do.

    ``penalty``: the part of the weight that is penalties; all of it if not given.
    """
    weight = degree_penalty(context, as_strategies(context, columns))
    weight *= footprint.least_weight(columns, values, partial(sharding_penalty, context))
    can_fit = np.flatnonzero(np.isfinite(weight))
    return Shapes(
        columns=take(columns, can_fit),
        lower_s=(least_s * weight)[can_fit],
        weight=weight[can_fit],
        penalty=(weight if penalty is None else penalty)[can_fit],
        footprint=footprint.take(can_fit),
    )


def of_strategies(enumeration: Enumeration, strategy: StrategyColumns) -> Exploration:
    """No shapes to open; these strategies, under every policy, to refine and solve."""
    found = Exploration(
        enumeration=enumeration,
        shapes=Shapes(
            columns={name: getattr(strategy, name) for name in SHAPE},
            lower_s=np.zeros(len(strategy)),
            weight=np.ones(len(strategy)),
            penalty=np.ones(len(strategy)),
        ),
    )
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
    context = enumeration.context
    layers = LayerTable(context=context)
    columns = joined(list(enumeration.listed(until)))
    least_s, footprint = shape_bounds(context, columns, enumeration.narrowing.kinds, layers)
    return Exploration(
        enumeration=enumeration,
        shapes=weighed_shapes(context, columns, least_s, footprint, enumeration.values),
        one_per_layout=one_per_layout,
        layers=layers,
        deadline=deadline,
    ), len(columns["tp"])
