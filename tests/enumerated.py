"""All legal strategies of a small space at once, as no search holds them."""

from typing import NamedTuple

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING, Enumeration
from planner.spec.strategy import StrategyColumns


class Space(NamedTuple):
    """Legal strategies, and how many branches each rule dropped."""

    strategy: StrategyColumns
    dropped: dict[str, int]


def enumerate_space(
    context: Context, narrowing: Narrowing = EVERYTHING, *, uses_all: bool = False
) -> Space:
    """Every legal strategy. ``uses_all`` leaves out layouts of a part of the cluster."""
    enumeration = Enumeration(context=context, narrowing=narrowing, uses_all=uses_all)
    return Space(enumeration.strategies_of(enumeration.shapes())[0], enumeration.dropped)
