"""State of a best-first search: shapes, the candidates of those opened, their splits."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.search.ranking.candidates import Bounded, Candidates
from planner.search.ranking.penalties import degree_uses, evidence_penalty, sharding_uses
from planner.search.ranking.pricing import Pricing
from planner.search.ranking.solving import Solving
from planner.search.space.policies import offered, policies_of
from planner.search.space.shapes import Footprint, as_strategies, shape_bounds
from planner.search.space.space import Columns, Enumeration, joined, take
from planner.search.stages.bounds import bound_any_split_s, may_fit
from planner.spec.strategy import SHAPE, StrategyColumns, gpus_of
from planner.units import Array, Index, Mask

# Shapes that differ in nothing else are a family: bounded together and opened as one.
IN_FAMILY = ("micro_batch", "sequence_parallel")


@dataclass(kw_only=True)
class Shapes:
    """All legal shapes, and families of them with bounds of what was not priced yet."""

    columns: Columns  # Of every shape; those of a family follow one another
    least_s: Array  # Its bound, not weighed
    footprint: Footprint
    members: Index  # First shape of every family, and of the next, 2 x C
    lower_s: Array  # Weighed bound of what was not priced yet; infinite where all was
    weight: Array  # Factor that the bounds already include
    penalty: Array  # The part of it that is a penalty

    def __post_init__(self) -> None:
        # GPUs of every group, ascending.
        num_gpus = gpus_of(self.columns)[self.members[0]]
        self.gpus: Array = np.array(np.flatnonzero(np.bincount(num_gpus)))
        self.group = np.searchsorted(self.gpus, num_gpus)
        # The largest limits under which each was opened.
        self.opened_s = np.full((3, len(self.group)), -np.inf)

    def below(self, limits_s: Array) -> Index:
        """Families that may hold something below their group's limits that was not priced yet.

        ``limits_s``, 3 x groups: of weighed time, of time, and of time with penalties.
        """
        below_s = np.where(limits_s[1:].min(axis=0) > 0, limits_s[0], -np.inf)
        among = np.flatnonzero(self.lower_s < below_s[self.group])
        is_higher = limits_s[:, self.group[among]] > self.opened_s[:, among]
        return np.asarray(among[is_higher.any(axis=0)])

    def open(self, families: Index, limits_s: Array) -> tuple[Index, Index]:
        """Note under which limits families are opened; return their shapes, and whose each is."""
        now = limits_s[:, self.group[families]]
        self.opened_s[:, families] = np.maximum(self.opened_s[:, families], now)
        self.lower_s[families] = np.inf
        first, stop = self.members[:, families]
        number = stop - first
        before = np.cumsum(number) - number
        shapes = np.arange(number.sum()) + np.repeat(first - before, number)
        return shapes, np.repeat(families, number)

    def kept(
        self, family: Index, least_s: Array, weight: Array, penalty: Array, before_s: Array
    ) -> tuple[Index, Mask]:
        """Rows below the limits their family is opened under, and which are new; notes the rest."""
        is_kept = least_s < kept_below_s(self.opened_s[:, family], weight, penalty)
        np.minimum.at(self.lower_s, family[~is_kept], least_s[~is_kept])
        is_new = least_s >= kept_below_s(before_s, weight, penalty)
        return np.flatnonzero(is_kept), is_new[is_kept]


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
    num_configurations: int = 0  # Legal strategies of the shapes opened
    num_priced: int = 0
    num_fitting: int = 0

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
        """Families worth opening."""
        return self.shapes.below(self._limits_s(limit_s))

    def _limits_s(self, limit_s: Array) -> Array:
        """All limits of groups, 3 x groups."""
        return np.stack([limit_s, self.candidates.longest_s, self.candidates.tied_s])

    def open(self, families: Index, limit_s: Array) -> None:
        """Price all strategies of these families; keep what can fit below its group's limit.

        Where a limit sets some aside, the family stays closed with the least of their bounds: a
        later limit may ask for them.
        """
        known = self.shapes
        opened_s = known.opened_s.copy()
        shape, family = known.open(families, self._limits_s(limit_s))
        weight = known.weight[family]
        penalty = known.penalty[family]
        least_s = known.least_s[shape] * weight
        rows, is_new = known.kept(family, least_s, weight, penalty, opened_s[:, family])
        shape, family = shape[rows], family[rows]
        strategy, place = self.enumeration.strategies_of(take(known.columns, shape))
        self.num_configurations += int(is_new[place].sum())
        holds = known.footprint.can_fit(strategy, shape[place])
        strategy, place = strategy.take(holds), place[holds]
        shape, family = shape[place], family[place]
        # What the bound of the shape sets aside under the strategy's own weight is not priced.
        own_weight, penalty = self.pricing.weights(strategy)
        weights = map(self.pricing.policy_weight, self.candidates.policies)
        weight = own_weight * min(weights, default=1.0)
        least_s = known.least_s[shape] * weight
        rows, is_new = known.kept(family, least_s, weight, penalty, opened_s[:, family])
        strategy, family = strategy.take(rows), family[rows]
        own_weight, penalty = own_weight[rows], penalty[rows]
        self.num_priced += int(is_new.sum())
        kept: list[Bounded] = []
        size = 2**16
        for start in range(0, len(strategy), size):
            part = slice(start, start + size)
            found, is_fitting = self._screened(
                strategy.take(part), family[part], own_weight[part], penalty[part], opened_s
            )
            kept += found
            self.num_fitting += int(np.count_nonzero(is_fitting & is_new[part]))
        self.candidates.add(kept)

    def _screened(
        self,
        strategy: StrategyColumns,
        family: Index,
        own_weight: Array,
        own_penalty: Array,
        opened_s: Array,
    ) -> tuple[list[Bounded], Mask]:
        """Strategies under each policy that bounds let fit below a limit, and not ``opened_s``.

        Limits are those of the strategies' families. What is set aside is noted there. And which
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
            limit = kept_below_s(shapes.opened_s[:, family], weight, penalty)
            least_s = free_s * weight
            possible = offered(model, policy)
            is_below = least_s[possible] < limit[possible]
            below = possible[is_below]
            aside = possible[~is_below]
            np.minimum.at(shapes.lower_s, family[aside], least_s[aside])
            if not len(below):
                continue
            bound = pricing.price(model.take(below), policy, weight[below]).bound
            lower = np.maximum(bound_any_split_s(bound), least_s[below])
            kept = lower < limit[below]
            kept &= may_fit(bound, limit[below])
            dropped_s = np.maximum(lower, limit[below])
            left_s = np.where(kept, np.inf, dropped_s)
            np.minimum.at(shapes.lower_s, family[below], left_s)
            earlier = kept_below_s(opened_s[:, family[below]], weight[below], penalty[below])
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
    known = exploration.shapes
    kept = np.isin(known.gpus[known.group], num_gpus)
    return replace(
        exploration,
        enumeration=replace(exploration.enumeration, context=context, dropped={}),
        shapes=weighed_shapes(
            context,
            exploration.enumeration.values,
            (known.columns, known.least_s, known.footprint),
            known.members[:, kept],
            known.penalty[kept],
        ),
    )


def weighed_shapes(
    context: Context,
    values: Mapping[str, Sequence[int]],
    shapes: tuple[Columns, Array, Footprint],
    members: Index,
    penalty: Array | None = None,  # The part of the weight that is one, if not all of it
) -> Shapes:
    """The families that can fit, their bounds under the least weight with which they do."""
    columns, least_s, footprint = shapes
    first = members[0]
    families = take(columns, first) | dict.fromkeys(IN_FAMILY, np.ones_like(first))
    # What is least among the shapes of every family.
    bounds = np.pad(np.stack([least_s, footprint.kept_bytes]), [(0, 0), (0, 1)])
    bound_s, kept_bytes = np.minimum.reduceat(bounds, members.T.ravel(), axis=1)[:, ::2]
    least = footprint.take(first).but(kept_bytes=kept_bytes)
    weight = evidence_penalty(context, as_strategies(context, families), degree_uses)
    weight *= least.least_weight(
        families, values, lambda each: evidence_penalty(context, each, sharding_uses)
    )
    can_fit = np.isfinite(weight)
    return Shapes(
        columns=columns,
        least_s=least_s,
        footprint=footprint,
        members=members[:, can_fit],
        lower_s=(bound_s * weight)[can_fit],
        weight=weight[can_fit],
        penalty=(weight if penalty is None else penalty)[can_fit],
    )


def of_strategies(enumeration: Enumeration, strategy: StrategyColumns) -> Exploration:
    """No shapes to open; these strategies, under every policy, to refine and solve."""
    free = np.zeros(len(strategy))
    found = Exploration(
        enumeration=enumeration,
        layers=LayerTable(context=enumeration.context),
        shapes=Shapes(
            columns={name: getattr(strategy, name) for name in SHAPE},
            least_s=free,
            footprint=Footprint(
                context=enumeration.context, dense_params=free, expert_params=free, kept_bytes=free
            ),
            members=np.array([range(len(free)), range(1, len(free) + 1)]),
            lower_s=free,
            weight=free + 1.0,
            penalty=free + 1.0,
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
    others = (columns[name] for name in SHAPE if name not in IN_FAMILY)
    first = np.flatnonzero(np.any([np.diff(each, prepend=-1) for each in others], axis=0))
    members = np.stack([first, np.append(first, len(least_s))[1:]])
    return Exploration(
        enumeration=enumeration,
        shapes=weighed_shapes(context, enumeration.values, (columns, least_s, footprint), members),
        one_per_layout=one_per_layout,
        layers=layers,
        deadline=deadline,
    ), len(columns["tp"])
