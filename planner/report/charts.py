"""Charts of the page as SVG text; colours are names of its style sheet, which knows the theme."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from planner.answers.execution import Iteration
from planner.cost.time_items import (
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
MEMORY_TITLES = {group.partition(" ")[0]: group for group in MEMORY_GROUPS}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing or rows of bars, and what is written around it."""

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


def _drawn(tag: str, points: Iterable[tuple[float, float]], style: str) -> str:
    """A line (``polyline``) or an area (``polygon``) through points."""
    places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f'<{tag} style="{style}" points="{places}"/>'


def _text(x: float, y: float, text: str, kind: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _colour(each: Slice, item: str = COMPUTE) -> str:
    if each.kind == WAIT:
        return "wait"
    if not each.slot:
        return "tail"
    passes = {"forward": "forward", "weight gradient": "weight"}
    return PIECES.get(item) or passes.get(each.kind, "backward")


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
        colour: curve.bytes_by_group[group][fullest] / GIB
        for colour, group in MEMORY_TITLES.items()
    }


def _used(
    titles: Mapping[str, str],
    rows: Sequence[Mapping[str, float]],
) -> dict[str, str]:
    used = {name for row in rows for name, length in row.items() if length}
    return {name: title for name, title in titles.items() if name in used}


def time_bars(found: Iteration) -> Chart:
    """An iteration of every stage by what it does."""
    rows = [stage_seconds(found, stage) for stage in range(len(found.curves))]
    longest = max(sum(row.values()) for row in rows)
    return Chart(
        caption="One iteration of every stage. Waiting is for other stages: the pipeline's bubble, "
        "stages of unequal work and the slowest tail.",
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
            left = window.x(each.start_s)
            right = window.x(each.end_s)
            whole = ((each.start_s, each.end_s, _colour(each)),)  # of passes narrower than 5 px
            for start, end, colour in pieces(each) if right - left > 5.0 else whole:
                x, to = window.x(start), window.x(end)
                if to > x:
                    boxes[colour].append(f"M{x:.2f} {top:.2f}H{to:.2f}V{bottom:.2f}H{x:.2f}Z")
            if each.slot and right - left > 15.0 and height > 12.0:  # room for the number
                middle = (left + right) / 2.0
                number = str(each.slot[0].micro_batch)
                numbers.append(_text(middle, bottom - height / 4.0, number, "number"))
    yield from (
        f'<path style="fill:var(--{colour})" d="{"".join(drawn)}"/>'
        for colour, drawn in boxes.items()
        if drawn
    )
    yield from numbers


def _memory(curve: MemoryCurve, window: Window, floor: float, most: float) -> Iterator[str]:
    """A stage's groups in a window, piled up from ``floor``; ``most``: bytes of the device."""
    first = max(bisect_right(curve.times_s, window.start_s) - 1, 0)
    last = min(bisect_left(curve.times_s, window.end_s), len(curve.times_s) - 1)

    def y(num_bytes: float) -> float:
        return floor - num_bytes * PANEL / (1.06 * most)

    def edge(values: Sequence[float]) -> list[tuple[float, float]]:
        return [
            (window.x(time_s), y(values[position]))
            for position in range(first, last)
            for time_s in curve.times_s[position : position + 2]
        ]

    below = [0.0] * (len(curve.times_s) - 1)
    for colour, group in MEMORY_TITLES.items():
        held = curve.bytes_by_group[group]
        above = [low + own for low, own in zip(below, held, strict=True)]
        if any(held):
            yield _drawn("polygon", [*edge(above), *reversed(edge(below))], f"fill:var(--{colour})")
        below = above
    ends = (window.x(window.start_s), window.x(window.end_s))
    limits = {0.0: "stroke:var(--rule)", most: "stroke:var(--limit);stroke-dasharray:5 4"}
    for num_bytes, style in limits.items():
        yield _drawn("polyline", [(x, y(num_bytes)) for x in ends], f"fill:none;{style}")


def schedule_chart(found: Iteration, strategy: Strategy, hbm_bytes: float, fullest: int) -> Chart:
    """Timeline of every stage, and below it HBM of the fullest stage by group."""
    stages, curve = found.timeline.stages, found.curves[fullest]
    row = min(max(320.0 / len(stages), 5.0), 36.0)
    floor = row * len(stages) + 16.0 + PANEL
    every = max(1, math.ceil(14.0 / row))  # labels of rows do not touch
    labels = {str(stage): (stage + 0.5) * row + 4.0 for stage in range(0, len(stages), every)}
    parts = [
        *(_text(LEFT - 6.0, y, stage, "end") for stage, y in labels.items()),
        _text(LEFT - 6.0, floor, "0", "end"),
        _text(LEFT - 6.0, floor - PANEL / 1.06 + 4.0, f"{hbm_bytes / GIB:.0f} GiB", "end"),
    ]
    shown = windows(found, strategy)
    for window in _placed(shown):
        parts += _timeline(stages, window, row)
        parts += _memory(curve, window, floor, hbm_bytes)
        for time_s, kind in ((window.start_s, "start"), (window.end_s, "end")):
            parts.append(_text(window.x(time_s), floor + 16.0, format_seconds(time_s), kind))
    times = [stage_seconds(found, stage) for stage in range(len(stages))]
    legend = _used(TIME_TITLES, times)
    legend |= _used(MEMORY_TITLES, [peak_groups(curve)])
    size = f'viewBox="0 0 {WIDTH:g} {floor + 24.0:g}"'
    label = "What every pipeline stage does during one iteration, and its HBM"
    return Chart(
        caption=(
            f"{_extent(found, shown)}: a row per stage, numbers are micro-batches. Below: HBM of "
            f"stage {fullest}, the fullest; dashed: what the device has. What shows of "
            "communication is drawn in one piece at the start or end of its pass, though it comes "
            "layer by layer, and not apart in passes too narrow for it; what hides is not drawn."
        ),
        legend=legend,
        svg=f'<svg {size} role="img" aria-label="{label}">{"".join(parts)}</svg>',
    )


def _extent(found: Iteration, shown: Sequence[tuple[float, float]]) -> str:
    """Which part of the iteration is drawn, and how its length differs from the estimate's."""
    drawn, extent = found.timeline, "One iteration"
    if len(shown) > 1:
        first_s, last_s = (end - start for start, end in shown)
        extent = (
            f"Of one iteration ({format_seconds(drawn.iteration_s)}) the first "
            f"{format_seconds(first_s)} and the last {format_seconds(last_s)}"
        )
    off = drawn.simulated_s / drawn.modelled_s - 1.0
    how = "stages wait at its end" if off <= 0.0 else "slices are drawn that much shorter"
    against = "" if abs(off) < 5e-4 else f" ({off:+.1%} of the estimate's; {how})"
    return f"{extent}, from an event simulation of the schedule{against}"
