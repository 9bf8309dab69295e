"""Whether another plan for the same batch on the same GPUs is clearly faster."""

from collections.abc import Iterator

from planner.check.layout import Layout
from planner.check.memory import in_words
from planner.frameworks.finding import Finding
from planner.plans.differences import differences
from planner.search.search import Found, search
from planner.search.space.narrow import read_narrowing
from planner.units import format_seconds

LEAST_FRACTION = 0.02
"""Plans that are less faster than this are not worth a change."""


def advice_findings(
    layout: Layout, iter_time_s: float, time_limit_s: float | None
) -> Iterator[Finding]:
    """A note with the best plan found, where it is faster by LEAST_FRACTION or more."""
    best = _best(layout, time_limit_s)
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


def _best(layout: Layout, time_limit_s: float | None) -> Found | None:
    """The fastest plan on as many GPUs that leaves the framework's uncertainty free."""
    narrowing = read_narrowing(where=(f"gpus == {layout.num_gpus}",))
    result = search(
        layout.cautious, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=time_limit_s
    )
    return result.plans[0] if result.plans else None
