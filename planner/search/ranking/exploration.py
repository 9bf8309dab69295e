"""State of a best-first search: shapes, the candidates of those opened, their splits."""

import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.search.ranking.candidates import Bounded, Candidates
from planner.search.ranking.penalties import degree_penalty
from planner.search.ranking.pricing import Pricing
from planner.search.ranking.solving import Solving
from planner.search.space.policies import offered, policies_of
from planner.search.space.shapes import Footprint, ShapeBounds, as_strategies, shape_bounds
from planner.search.space.space import Columns, Enumeration, joined, take
from planner.search.stages.bounds import bound_any_split_s, may_fit
from planner.spec.strategy import SHAPE, StrategyColumns, gpus_of
from planner.units import Array, Index, Mask


@dataclass(kw_only=True)
class Shapes:
    """Shapes with bounds; a closed one may hold strategies that were not priced yet."""

    columns: Columns
    lower_s: Array  # Weighed bound of what was not priced yet; infinite where all was
    weight: Array  # Factor that the bounds already include
    footprint: Footprint | None = None

    def __post_init__(self) -> None:
        # GPUs of every group, ascending.
        self.gpus, self.group = np.unique(gpus_of(self.columns), return_inverse=True)
        self.is_closed = np.ones(len(self.group), dtype=bool)
        # The largest limit, and the longest time, under which each was opened.
        self.opened_s = np.full((2, len(self.group)), -np.inf)
        self.bound_s = self.lower_s.copy()

    def below(self, limit_s: Array, longest_s: Array, among: Index | None = None) -> Index:
        """Shapes that may hold something below their group's limit that was not priced yet.

        ``longest_s`` is the time of every group, not weighed, from which on nothing is of
        interest. Of all shapes, or of those found before under limits that were no lower.
        """
        if among is None:
            asked = (limit_s > -np.inf) & (longest_s > 0)
            among = np.flatnonzero(asked[self.group])
        lower = self.lower_s[among]
        group = self.group[among]
        kept = self.is_closed[among] & (lower < limit_s[group])
        among = among[kept]
        lower = lower[kept]
        group = group[kept]
        limit, longest = limit_s[group], longest_s[group]
        opened, opened_longest = self.opened_s[:, among]
        unopened = longest * self.weight[among]
        asks = lower < np.where(np.isneginf(opened), unopened, np.inf)
        asks &= (limit > opened) | (longest > opened_longest)
        return among[asks]

    def open(self, shapes: Index, limit_s: Array, longest_s: Array) -> Array:
        """Note under which limits of groups shapes are opened; those of all shapes before."""
        before_s = self.opened_s.copy()
        group = self.group[shapes]
        now = np.stack([limit_s[group], longest_s[group]])
        self.opened_s[:, shapes] = np.maximum(before_s[:, shapes], now)
        self.lower_s[shapes] = np.inf
        return before_s


def kept_below_s(opened_s: Array, shape: Index, weight: Array) -> Array:
    """Weighed time below which strategies of shapes are kept, opened under these limits."""
    kept_s: Array = np.minimum(opened_s[0, shape], opened_s[1, shape] * weight)
    return kept_s


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
        none = np.zeros(0, dtype=int)
        self.candidates = Candidates(
            pricing=self.pricing,
            policies=policies_of(self.context, self.enumeration.narrowing),
            gpus=self.shapes.gpus,
            first=Bounded(
                strategy=self.enumeration.strategies(take(self.shapes.columns, none)),
                policy=none,
                weight=np.zeros(0),
                penalty=np.zeros(0),
                lower_s=np.zeros(0),
            ),
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
        return self.shapes.below(limit_s, self.candidates.most_s, among)

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit below its group's limit.

        Where a limit sets some aside, the shape stays closed with the least of their bounds: a
        later limit may ask for them.
        """
        strategy, place = self.enumeration.strategies_of(take(self.shapes.columns, shapes))
        is_new = np.isneginf(self.shapes.opened_s[0, shapes])[place]
        self.num_configurations += int(np.count_nonzero(is_new))
        shape = shapes[place]
        if self.shapes.footprint is not None:
            holds = self.shapes.footprint.can_fit(strategy, shape)
            strategy = strategy.take(holds)
            shape = shape[holds]
            is_new = is_new[holds]
        self.num_priced += int(np.count_nonzero(is_new))
        before_s = self.shapes.open(shapes, limit_s, self.candidates.most_s)
        kept: list[Bounded] = []
        size = 2**16
        for start in range(0, len(strategy), size):
            rows = slice(start, start + size)
            found, is_fitting = self._screened(strategy.take(rows), shape[rows], before_s)
            kept += found
            self.num_fitting += int(np.count_nonzero(is_fitting & is_new[rows]))
        # Those of which something was set aside are closed: a later limit may ask for it.
        self.shapes.is_closed[shapes] = np.isfinite(self.shapes.lower_s[shapes])
        self.candidates.add(kept)

    def _screened(
        self, strategy: StrategyColumns, shape: Index, before_s: Array
    ) -> tuple[list[Bounded], Mask]:
        """Strategies under each policy that bounds let fit below a limit, and not the one before.

        Limits are those of the strategies' shapes. What is set aside is noted there. And which
        strategies are left under some policy.
        """
        shapes = self.shapes
        pricing = self.pricing
        model = pricing.model(strategy)
        free_s = bound_any_split_s(model)
        own_weight, own_penalty = pricing.weights(strategy)
        found = []
        is_fitting = np.zeros(len(strategy), dtype=bool)
        for code, policy in enumerate(self.candidates.policies):
            weight = own_weight * pricing.policy_weight(policy)
            limit = kept_below_s(shapes.opened_s, shape, weight)
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
            earlier = kept_below_s(before_s, shape[below], weight[below])
            again = np.flatnonzero(kept & (lower < earlier))
            if len(again):
                known = may_fit(bound.take(again), earlier[again])
                kept[again[known]] = False
            rows = below[kept]
            is_fitting[rows] = True
            found.append(
                Bounded(
                    strategy=strategy.take(rows),
                    policy=np.full(len(rows), code),
                    weight=weight[rows],
                    penalty=own_penalty[rows] * pricing.policy_penalty(policy),
                    lower_s=lower[kept],
                )
            )
        return found, is_fitting


def ranked_by(exploration: Exploration, context: Context, num_gpus: list[int]) -> Exploration:
    """The shapes of some numbers of GPUs, none opened, under the ranking of another context."""
    shapes = exploration.shapes
    kept = np.flatnonzero(np.isin(gpus_of(shapes.columns), num_gpus))
    columns = take(shapes.columns, kept)
    weight = degree_penalty(context, as_strategies(context, columns))
    return Exploration(
        enumeration=replace(exploration.enumeration, context=context, dropped={}),
        shapes=Shapes(
            columns=columns,
            lower_s=shapes.bound_s[kept] / shapes.weight[kept] * weight,
            weight=weight,
            footprint=shapes.footprint and shapes.footprint.take(kept),
        ),
        one_per_layout=exploration.one_per_layout,
        layers=exploration.pricing.layers,
        deadline=exploration.deadline,
    )


def of_strategies(enumeration: Enumeration, strategy: StrategyColumns) -> Exploration:
    """No shapes to open; these strategies, under every policy, to refine and solve."""
    found = Exploration(
        enumeration=enumeration,
        shapes=Shapes(
            columns={name: getattr(strategy, name) for name in SHAPE},
            lower_s=np.zeros(len(strategy)),
            weight=np.ones(len(strategy)),
        ),
    )
    model = found.pricing.model(strategy)
    own_weight, _ = found.pricing.weights(strategy)
    for code, policy in enumerate(found.candidates.policies):
        rows = offered(model, policy)
        under = strategy.take(rows)
        weight = own_weight[rows] * found.pricing.policy_weight(policy)
        none_s = np.zeros(len(rows))
        bounded = Bounded(
            strategy=under,
            policy=np.full(len(rows), code),
            weight=weight,
            penalty=weight,
            lower_s=none_s,
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
    states = {name: list(enumeration.values[name]) for name in ("zero_stage", "offload")}
    context = enumeration.context
    layers = LayerTable(context=context)
    kinds = enumeration.narrowing.kinds
    num_shapes = 0
    parts = list[Columns]()
    bounds = list[ShapeBounds]()
    for columns in enumeration.listed(until):
        num_shapes += len(columns["tp"])
        bound = shape_bounds(
            context, columns, kinds, states, layers, partial(degree_penalty, context)
        )
        parts.append(take(columns, bound.can_fit))
        bounds.append(bound.take(bound.can_fit))
    return Exploration(
        enumeration=enumeration,
        shapes=Shapes(
            columns=joined(parts),
            lower_s=np.concatenate([each.lower_s for each in bounds]),
            weight=np.concatenate([each.weight for each in bounds]),
            footprint=Footprint.joined([each.footprint for each in bounds]),
        ),
        one_per_layout=one_per_layout,
        layers=layers,
        deadline=deadline,
    ), num_shapes
