"""What of the framework's own switches would keep on the device what a plan moves to the host."""

from planner.cost.estimate import estimate
from planner.errors import InputError
from planner.plans.changes import Change, switches
from planner.plans.limits import NOTHING_OFFLOADED, narrowing_of
from planner.plans.plan import Answer, Plan
from planner.search.search import search


def kept_on_device(answer: Answer) -> tuple[Change, Plan] | None:
    """The first switch, in the framework's order, under which a plan without offload is no slower.

    None where the first plan offloads nothing, offload was asked for, or no switch helps.
    """
    first = answer.plans[0]
    if first.strategy.offload == "none" or answer.aim.objective != "iteration_s":
        return None
    try:
        narrowing = narrowing_of((*answer.narrowing.texts, NOTHING_OFFLOADED))
    except InputError:
        return None
    for change in switches((first.context, narrowing)):
        context, _ = change.question
        found = search(
            context,
            top=1,
            narrowing=narrowing,
            with_frontier=False,
            time_limit_s=answer.beside_s,
        ).plans
        if found and found[0].weighed_s <= (first.weighed_s or first.estimate.iter_time_s):
            (best,) = found
            made = estimate(context, best.strategy)
            plan = Plan(
                context=context, strategy=best.strategy, estimate=made, is_optimal=best.is_optimal
            )
            return change, plan
    return None
