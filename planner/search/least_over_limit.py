"""The layout nearest to fitting: the one that needs least of a limit it cannot keep.

Per strategy a bound from the relaxed stage problem (the least limit under which bounds leave it),
in columns; then strategies in the order of their bounds, each decided exactly.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable
from planner.cost.stage import StageModel
from planner.search.feasible import SearchTimeoutError, first_of
from planner.search.ranking.pricing import Pricing
from planner.search.search import Found
from planner.search.space.narrow import Narrowing
from planner.search.space.policies import least_memory_policy, policies_of
from planner.search.space.shapes import shape_bounds
from planner.search.space.space import Enumeration, joined, take
from planner.search.stages.bounds import feasible, group_by_pp
from planner.spec.strategy import StrategyColumns, gpus_of_replica
from planner.units import Array

MOST_FACTOR = 2.0**12  # times the limit; what needs more is not looked for
CHUNK_ROWS = 2**13  # strategies bounded at once, so that memory stays bounded
CLOSE = 0.02  # of the gap, up to which the least is looked for

# The context with so many times the limit.
Widened = Callable[[float], Context]
# A stage model, with so many times the limit in every row.
Limited = Callable[[StageModel, Array], StageModel]


@dataclass(frozen=True, kw_only=True)
class LeastOverLimit:
    """A layout that fits with ``factor`` times the limit."""

    fit: Found
    factor: float
    is_least: bool  # True if no other layout fits with the gap reduced by the fraction CLOSE


def least_over_limit(
    narrowing: Narrowing, widened: Widened, limited: Limited, *, deadline: float | None = None
) -> LeastOverLimit | None:
    """The layout that fits with the least more of a limit; None where none does.

    Nothing must fit with the limit as it is. After the deadline, the least of a sample.
    """
    enumeration = Enumeration(context=widened(1.0), narrowing=narrowing)
    if not policies_of(enumeration.context, narrowing):
        return None
    shapes = joined(list(enumeration.listed(deadline)))
    order = np.lexsort((-gpus_of_replica(shapes), shapes["micro_batch"]))

    first = partial(_first, narrowing, widened)
    # Layouts of the first shapes bound the factor from above.
    sample = _least(enumeration, limited, take(shapes, order[:128]))
    upper = 1.0 + (1.0 + CLOSE) * (float(sample[1].min(initial=np.inf)) - 1.0)
    states = {name: list(enumeration.values[name]) for name in ("zero_stage", "offload")}
    while upper <= MOST_FACTOR:
        context = replace(widened(upper), placements=enumeration.context.placements)
        bounds = shape_bounds(context, shapes, narrowing.kinds, states)
        possible = take(shapes, np.flatnonzero(bounds.can_fit))
        try:
            strategy, factors = _least(enumeration, limited, possible, deadline)
        except SearchTimeoutError:
            found = first(*sample, MOST_FACTOR, solves=False)
            return found and replace(found, is_least=False)
        try:
            found = first(strategy, factors, upper, deadline=deadline)
        except SearchTimeoutError:
            found = first(strategy, factors, upper, solves=False)
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
    strategy = enumeration.strategies(shapes)
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
            low, high = np.zeros(len(part)), np.full(len(part), np.log(MOST_FACTOR))
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
) -> LeastOverLimit | None:
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
        fit = first_of(widened(factor), narrowing, tried, solves=solves, deadline=deadline)
        if fit is not None:
            is_least = factor - proved <= CLOSE * (factor - 1.0)
            return LeastOverLimit(fit=fit, factor=factor, is_least=is_least)
        if factor >= upper:
            return None
        proved = factor if solves else proved
        step *= 2.0
