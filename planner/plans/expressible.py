"""The best plan that a format can write, where it cannot write the best of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.plans.plan import Answer, Plan, ranked_plans
from planner.search.space.narrow import Narrowing
from planner.search.space.vocabulary import ONE_POLICY
from planner.spec.strategy import Strategy

TOP = 10
"""Plans tried under each."""

Emit = Callable[[Context, Strategy], object]
"""Raises ExpressError where the format cannot express a strategy."""


@dataclass(frozen=True, kw_only=True)
class Expressible:
    """A plan that can be written, and why the best one cannot."""

    plan: Plan
    refused: ExpressError | None
    """None: it is the best one."""


def expressible(result: Answer, emit: Emit) -> Expressible:
    """The first plan shown that can be written, else the best with one policy for all layers.

    Raises the ExpressError of the best plan where none of those can be written either.
    """
    refused: ExpressError | None = None
    for plan in result.plans:
        error = _refusal(plan, emit)
        if error is None:
            return Expressible(plan=plan, refused=refused)
        refused = refused or error
    assert refused is not None
    for plan in _of_one_policy(result):
        if _refusal(plan, emit) is None:
            return Expressible(plan=plan, refused=refused)
    raise refused


def _refusal(plan: Plan, emit: Emit) -> ExpressError | None:
    try:
        emit(plan.context, plan.strategy)
    except ExpressError as error:
        return error
    return None


def _of_one_policy(result: Answer) -> Sequence[Plan]:
    """Plans in whose layers nothing, or one policy, holds everywhere; the best first."""
    narrowings: list[Narrowing] = [
        replace(result.narrowing, kinds=(kind,))
        for kind in ONE_POLICY
        if kind in result.narrowing.kinds
    ]
    return ranked_plans(result.contexts, narrowings, top=TOP, aim=result.aim)
