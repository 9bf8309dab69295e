"""What of the framework's switches and optimizers would keep on the device what a plan offloads."""

from collections.abc import Iterator

from planner.cost.estimate import estimate
from planner.errors import InputError
from planner.plans.changes import (
    Change,
    Question,
    option_change,
    smaller_optimizers,
    switches,
)
from planner.plans.limits import NOTHING_OFFLOADED, narrowing_of
from planner.plans.plan import Answer, Plan
from planner.search.search import search

SEARCH_S = 2.0
"""For the best plan after one change; what is not found by then is not suggested."""


def _changes(question: Question) -> Iterator[Change]:
    """Switches, then optimizers, then both together."""
    yield from switches(question)
    yield from smaller_optimizers(question)
    for switch in switches(question):
        for smaller in smaller_optimizers(switch.question):
            yield option_change(smaller.question, *switch.options, *smaller.options)


def kept_on_device(answer: Answer) -> tuple[Change, Plan] | None:
    """The first change under which a plan without offload is no slower.

    None where the first plan offloads nothing, offload was asked for, or no change helps.
    """
    first = answer.plans[0]
    if first.strategy.offload == "none" or answer.aim.objective != "iteration_s":
        return None
    try:
        narrowing = narrowing_of((*answer.narrowing.texts, NOTHING_OFFLOADED))
    except InputError:
        return None
    for change in _changes((first.context, narrowing)):
        context, _ = change.question
        found = search(
            context,
            top=1,
            narrowing=narrowing,
            with_frontier=False,
            time_limit_s=answer.beside_s or SEARCH_S,
        ).plans
        if found and found[0].weighed_s <= (first.weighed_s or first.estimate.iter_time_s):
            (best,) = found
            made = estimate(context, best.strategy)
            plan = Plan(
                context=context, strategy=best.strategy, estimate=made, is_optimal=best.is_optimal
            )
            return change, plan
    return None
