"""The question that a saved plan answers, as a search asks it."""

from dataclasses import replace

from planner.cost.context import Context
from planner.cost.module_sets import module_sets
from planner.plans.plan import Plan
from planner.spec.strategy import SCHEDULES


def context_around(plan: Plan) -> Context:
    """The plan's context with all that a search may choose.

    A plan file does not say how its search was narrowed.
    """
    context, support = plan.context, plan.context.traits.support
    return replace(
        context,
        placements=support.placements,
        schedules=tuple(name for name in SCHEDULES if name in support.schedules),
        module_sets=module_sets(context),
        weighs_evidence=True,
    )
