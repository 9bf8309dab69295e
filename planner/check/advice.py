"""Whether another plan for the same batch on the same GPUs is clearly faster."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from planner.check.layout import Layout
from planner.check.memory import in_words
from planner.cost.context import Context
from planner.formats.finding import Finding
from planner.formats.format import Format
from planner.plans.differences import differences
from planner.search.ranking.handicaps import used
from planner.search.search import Found, search
from planner.search.space.narrow import read_narrowing
from planner.units import format_seconds

LEAST_FRACTION = 0.02
"""Plans that are less faster than this are not worth a change."""


def advice_findings(
    layout: Layout, iter_time_s: float, time_limit_s: float | None, kind: Format | None = None
) -> Iterator[Finding]:
    """A note with the best plan found, where it is faster by LEAST_FRACTION or more.

    It is the one that a search ranks first, of those that the file's format can say, without
    ``kind`` of all that the framework can; and it is ranked before the file's own as clearly.
    """
    context = replace(layout.cautious, weighs_evidence=True)
    context = kind.narrowed(context) if kind else context
    best = _best(context, layout.num_gpus, time_limit_s)
    if best is None:
        return
    weighed_s = iter_time_s * prod(used(context, layout.strategy).values())
    faster = iter_time_s / best.iteration_s - 1.0
    if min(faster, weighed_s / best.weighed_s - 1.0) < LEAST_FRACTION:
        return
    changes = in_words(differences(layout.strategy, best.strategy))
    text = (
        f"{faster:.0%} faster for the same batch on the same GPUs "
        f"({format_seconds(iter_time_s)} to {format_seconds(best.iteration_s)}): {changes}"
    )
    yield layout.places.finding("advice.better_plan", text)


def _best(context: Context, num_gpus: int, time_limit_s: float | None) -> Found | None:
    """The best plan on as many GPUs that leaves the framework's uncertainty free, if any."""
    narrowing = read_narrowing(where=(f"gpus == {num_gpus}",))
    result = search(
        context, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=time_limit_s
    )
    return next(iter(result.plans), None)
