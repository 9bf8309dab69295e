"""The pipeline's schedule as a timeline, with the HBM of its stages below it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.cost.passes import (
    ACTIVATIONS,
    COMPUTE,
    PARAMETERS,
    RECOMPUTE,
    SHARDING,
    TRANSFER,
)
from planner.cost.timeline import WAIT, MemoryCurve, Slice
from planner.plans.iteration import Iteration
from planner.report.page.charts import COLOURS, drawn_svg, figure, legend, rectangles
from planner.report.page.html import Html
from planner.spec.strategy import Strategy
from planner.units import GIB, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Window = tuple[float, float]
WHOLE_SLICES = 110
"""Of a stage: up to so many are drawn from end to end, of more the start and the end."""
END_SLICES = 44
"""Drawn at either end, or more where a pipeline takes longer to fill."""
NUMBERED_STAGES = 16
NUMBER_INCHES = 0.16
"""Room that a micro-batch's number takes."""
PIECES_INCHES = 0.05
"""Narrower passes are drawn in their own colour alone."""
PIECES = {
    RECOMPUTE: "recompute",
    SHARDING: "gather",
    PARAMETERS: "host",
    ACTIVATIONS: "host",
    TRANSFER: "transfer",
    "tensor_parallel": "tensor",
    "context_parallel": "context",
    "expert_parallel": "expert",
}
"""Colours of what passes consist of; kernels have their pass's."""
PASSES = {"forward": "forward", "backward": "backward", "weight gradient": "weight"}
TITLES = {
    "forward": "forward",
    "backward": "backward",
    "weight": "weight gradient",
    "recompute": "recomputation",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert all-to-all",
    "gather": "ZeRO-3 gathers",
    "host": "host transfers",
    "transfer": "pipeline transfers",
    "tail": "gradient reduction, optimizer, step",
    "wait": "waiting",
}
GROUPS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "buffers and overhead": "buffers",
    "outputs kept": "outputs",
    "activations": "activations",
    "transient": "transient",
}
"""Colours of memory, from the bottom up."""


def colour_of(each: Slice, item: str = COMPUTE) -> str:
    """The role of what a slice spends on an item."""
    if each.kind == WAIT:
        return "wait"
    if not each.slot:
        return "tail"
    return PIECES.get(item) or PASSES.get(each.kind, "backward")


def pieces(each: Slice) -> Iterator[tuple[float, float, str]]:
    """Start, end and colour of what a slice consists of; of a forward run beside a backward one."""
    start = each.start_s
    last = len(each.seconds)
    for position, (item, seconds) in enumerate(each.seconds.items(), start=1):
        end = each.end_s if position == last else start + seconds
        yield start, end, colour_of(each, item)
        start = end
    if not each.seconds:
        yield each.start_s, each.end_s, colour_of(each)


def windows(found: Iteration, strategy: Strategy) -> tuple[Window, ...]:
    """What of an iteration is drawn: all of it, or its start and its end."""
    whole = found.timeline.iteration_s
    begin = min(slices[0].start_s for slices in found.timeline.stages)
    end = max(slices[-1].end_s for slices in found.timeline.stages)
    most = max(len(slices) for slices in found.timeline.stages)
    shown = max(END_SLICES, 3 * strategy.pp * strategy.vpp)
    length = whole * shown / most
    if most <= max(WHOLE_SLICES, 2 * shown) or 2.0 * length >= whole:
        return ((begin, end),)
    tail = end - max(each.end_s for slices in found.timeline.stages for each in slices if each.slot)
    return ((begin, begin + length), (end - length - tail, end))


def _timeline(axes: "Axes", found: Iteration, window: Window, inches: float) -> set[str]:
    """Every stage's slices in a window; the colours that were used."""
    spans: dict[str, list[tuple[float, float, float, float]]] = {role: [] for role in TITLES}
    start, end = window
    numbered = len(found.timeline.stages) <= NUMBERED_STAGES
    for stage, slices in enumerate(found.timeline.stages):
        for each in slices:
            if each.end_s <= start or each.start_s >= end:
                continue
            width = (each.end_s - each.start_s) / (end - start) * inches
            whole = ((each.start_s, each.end_s, colour_of(each)),)
            for left, right, role in pieces(each) if width > PIECES_INCHES else whole:
                spans[role].append((max(left, start), min(right, end), stage - 0.4, stage + 0.4))
            is_whole = start <= each.start_s and each.end_s <= end
            if numbered and each.slot and is_whole and width > NUMBER_INCHES:
                middle, number = (each.start_s + each.end_s) / 2.0, str(each.slot[0].micro_batch)
                axes.text(middle, stage, number, fontsize=6.0, ha="center", va="center")
    for role, those in spans.items():
        rectangles(axes, those, role)
    axes.set_ylim(len(found.timeline.stages) - 0.5, -0.5)
    return {role for role, those in spans.items() if those}


def _clipped(curve: MemoryCurve, window: Window) -> tuple[slice, list[float]]:
    """The part of a curve in a window, and its times, both ends included."""
    start, end = window
    first = max(bisect_right(curve.times_s, start) - 1, 0)
    last = min(bisect_left(curve.times_s, end), len(curve.times_s) - 1)
    times = [min(max(time, start), end) for time in curve.times_s[first : last + 1]]
    return slice(first, last), times


def _stepped(values: Sequence[float]) -> list[float]:
    """GiB at every time, the last value once more for the end."""
    return [value / GIB for value in (*values, *values[-1:])]


def _bands(axes: "Axes", curve: MemoryCurve, window: Window) -> None:
    """The groups of one stage above each other."""
    shown, times = _clipped(curve, window)
    low = [0.0] * len(times)
    for group, role in GROUPS.items():
        own = _stepped(curve.bytes_by_group[group][shown])
        high = [below + value for below, value in zip(low, own, strict=True)]
        axes.fill_between(times, low, high, step="post", facecolor=COLOURS[role], linewidth=0.0)
        low = high


def _lines(axes: "Axes", curves: Sequence[MemoryCurve], window: Window) -> None:
    """Every stage's total; the first stage darkest."""
    for curve in curves:
        shown, times = _clipped(curve, window)
        axes.step(
            times,
            _stepped(curve.total_bytes[shown]),
            where="post",
            color=COLOURS["accent"],
            alpha=1.0 - 0.75 * curve.stage / len(curves),
            linewidth=1.0,
        )


def schedule_chart(found: Iteration, strategy: Strategy, hbm_bytes: float, fullest: int) -> Html:
    """Timeline of every stage; HBM of the fullest stage by group, and of all stages."""
    shown = windows(found, strategy)
    stages, several = len(found.curves), len(found.curves) > 1
    heights = [max(0.7, min(0.3 * stages, 6.0)), 1.9, *([1.5] if several else [])]
    drawn = figure(sum(heights) + 1.2)
    widths = [end - start for start, end in shown]
    grid = drawn.subplots(
        len(heights),
        len(shown),
        sharex="col",
        sharey="row",
        squeeze=False,
        gridspec_kw={"height_ratios": heights, "width_ratios": widths},
    )
    used: set[str] = set()
    for column, window in enumerate(shown):
        inches = 8.6 * widths[column] / sum(widths)
        used |= _timeline(grid[0, column], found, window, inches)
        _bands(grid[1, column], found.curves[fullest], window)
        if several:
            _lines(grid[2, column], found.curves, window)
        for row in range(1, len(heights)):
            grid[row, column].axhline(
                hbm_bytes / GIB, color=COLOURS["limit"], linestyle="--", linewidth=0.9
            )
            grid[row, column].set_ylim(0.0, 1.06 * hbm_bytes / GIB)
        grid[0, column].set_xlim(*window)
        grid[-1, column].set_xlabel("seconds")
    titles = ("stage", f"GiB, stage {fullest}", "GiB, all stages")
    for row, title in enumerate(titles[: len(heights)]):
        grid[row, 0].set_ylabel(title)
    step = -(-stages // 16)
    grid[0, 0].set_yticks(range(0, stages, step))
    legend(
        drawn,
        {role: title for role, title in TITLES.items() if role in used}
        | {
            role: group
            for group, role in GROUPS.items()
            if any(found.curves[fullest].bytes_by_group[group])
        },
    )
    return drawn_svg(
        drawn,
        "schedule",
        title="What every pipeline stage does during one iteration, and its HBM",
        caption=_caption(found, shown),
    )


def _caption(found: Iteration, shown: Sequence[Window]) -> str:
    """What is drawn, and how it stands to the estimate."""
    drawn = found.timeline
    extent = "One iteration"
    if len(shown) > 1:
        parts = " and ".join(
            f"the {name} {format_seconds(end - start)}"
            for name, (start, end) in zip(("first", "last"), shown, strict=True)
        )
        extent = f"Of one iteration ({format_seconds(drawn.iteration_s)}) {parts}"
    off = drawn.simulated_s / drawn.modelled_s - 1.0
    how = "stages wait at its end" if off <= 0.0 else "slices are drawn that much shorter"
    against = "" if abs(off) < 5e-4 else f" ({off:+.1%} of the estimate's; {how})"
    return (
        f"{extent}, from an event simulation of the schedule{against}. Numbers are micro-batches. "
        "What shows of communication is drawn in one piece at the start or end of its pass, though "
        "it comes layer by layer, and not apart in passes too narrow for it; what hides is not "
        "drawn. Dashed: HBM of the device. A stage's highest point is its peak in the plan."
    )
