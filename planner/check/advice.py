"""Whether another plan for the same batch on the same GPUs is clearly faster."""

from collections.abc import Iterator
from dataclasses import replace

from planner.check.layout import Layout
from planner.check.memory import in_words
from planner.frameworks.finding import Finding
from planner.plans.differences import differences
from planner.search.search import Found, search
from planner.search.space.narrow import read_narrowing
from planner.search.space.vocabulary import KINDS, ONE_POLICY
from planner.units import format_seconds

LEAST_FRACTION = 0.02
"""Plans that are less faster than this are not worth a change."""


def advice_findings(
    layout: Layout, iter_time_s: float, time_limit_s: float | None, *, one_policy: bool = False
) -> Iterator[Finding]:
    """A note with the best plan found, where it is faster by LEAST_FRACTION or more.

    With ``one_policy`` all layers of it are under the same policy.
    """
    sets = tuple((kind,) for kind in ONE_POLICY) if one_policy else (KINDS,)
    found = [plan for kinds in sets for plan in _best(layout, kinds, time_limit_s)]
    best = min(found, key=lambda plan: plan.iteration_s, default=None)
    if best is None:
        return
    faster = iter_time_s / best.iteration_s - 1.0
    if faster < LEAST_FRACTION:
        return
    changes = in_words(differences(layout.strategy, best.strategy))
    text = (
        f"{faster:.0%} faster for the same batch on the same GPUs "
        f"({format_seconds(iter_time_s)} to {format_seconds(best.iteration_s)}): {changes}"
    )
    yield layout.places.finding("advice.better_plan", text)


def _best(layout: Layout, kinds: tuple[str, ...], time_limit_s: float | None) -> tuple[Found, ...]:
    """The fastest plan on as many GPUs that leaves the framework's uncertainty free, if any."""
    narrowing = read_narrowing(where=(f"gpus == {layout.num_gpus}",))
    narrowing = replace(narrowing, kinds=kinds)
    result = search(
        layout.cautious, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=time_limit_s
    )
    return result.plans
