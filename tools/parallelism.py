"""Draws the pictures of docs/parallelism.md: what each kind of parallelism does to one GPU.

Bytes, seconds and colours are those of the page that ``planner export --to html`` writes. Pictures
are as wide as a phone and follow the reader's light or dark theme.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from typing import Any

import planner
from planner.answers.base import Plan
from planner.answers.execution import Iteration, iteration
from planner.answers.layout import fill_in, requested
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_recompute_modules
from planner.report.charts import MEMORY_TITLES, TIME_TITLES, Chart, peak_groups, stage_seconds
from planner.schedules.simulate import Simulation
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy
from planner.units import GIB
from tools.pages import ROOT
from tools.schedules import unit_simulation

WIDTH, EDGE, TOP = 400.0, 8.0, 30.0
ROW, BAR, LEGEND = 42.0, 18.0, 18.0  # a label with its bar, the bar alone, a line of the legend
TEMPLATE = ROOT / "planner" / "report" / "page.html.j2"
COLOUR = re.compile(r"--(\w+): light-dark\((#\w+), (#\w+)\)")
Bar = Mapping[str, float]  # lengths by colour


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job on a cluster, of which layouts are drawn."""

    model: str
    cluster: str
    framework: str = "megatron"
    seq_len: int = 8192
    global_batch: int = 64

    def drawn(self, layout: Mapping[str, Any]) -> Iteration:
        """An iteration of a layout; ``modules`` are those that selective recomputation repeats."""
        given = dict(layout)
        modules = given.pop("modules", ())
        traits = load_traits(self.framework)
        context = Context(
            model=load_model(self.model),
            job=JobSpec(global_batch=self.global_batch, seq_len=self.seq_len),
            cluster=load_cluster(self.cluster),
            traits=with_recompute_modules(traits, modules) if modules else traits,
        )
        return drawn(*fill_in(context, requested(**given)))

    def memory(self, title: str, layouts: Mapping[str, Mapping[str, Any]]) -> str:
        """Draw the GiB of the fullest GPU under several layouts, by what they hold."""
        limit = load_cluster(self.cluster).accelerator.hbm_bytes / GIB
        bars = []
        for label, layout in layouts.items():
            curves = self.drawn(layout).curves
            row = max(map(peak_groups, curves), key=lambda groups: sum(groups.values()))
            total = sum(row.values())
            bars.append((label, f"{total:.1f} GiB{', does not fit' * (total > limit)}", row))
        legend = {**MEMORY_TITLES, "limit": f"HBM, {limit:.1f} GiB"}
        return picture(Chart(caption=title, legend=legend, bars=bars, limit=limit))

    def time(self, title: str, layouts: Mapping[str, Mapping[str, Any]]) -> str:
        """Draw the seconds of an iteration under several layouts, by what they are spent on."""
        return time_picture(title, [(name, self.drawn(each)) for name, each in layouts.items()])


def drawn(context: Context, strategy: Strategy) -> Iteration:
    """One iteration of a layout."""
    priced = estimate(context, strategy)
    plan = Plan(context=context, strategy=strategy, estimate=priced, is_optimal=False)
    return iteration(plan)


def time_picture(title: str, rows: Sequence[tuple[str, Iteration]]) -> str:
    """Draw iterations, each the mean over its stages, by what they are spent on."""
    bars = []
    for label, found in rows:
        stages = [stage_seconds(found, stage) for stage in range(len(found.curves))]
        mean = {name: sum(each[name] for each in stages) / len(stages) for name in TIME_TITLES}
        bars.append((label, f"{sum(mean.values()):.3g} s", mean))
    legend = {**TIME_TITLES, "tail": "reduction, optimizer"}  # short enough for a phone
    return picture(Chart(caption=title, legend=legend, bars=bars))


@cache
def style() -> str:
    """The colours of the page's style sheet, for both themes."""
    names = COLOUR.findall(TEMPLATE.read_text(encoding="utf-8"))
    light, dark = (
        ";".join(f"--{name}:{colours[theme]}" for name, *colours in names) for theme in (0, 1)
    )
    return (
        f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "text{fill:var(--ink)}</style>"
    )


def picture(chart: Chart) -> str:
    """Draw one bar per row, its label above it, and a stroke at the limit where there is one."""
    used = {name for _, _, row in chart.bars for name, length in row.items() if length}
    legend = {
        name: title for name, title in chart.legend.items() if name in used or name == "limit"
    }
    longest = max(chart.limit, *(sum(row.values()) for _, _, row in chart.bars))
    scale = (WIDTH - 2 * EDGE) / longest
    below = TOP + ROW * len(chart.bars) + 4
    parts = []
    for number, (label, total, row) in enumerate(chart.bars):
        y, x = TOP + ROW * number, EDGE
        parts += [text(EDGE, y + 14, label), text(WIDTH - EDGE, y + 14, total, "end")]
        for name, length in row.items():
            if length:
                parts.append(box(x, y + 20, length * scale, BAR, name))
                x += length * scale
        if chart.limit:
            parts.append(box(EDGE + chart.limit * scale - 1, y + 17, 2, BAR + 6, "limit"))
    for number, (name, title) in enumerate(legend.items()):
        x, y = EDGE + WIDTH / 2 * (number % 2), below + LEGEND * (number // 2)
        parts += [box(x, y, 11, 11, name), text(x + 16, y + 10, title)]
    return svg(chart.caption, below + LEGEND * ((len(legend) + 1) // 2), parts)


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    """A picture with its title above its parts."""
    size = f'viewBox="0 0 {WIDTH:g} {height:g}" font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    paper = f'<rect width="{WIDTH:g}" height="{height:g}" style="fill:var(--paper)"/>'
    heading = f'<text x="{EDGE:g}" y="18" font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, style(), paper, heading, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A rectangle in a colour of the style sheet."""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} style="fill:var(--{colour})"/>'


def degrees(name: str, values: Sequence[int], **others: int) -> dict[str, dict[str, Any]]:
    """Layouts that differ in one degree, by a label such as TP 4."""
    return {f"{name.upper()} {value}": {name: value, **others} for value in values}


def timelines() -> str:
    """Draw 1F1B with and without interleaving, as the event simulator runs them."""
    runs = {
        f"1F1B, {vpp} chunk{'s' * (vpp > 1)} of layers a stage": unit_simulation("1f1b", vpp)
        for vpp in (1, 2)
    }
    scale = (WIDTH - 2 * EDGE) / max(run.makespan_s for run in runs.values())
    parts, y = [], TOP
    for title, run in runs.items():
        bubble = run.makespan_s / max(run.busy_s) - 1.0
        parts.append(text(EDGE, y + 14, f"{title}: bubble {bubble:.0%} of the work"))
        parts += devices(run, y + 22, scale)
        y += 22 + 20 * len(run.runs) + 14
    for number, (name, title) in enumerate((("forward", "forward"), ("backward", "backward"))):
        x = EDGE + WIDTH / 2 * number
        parts += [box(x, y, 11, 11, name), text(x + 16, y + 10, title)]
    return svg("A pipeline of 4 stages, 8 micro-batches", y + 20, parts)


def devices(run: Simulation, top: float, scale: float) -> Iterator[str]:
    """A row per stage: its forwards and backwards, numbers where there is room."""
    for device, slots in enumerate(run.runs):
        y = top + 20 * device
        for start, stop, slot in slots:
            x, width = EDGE + start * scale, (stop - start) * scale - 0.7
            yield box(x, y, width, 17, "forward" if slot[0].kind == "F" else "backward")
            if slot[0].kind != "W" and width > 9:
                number = f'font-size="10">{slot[0].micro_batch}'
                yield f'<text x="{x + 2:.1f}" y="{y + 12:.0f}" {number}</text>'


def choice() -> str:
    """Draw the first answer as one kind of parallelism after the other is allowed."""
    steps = {"DP with ZeRO": ("tp", "pp", "cp"), "+ TP": ("pp", "cp"), "+ PP": ("cp",), "+ CP": ()}
    rows = []
    for name, fixed in steps.items():
        ones = dict.fromkeys(fixed, 1)
        best = planner.plan(LARGE.model, LARGE.cluster, global_batch=512, fix=ones, top=1).best
        rows.append((f"{name}: {words(best.strategy)}", drawn(best.context, best.strategy)))
    return time_picture("Llama-3.1-70B on 64 H100: first answers", rows)


def words(layout: Strategy) -> str:
    """A layout in a few words: degrees, ZeRO stage, layers recomputed."""
    found = [f"{name}{getattr(layout, name)}" for name in ("dp", "tp", "pp", "cp")]
    recomputed = sum(layout.recompute_layers_per_stage)
    note = f", {recomputed} layers recomputed" * bool(recomputed)
    return f"{' '.join(each for each in found if each[2:] != '1')}, ZeRO-{layout.zero_stage}{note}"


ONE_NODE = Case(model="llama3-8b", cluster="1xdgx-h100")
BY_ZERO = Case(model="llama3-8b", cluster="4xdgx-h100", framework="deepspeed")
LARGE = Case(model="llama3.1-70b", cluster="8xdgx-h100", global_batch=512)
LONG = Case(model="llama3-8b", cluster="4xdgx-h100", seq_len=65536, global_batch=32)
EXPERTS = Case(model="mixtral-8x7b", cluster="8xdgx-h100", seq_len=4096, global_batch=256)
ZERO: Mapping[str, dict[str, Any]] = {
    "DP 32, a whole copy on each": {"dp": 32, "zero_stage": 0},
    "ZeRO-1: optimizer states sharded": {"dp": 32, "zero_stage": 1},
    "ZeRO-2: gradients too": {"dp": 32, "zero_stage": 2},
    "ZeRO-3: weights too": {"dp": 32, "zero_stage": 3},
}
BY_TP = degrees("tp", (1, 2, 4, 8), pp=4)
KEPT: Mapping[str, dict[str, Any]] = {
    "nothing recomputed": {"tp": 2},
    "selective: norms and MLP": {
        "tp": 2,
        "recompute": "selective",
        "modules": ("layernorm", "mlp"),
    },
    "full: a layer keeps its input": {"tp": 2, "recompute": "full"},
}
HELD: Mapping[str, dict[str, Any]] = {
    "optimizer states on the GPU": {"dp": 8, "recompute": "full"},
    "in host memory": {"dp": 8, "recompute": "full", "offload": "optimizer:host"},
}
PICTURES: Mapping[str, Callable[[], str]] = {
    "zero": partial(BY_ZERO.memory, "Llama-3-8B on 32 H100: memory of one GPU", ZERO),
    "tensor": partial(LARGE.memory, "Llama-3.1-70B on 64 H100, PP 4: memory", BY_TP),
    "tensor-time": partial(LARGE.time, "The same layouts: time of an iteration", BY_TP),
    "pipeline": partial(
        LARGE.memory,
        "Llama-3.1-70B on 64 H100, TP 4: fullest stage",
        degrees("pp", (1, 2, 4, 8), tp=4),
    ),
    "timeline": timelines,
    "context": partial(
        LONG.memory,
        "Llama-3-8B, 65,536 tokens, 32 H100, TP 2: memory",
        degrees("cp", (1, 2, 4, 8), tp=2),
    ),
    "expert": partial(
        EXPERTS.memory,
        "Mixtral 8x7B on 64 H100, PP 4: memory",
        degrees("ep", (1, 2, 4, 8), pp=4),
    ),
    "recompute": partial(ONE_NODE.memory, "Llama-3-8B on 8 H100, TP 2: memory", KEPT),
    "recompute-time": partial(ONE_NODE.time, "The same: time of an iteration", KEPT),
    "offload": partial(ONE_NODE.memory, "Llama-3-8B on 8 H100, DP 8, recomputed: memory", HELD),
    "offload-time": partial(ONE_NODE.time, "The same: time of an iteration", HELD),
    "choice": choice,
}
