"""Charts of the page as SVG text; colours are names of its style sheet, which knows the theme."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from planner.answers.base import Plan
from planner.answers.execution import Iteration
from planner.cost.passes import (
    ACTIVATIONS,
    COMPUTE,
    PARAMETERS,
    RECOMPUTE,
    SHARDING,
    TRANSFER,
)
from planner.cost.timeline import GROUPS as MEMORY_GROUPS
from planner.cost.timeline import WAIT, MemoryCurve, Slice
from planner.spec.strategy import Strategy
from planner.units import GIB, format_seconds

# Of a timeline, of its labels, and a panel of memory, in SVG units.
WIDTH, LEFT, PANEL = 960.0, 46.0, 170.0
MAX_TICKS = 9
# Colours of what passes consist of; kernels have their pass's.
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
PASSES = {"forward": "forward", "backward": "backward", "weight gradient": "weight"}
TIME_TITLES = {
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
# Colour of every group of memory, from the bottom up.
MEMORY_COLOURS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "buffers and overhead": "buffers",
    "outputs kept": "outputs",
    "activations": "activations",
    "transient": "transient",
}
MEMORY_TITLES = {colour: group for group, colour in MEMORY_COLOURS.items()}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing or rows of bars, and what is written around it."""

    title: str
    caption: str
    legend: Mapping[str, str]  # what each colour stands for
    svg: str = ""
    # What stands beside each at either side, its lengths by colour.
    bars: Sequence[tuple[str, str, Mapping[str, float]]] = ()
    end: float = 1.0  # how long a bar may be
    limit: float = 0.0  # where a stroke stands in every bar; 0: nowhere


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of the iteration, and where it is drawn."""

    start_s: float
    end_s: float
    left: float
    units_per_s: float

    def x(self, time_s: float) -> float:
        """Return the horizontal position of a time; times outside lie at the edge."""
        inside_s = min(max(time_s, self.start_s), self.end_s)
        return self.left + (inside_s - self.start_s) * self.units_per_s


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Panel in which memory is drawn."""

    floor: float  # where nothing is held
    most: float  # bytes of the device, drawn near the top

    def y(self, num_bytes: float) -> float:
        """Return the vertical position of a number of bytes."""
        return self.floor - num_bytes * PANEL / (1.06 * self.most)


def _svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    attributes = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}"'
    return f"<svg {attributes}>{''.join(parts)}</svg>"


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _line(points: Iterable[tuple[float, float]], style: str) -> str:
    return f'<polyline style="fill:none;{style}" points="{_points(points)}"/>'


def _area(
    above: Iterable[tuple[float, float]], below: Sequence[tuple[float, float]], style: str
) -> str:
    """Return the SVG area between two lines."""
    return f'<polygon style="{style}" points="{_points((*above, *reversed(below)))}"/>'


def _text(x: float, y: float, text: str, kind: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _colour(each: Slice, item: str = COMPUTE) -> str:
    if each.kind == WAIT:
        return "wait"
    if not each.slot:
        return "tail"
    return PIECES.get(item) or PASSES.get(each.kind, "backward")


def pieces(each: Slice) -> Iterator[tuple[float, float, str]]:
    """Start, end and colour of what a slice consists of."""
    start = each.start_s
    for item, seconds in each.seconds.items():
        yield start, start + seconds, _colour(each, item)
        start += seconds
    if not each.seconds:
        yield each.start_s, each.end_s, _colour(each)


def stage_seconds(found: Iteration, stage: int) -> dict[str, float]:
    """Seconds of a stage's iteration by colour; they sum to it."""
    total = dict.fromkeys(TIME_TITLES, 0.0)
    for each in found.timeline.stages[stage]:
        for start, end, colour in pieces(each):
            total[colour] += end - start
    return total


def peak_groups(curve: MemoryCurve) -> dict[str, float]:
    """GiB of a stage's fullest moment by colour."""
    totals = curve.total_bytes
    fullest = totals.index(max(totals))
    return {
        MEMORY_COLOURS[group]: curve.bytes_by_group[group][fullest] / GIB for group in MEMORY_GROUPS
    }


def _used(titles: Mapping[str, str], rows: Sequence[Mapping[str, float]]) -> dict[str, str]:
    return {name: title for name, title in titles.items() if any(row.get(name, 0) for row in rows)}


def time_bars(found: Iteration) -> Chart:
    """An iteration of every stage by what it does."""
    rows = [stage_seconds(found, stage) for stage in range(len(found.curves))]
    longest = max(sum(row.values()) for row in rows)
    caption = (
        "One iteration of every stage. Waiting is for other stages: the pipeline's bubble, stages "
        "of unequal work and the slowest tail."
    )
    return Chart(
        title="Seconds of an iteration by stage",
        caption=caption if len(rows) > 1 else "One iteration; all ranks do the same.",
        legend=_used(TIME_TITLES, rows),
        bars=[
            (f"stage {stage}", f"waits {row['wait'] / longest:.1%}", row)
            for stage, row in enumerate(rows)
        ],
        end=longest,
    )


def memory_bars(found: Iteration, hbm_bytes: float) -> Chart:
    """Every stage's fullest moment by group."""
    rows, limit = [peak_groups(curve) for curve in found.curves], hbm_bytes / GIB
    return Chart(
        title="GiB of a rank by stage",
        caption=f"A rank of every stage at its fullest moment; stroke: HBM of {limit:,.1f} GiB.",
        legend=_used(MEMORY_TITLES, rows),
        bars=[
            (f"stage {stage}", f"{sum(row.values()):,.1f} GiB", row)
            for stage, row in enumerate(rows)
        ],
        end=max(limit, *(sum(row.values()) for row in rows)),
        limit=limit,
    )


def windows(found: Iteration, strategy: Strategy) -> tuple[tuple[float, float], ...]:
    """Return the windows of an iteration to draw: all of it, or its start and its end."""
    stages = found.timeline.stages
    whole = found.timeline.iteration_s
    begin = min(slices[0].start_s for slices in stages)
    end = max(slices[-1].end_s for slices in stages)
    most = max(len(slices) for slices in stages)
    # Drawn at either end: more where a pipeline takes longer to fill.
    shown = max(44, 3 * strategy.pp * strategy.vpp)
    length = whole * shown / most
    if most <= max(110, 2 * shown) or 2.0 * length >= whole:
        return ((begin, end),)
    tail = end - max(each.end_s for slices in stages for each in slices if each.slot)
    return ((begin, begin + length), (end - length - tail, end))


def _placed(shown: Sequence[tuple[float, float]]) -> Iterator[Window]:
    left, gap = LEFT, 14.0
    room = WIDTH - LEFT - 10.0 - gap * (len(shown) - 1)
    units_per_s = room / sum(end - start for start, end in shown)
    for start, end in shown:
        yield Window(start_s=start, end_s=end, left=left, units_per_s=units_per_s)
        left += (end - start) * units_per_s + gap


def _timeline(stages: Sequence[Sequence[Slice]], window: Window, height: float) -> Iterator[str]:
    """Every stage's slices in a window, a row each; micro-batches where there is room."""
    boxes: dict[str, list[str]] = {colour: [] for colour in TIME_TITLES}
    numbers = []
    for stage, slices in enumerate(stages):
        top, bottom = stage * height + 1.0, (stage + 1) * height - 1.0
        for each in slices:
            if each.end_s <= window.start_s or each.start_s >= window.end_s:
                continue
            left, right = window.x(each.start_s), window.x(each.end_s)
            # Narrower passes are drawn in their own colour alone.
            whole = ((each.start_s, each.end_s, _colour(each)),)
            for start, end, colour in pieces(each) if right - left > 5.0 else whole:
                x, to = window.x(start), window.x(end)
                if to > x:
                    boxes[colour].append(f"M{x:.2f} {top:.2f}H{to:.2f}V{bottom:.2f}H{x:.2f}Z")
            # There is room for the number of a micro-batch.
            if each.slot and right - left > 15.0 and height > 12.0:
                number = str(each.slot[0].micro_batch)
                numbers.append(_text((left + right) / 2.0, bottom - height / 4.0, number, "number"))
    for colour, drawn in boxes.items():
        if drawn:
            yield f'<path style="fill:var(--{colour})" d="{"".join(drawn)}"/>'
    yield from numbers


def _steps(
    curve: MemoryCurve, values: Sequence[float], panel: Panel, window: Window
) -> list[tuple[float, float]]:
    """A curve that holds each value up to the next moment, as points in a window."""
    first = max(bisect_right(curve.times_s, window.start_s) - 1, 0)
    last = min(bisect_left(curve.times_s, window.end_s), len(curve.times_s) - 1)
    return [
        (window.x(time_s), panel.y(values[position]))
        for position in range(first, last)
        for time_s in curve.times_s[position : position + 2]
    ]


def schedule_chart(found: Iteration, strategy: Strategy, hbm_bytes: float, fullest: int) -> Chart:
    """Timeline of every stage; below it HBM of the fullest stage by group, and of all stages."""
    shown, curves = windows(found, strategy), found.curves
    stages, drawn = found.timeline.stages, found.timeline
    row = min(max(320.0 / len(stages), 5.0), 36.0)
    panels = [
        Panel(floor=row * len(stages) + (16.0 + PANEL) * number, most=hbm_bytes)
        for number in range(1, 1 + min(len(stages), 2))
    ]
    step = max(1, math.ceil(14.0 / row))
    parts = [
        _text(LEFT - 6.0, (stage + 0.5) * row + 4.0, str(stage), "end")
        for stage in range(0, len(stages), step)
    ]
    for panel in panels:
        parts.append(_text(LEFT - 6.0, panel.floor, "0", "end"))
        limit = panel.y(hbm_bytes) + 4.0
        parts.append(_text(LEFT - 6.0, limit, f"{hbm_bytes / GIB:.0f} GiB", "end"))
    for window in _placed(shown):
        parts += _timeline(stages, window, row)
        # Groups of the fullest stage above each other.
        curve = curves[fullest]
        below = [0.0] * (len(curve.times_s) - 1)
        for group, colour in MEMORY_COLOURS.items():
            held = curve.bytes_by_group[group]
            above = [low + own for low, own in zip(below, held, strict=True)]
            if any(held):
                upper, lower = (_steps(curve, line, panels[0], window) for line in (above, below))
                parts.append(_area(upper, lower, f"fill:var(--{colour})"))
            below = above
        # The total of every stage, the first darkest.
        for each in curves if len(stages) > 1 else ():
            opacity = 1.0 - 0.75 * each.stage / len(curves)
            style = f"stroke:var(--accent);opacity:{opacity:.2f}"
            parts.append(_line(_steps(each, each.total_bytes, panels[-1], window), style))
        left, right = window.x(window.start_s), window.x(window.end_s)
        for panel in panels:
            top, dashed = panel.y(hbm_bytes), "stroke:var(--limit);stroke-dasharray:5 4"
            parts.append(_line([(left, top), (right, top)], dashed))
            parts.append(_line([(left, panel.floor), (right, panel.floor)], "stroke:var(--rule)"))
        parts += _time_axis(window, panels[-1].floor + 16.0)
    title = "What every pipeline stage does during one iteration, and its HBM"
    times = [stage_seconds(found, stage) for stage in range(len(stages))]
    extent = "One iteration"
    if len(shown) > 1:
        first_s, last_s = (end - start for start, end in shown)
        extent = (
            f"Of one iteration ({format_seconds(drawn.iteration_s)}) the first "
            f"{format_seconds(first_s)} and the last {format_seconds(last_s)}"
        )
    off = drawn.simulated_s / drawn.modelled_s - 1.0
    how = "stages wait at its end" if off <= 0.0 else "slices are drawn that much shorter"
    against = "" if abs(off) < 5e-4 else f" ({off:+.1%} of the estimate's; {how})"
    others = ", and of all stages" if len(curves) > 1 else ""
    return Chart(
        title=title,
        caption=(
            f"{extent}, from an event simulation of the schedule{against}: a row per stage, "
            f"numbers are micro-batches. Below: HBM of stage {fullest}, the fullest{others}; "
            "dashed: what the device has. What shows of communication is drawn in one piece at "
            "the start or end of its pass, though it comes layer by layer, and not apart in "
            "passes too narrow for it; what hides is not drawn."
        ),
        legend=_used(TIME_TITLES, times) | _used(MEMORY_TITLES, [peak_groups(curves[fullest])]),
        svg=_svg(WIDTH, panels[-1].floor + 24.0, parts, title),
    )


def _time_axis(window: Window, y: float) -> Iterator[str]:
    """Seconds below a window, none so near its edges that it would be cut."""
    left, right = window.x(window.start_s), window.x(window.end_s)
    apart_s = (window.end_s - window.start_s) / max(2, round((right - left) / 90.0))
    # The next of 1, 2, 5, 10, ...
    power = 10.0 ** math.floor(math.log10(apart_s))
    step = next(s * power for s in (1.0, 2.0, 5.0, 10.0) if s * power >= apart_s * 0.999)
    for number in range(math.ceil(window.start_s / step), math.floor(window.end_s / step) + 1):
        if left + 8.0 <= window.x(step * number) <= right - 8.0:
            yield _text(window.x(step * number), y, f"{step * number:g} s")


def log_ticks(lowest: float, highest: float, digits: Sequence[int] = (1, 2, 5)) -> list[float]:
    """1, 2, 5, 10, ... among the values, thinned out; both ends where they are closer than that."""
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    every = [digit * 10.0**power for power in powers for digit in digits]
    found = [tick for tick in every if lowest <= tick <= highest]
    return found[:: -(-len(found) // MAX_TICKS)] if len(found) > 1 else sorted({lowest, highest})


def frontier_chart(points: Sequence[Plan], own: Plan) -> Chart:
    """Seconds of an iteration over GPUs, both logarithmic, with the range of runs like it."""
    points = sorted(points, key=lambda plan: plan.strategy.num_gpus)
    gpus = [plan.strategy.num_gpus for plan in points]
    lowest = min(plan.estimate.iter_time_s_lower for plan in points)
    highest = max(plan.estimate.iter_time_s_upper for plan in points)
    # Room for labels at the left and below; a tenth of a factor where all is one value.
    left, right, top, bottom = 44.0, 460.0, 12.0, 220.0
    width = math.log(max(gpus[-1] / gpus[0], 1.1))
    height = math.log(max(highest / lowest, 1.1))

    def place(gpus_used: float, seconds: float) -> tuple[float, float]:
        x = left + (right - left) * math.log(gpus_used / gpus[0]) / width
        return x, bottom - (bottom - top) * math.log(seconds / lowest) / height

    def curve(bound: str) -> list[tuple[float, float]]:
        return [
            place(p.strategy.num_gpus, getattr(p.estimate, f"iter_time_s{bound}")) for p in points
        ]

    parts = []
    for tick in log_ticks(lowest, highest):
        _, y = place(gpus[0], tick)
        parts.append(_line([(left, y), (right, y)], "stroke:var(--rule)"))
        parts.append(_text(left - 6.0, y + 4.0, f"{tick:g}", "end"))
    powers = range(math.ceil(math.log2(gpus[0])), math.floor(math.log2(gpus[-1])) + 1)
    for power in powers[:: -(-len(powers) // MAX_TICKS) or 1]:
        x, _ = place(2.0**power, lowest)
        parts.append(_line([(x, top), (x, bottom)], "stroke:var(--rule)"))
        parts.append(_text(x, bottom + 16.0, f"{2**power:,}"))
    title = "Seconds per iteration over the number of GPUs"
    here = place(own.strategy.num_gpus, own.estimate.iter_time_s)
    parts += [
        _area(curve("_upper"), curve("_lower"), "fill:var(--accent);opacity:.15"),
        _line(curve(""), "stroke:var(--accent);stroke-width:1.5"),
        *(_dot(*point, 2.5, "accent") for point in curve("")),
        _dot(*here, 5.0, "recompute"),
        _text(right, bottom + 32.0, "GPUs", "end"),
        _text(left + 4.0, top - 2.0, "seconds per iteration", "start"),
    ]
    caption = (
        "The fastest plan of every useful number of GPUs for the same batch; shaded: where eight "
        "of ten runs like it would lie. The large point is the plan of this page."
    )
    return Chart(title=title, caption=caption, legend={}, svg=_svg(480, 258, parts, title))


def _dot(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle style="fill:var(--{colour})" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'
