"""Where time and memory go, stage by stage, and the frontier of time over GPUs."""

import math
from collections.abc import Mapping, Sequence

from planner.cost.timeline import GROUPS as MEMORY_GROUPS
from planner.cost.timeline import MemoryCurve
from planner.plans.iteration import Iteration
from planner.plans.plan import Plan
from planner.report.page.charts import COLOURS, drawn_svg, figure, legend, rectangles
from planner.report.page.html import Html
from planner.report.page.schedule import GROUPS, TITLES, pieces
from planner.report.plot import library, short_number
from planner.units import GIB

BAR = 0.38
MAX_TICKED = 16


def stage_seconds(found: Iteration, stage: int) -> dict[str, float]:
    """Seconds of a stage's iteration by colour of TITLES; they sum to it."""
    total = dict.fromkeys(TITLES, 0.0)
    for each in found.timeline.stages[stage]:
        for start, end, role in pieces(each):
            total[role] += end - start
    return total


def _stacked(
    name: str,
    rows: Sequence[Mapping[str, float]],
    titles: Mapping[str, str],
    words: tuple[str, str, str],
    limit: float | None = None,
) -> Html:
    """A bar per stage, its parts in a row; ``words`` are the axis, the title and the caption."""
    drawn = figure(max(0.9, min(0.32 * len(rows), 7.0)) + 1.0)
    axes = drawn.add_subplot()
    spans: dict[str, list[tuple[float, float, float, float]]] = {role: [] for role in titles}
    for stage, parts in enumerate(rows):
        left = 0.0
        for role in titles:
            spans[role].append((left, left + parts[role], stage - BAR, stage + BAR))
            left += parts[role]
    for role, those in spans.items():
        rectangles(axes, [each for each in those if each[1] > each[0]], role)
    longest = max(sum(parts.values()) for parts in rows)
    axes.set_xlim(0.0, 1.02 * max(longest, limit or 0.0))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(0, len(rows), -(-len(rows) // MAX_TICKED)))
    axes.set_ylabel("stage")
    axis, title, caption = words
    axes.set_xlabel(axis)
    if limit is not None:
        axes.axvline(limit, color=COLOURS["limit"], linestyle="--", linewidth=0.9)
    used = {role: text for role, text in titles.items() if any(parts[role] > 0.0 for parts in rows)}
    legend(drawn, used)
    return drawn_svg(drawn, name, title=title, caption=caption)


def waiting_text(found: Iteration) -> str:
    """Which stage waits most, and how long."""
    whole = found.timeline.iteration_s
    waits = [stage_seconds(found, stage)["wait"] / whole for stage in range(len(found.curves))]
    if len(waits) == 1:
        return ""
    most = waits.index(max(waits))
    mean = sum(waits) / len(waits)
    return f"Stages wait {mean:.1%} of it in the mean, stage {most} most: {waits[most]:.1%}."


def time_bars(found: Iteration) -> Html:
    """An iteration of every stage by what it does."""
    rows = [stage_seconds(found, stage) for stage in range(len(found.curves))]
    caption = (
        "One iteration of every stage. Waiting is for other stages: the pipeline's bubble, stages "
        "of unequal work and the slowest tail."
    )
    if len(rows) == 1:
        caption = "One iteration; all ranks do the same."
    return _stacked("time", rows, TITLES, ("seconds", "Seconds of an iteration by stage", caption))


def peak_groups(curve: MemoryCurve) -> dict[str, float]:
    """GiB of a stage's fullest moment by colour."""
    totals = curve.total_bytes
    fullest = totals.index(max(totals))
    return {GROUPS[group]: curve.bytes_by_group[group][fullest] / GIB for group in MEMORY_GROUPS}


def memory_bars(found: Iteration, hbm_bytes: float) -> Html:
    """Every stage's fullest moment by group."""
    titles = {role: group for group, role in GROUPS.items()}
    caption = "A rank of every stage at its fullest moment. Dashed: HBM of the device."
    words = ("GiB", "GiB of a rank by stage", caption)
    rows = [peak_groups(curve) for curve in found.curves]
    return _stacked("memory", rows, titles, words, limit=hbm_bytes / GIB)


def _doublings(gpus: Sequence[int]) -> list[float]:
    """Powers of two from the fewest to the most."""
    powers = range(math.floor(math.log2(min(gpus))), math.ceil(math.log2(max(gpus))) + 1)
    return [2.0**power for power in powers if min(gpus) <= 2.0**power <= max(gpus)]


def steps(lower: Sequence[float], upper: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... among the values; both ends where they are closer than that."""
    powers = range(math.floor(math.log10(min(lower))), math.ceil(math.log10(max(upper))) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    found = [tick for tick in every if min(lower) <= tick <= max(upper)]
    return found if len(found) > 1 else sorted({min(lower), max(upper)})


def frontier_chart(points: Sequence[Plan], own: Plan) -> Html:
    """Seconds of an iteration over GPUs, both logarithmic, with the range of runs like it."""
    drawn = figure(3.2)
    axes = drawn.add_subplot()
    points = sorted(points, key=lambda plan: plan.strategy.num_gpus)
    gpus = [plan.strategy.num_gpus for plan in points]
    seconds = [plan.estimate.iter_time_s for plan in points]
    lower = [plan.estimate.iter_time_s_lower for plan in points]
    upper = [plan.estimate.iter_time_s_upper for plan in points]
    accent = COLOURS["accent"]
    axes.fill_between(gpus, lower, upper, color=accent, alpha=0.15, linewidth=0.0)
    axes.plot(gpus, seconds, color=accent, marker="o", markersize=3.5, linewidth=1.2)
    axes.plot(
        [own.strategy.num_gpus],
        [own.estimate.iter_time_s],
        color=COLOURS["recompute"],
        marker="o",
        markersize=8.0,
        linestyle="none",
    )
    for axis, ticks in ((axes.xaxis, _doublings(gpus)), (axes.yaxis, steps(lower, upper))):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_minor_locator(library("matplotlib.ticker").NullLocator())
        axis.set_ticks(ticks, [short_number(tick) for tick in ticks])
    axes.set_xlabel("GPUs")
    axes.set_ylabel("seconds per iteration")
    axes.grid(visible=True, color=COLOURS["rule"], linewidth=0.6)
    caption = (
        "The fastest plan of every useful number of GPUs for the same batch; shaded: where eight "
        "of ten runs like it would lie. The large point is the plan of this page."
    )
    title = "Seconds per iteration over the number of GPUs"
    return drawn_svg(drawn, "frontier", title=title, caption=caption)
