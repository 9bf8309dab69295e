"""Draws the pictures of docs/parallelism.md: what each kind of parallelism does to one GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from planner.answers.layout import requested, resolve
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.stage_model import price
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_recompute_modules
from planner.schedules.simulate import Simulation
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy
from planner.units import GIB
from tools.schedules import unit_simulation

WIDTH, LEFT, RIGHT, ROW, TOP = 760.0, 200.0, 160.0, 30.0, 34.0
LEGEND = 18.0  # height of one of its lines
# What the items of memory and of time are drawn as, by the first part of their name.
BYTES = {
    "weights": ("weights", "#4c78a8"),
    "gradients": ("gradients", "#72b7b2"),
    "optimizer": ("optimizer states", "#9ecae9"),
    "activations": ("activations", "#f58518"),
    "transient": ("transients", "#e45756"),
    "": ("context, communicators, buffers", "#b8b8b8"),
}
SECONDS = {
    "compute": ("compute", "#4c78a8"),
    "recompute": ("recomputation", "#f58518"),
    "tensor_parallel": ("tensor parallel", "#e45756"),
    "context_parallel": ("context parallel", "#b279a2"),
    "expert_parallel": ("expert all-to-all", "#ff9da6"),
    "pipeline": ("pipeline bubble", "#54a24b"),
    "data_parallel": ("gradient and weight collectives", "#72b7b2"),
    "sharding": ("gradient and weight collectives", "#72b7b2"),
    "offload": ("transfers to the host, its step", "#eeca3b"),
    "": ("optimizer step, other", "#b8b8b8"),
}
Part = tuple[str, str]  # title and colour
Bar = Mapping[Part, float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job on a cluster, of which layouts are drawn."""

    model: str
    cluster: str
    framework: str = "megatron"
    seq_len: int = 8192
    global_batch: int = 64

    def priced(self, layout: Mapping[str, Any]) -> tuple[Context, Strategy]:
        """Fill in a layout; ``modules`` are those that selective recomputation repeats."""
        given = dict(layout)
        modules = given.pop("modules", ())
        traits = load_traits(self.framework)
        context = Context(
            model=load_model(self.model),
            job=JobSpec(global_batch=self.global_batch, seq_len=self.seq_len),
            cluster=load_cluster(self.cluster),
            traits=with_recompute_modules(traits, modules) if modules else traits,
        )
        return resolve(context, requested(**given))

    def memory(self, layout: Mapping[str, Any]) -> Bar:
        """GiB on the GPU with the highest peak, by what they hold."""
        ledgers = stage_ledgers(price(*self.priced(layout)))
        fullest = max(ledgers, key=lambda each: each.peak_bytes)
        return by_part(BYTES, {item.name: item.num_bytes / GIB for item in fullest.items})

    def time(self, layout: Mapping[str, Any]) -> Bar:
        """Seconds of an iteration, the mean over stages, by what they are spent on."""
        items = estimate(*self.priced(layout)).pipeline_time
        return by_part(SECONDS, {name: item.exposed_s for name, item in items.items()})


def by_part(parts: Mapping[str, Part], items: Mapping[str, float]) -> Bar:
    """Sum items by the first part of their names."""
    sums = dict.fromkeys(parts.values(), 0.0)
    for name, size in items.items():
        sums[parts.get(name.partition(".")[0], parts[""])] += size
    return sums


def bars(title: str, rows: Mapping[str, Bar], unit: str, limit: float = 0.0) -> str:
    """Draw one bar per row, and a dashed line at the limit where there is one."""
    totals = [sum(row.values()) for row in rows.values()]
    scale = (WIDTH - LEFT - RIGHT) / max(*totals, limit)
    used = list(dict.fromkeys(part for row in rows.values() for part in row if row[part] > 0))
    legend_rows = (len(used) + 2) // 3
    height = TOP + ROW * len(rows) + LEGEND * (legend_rows + (limit > 0)) + 8
    lines = head(title, height)
    for number, (label, row) in enumerate(rows.items()):
        y, x = TOP + ROW * number, LEFT
        lines.append(text(LEFT - 8, y + 16, label, "end"))
        for (_, colour), size in row.items():
            if size > 0:
                width = size * scale
                lines.append(
                    f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="22" '
                    f'fill="{colour}"/>'
                )
                x += width
        total = sum(row.values())
        fits = "" if not limit or total <= limit else ", does not fit"
        lines.append(text(x + 6, y + 16, f"{total:.3g} {unit}{fits}"))
    if limit:
        x, bottom = LEFT + limit * scale, TOP + ROW * len(rows)
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="#222" '
            'stroke-dasharray="4 3"/>'
        )
        lines.append(text(x, bottom + 12, f"HBM {limit:.1f} GiB", "middle"))
    for number, (name, colour) in enumerate(used):
        x = 16 + 245 * (number % 3)
        y = height - 8 - LEGEND * (legend_rows - number // 3 - 1)
        lines.append(f'<rect x="{x}" y="{y - 10:.0f}" width="11" height="11" fill="{colour}"/>')
        lines.append(text(x + 17, y, name))
    return "\n".join([*lines, "</svg>"]) + "\n"


def head(title: str, height: float) -> list[str]:
    """Open a picture."""
    return [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="16" y="20" font-size="14">{escape(title)}</text>',
    ]


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Write words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def memory_by(title: str, case: Case, layouts: Mapping[str, dict[str, Any]]) -> str:
    """Draw the memory of several layouts of a job."""
    rows = {label: case.memory(each) for label, each in layouts.items()}
    return bars(title, rows, "GiB", load_cluster(case.cluster).accelerator.hbm_bytes / GIB)


def time_by(title: str, case: Case, layouts: Mapping[str, dict[str, Any]]) -> str:
    """Draw the time of several layouts of a job."""
    rows = {label: case.time(each) for label, each in layouts.items()}
    return bars(title, rows, "s")


def degrees(name: str, values: Sequence[int], **others: int) -> dict[str, dict[str, Any]]:
    """Layouts that differ in one degree, by a label such as TP 4."""
    return {f"{name.upper()} {value}": {name: value, **others} for value in values}


def timelines() -> str:
    """Draw 1F1B with and without interleaving, as the event simulator runs them."""
    runs = {
        f"1F1B, {vpp} chunk{'s' if vpp > 1 else ''} a GPU": unit_simulation("1f1b", vpp)
        for vpp in (1, 2)
    }
    end = max(run.makespan_s for run in runs.values())
    block = TOP + 4 * 20 + 10
    lines = head("A pipeline of 4 stages, 8 micro-batches: forward, backward, idle", 2 * block + 8)
    for number, (title, run) in enumerate(runs.items()):
        bubble = run.makespan_s / max(run.busy_s) - 1.0
        y = number * block + TOP + 12
        lines.append(text(16, y, f"{title}: bubble {bubble:.0%} of the work"))
        lines += _devices(run, y + 6, (WIDTH - 32) / end)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _devices(run: Simulation, top: float, scale: float) -> list[str]:
    lines = []
    for device, runs in enumerate(run.runs):
        for start, stop, slot in runs:
            colour = "#4c78a8" if slot[0][0] == "F" else "#72b7b2"
            lines.append(
                f'<rect x="{16 + start * scale:.1f}" y="{top + 20 * device:.0f}" '
                f'width="{(stop - start) * scale - 1:.1f}" height="17" fill="{colour}"/>'
            )
    return lines


ONE_NODE = Case(model="llama3-8b", cluster="1xdgx-h100")
BY_ZERO = Case(model="llama3-8b", cluster="4xdgx-h100", framework="deepspeed")
LARGE = Case(model="llama3.1-70b", cluster="8xdgx-h100", global_batch=512)
LONG = Case(model="llama3-8b", cluster="4xdgx-h100", seq_len=65536, global_batch=32)
EXPERTS = Case(model="mixtral-8x7b", cluster="8xdgx-h100", seq_len=4096, global_batch=256)
ZERO: Mapping[str, dict[str, Any]] = {
    "DP 32, each a whole copy": {"dp": 32, "zero_stage": 0},
    "ZeRO-1: optimizer sharded": {"dp": 32, "zero_stage": 1},
    "ZeRO-2: and gradients": {"dp": 32, "zero_stage": 2},
    "ZeRO-3: and weights": {"dp": 32, "zero_stage": 3},
}
KEPT: Mapping[str, dict[str, Any]] = {
    "everything kept": {"tp": 2},
    "selective: norms and MLP": {
        "tp": 2,
        "recompute": "selective",
        "modules": ("layernorm", "mlp"),
    },
    "full: the input of a layer": {"tp": 2, "recompute": "full"},
}
HELD: Mapping[str, dict[str, Any]] = {
    "on the GPU": {"dp": 8, "recompute": "full"},
    "optimizer on the host": {"dp": 8, "recompute": "full", "offload": "optimizer:host"},
}
PICTURES: Mapping[str, Callable[[], str]] = {
    "zero": partial(memory_by, "Llama-3-8B on 32 H100, memory of one GPU", BY_ZERO, ZERO),
    "tensor": partial(
        memory_by,
        "Llama-3.1-70B on 64 H100, PP 4: memory of one GPU by tensor parallelism",
        LARGE,
        degrees("tp", (1, 2, 4, 8), pp=4),
    ),
    "tensor-time": partial(
        time_by,
        "The same layouts: seconds of an iteration",
        LARGE,
        degrees("tp", (1, 2, 4, 8), pp=4),
    ),
    "pipeline": partial(
        memory_by,
        "Llama-3.1-70B on 64 H100, TP 4: memory of the fullest GPU by pipeline stages",
        LARGE,
        degrees("pp", (1, 2, 4, 8), tp=4),
    ),
    "timeline": timelines,
    "context": partial(
        memory_by,
        "Llama-3-8B on 32 H100, sequences of 65,536 tokens: memory by context parallelism",
        LONG,
        degrees("cp", (1, 2, 4, 8), tp=2),
    ),
    "expert": partial(
        memory_by,
        "Mixtral 8x7B on 64 H100, PP 4: memory of one GPU by expert parallelism",
        EXPERTS,
        degrees("ep", (1, 2, 4, 8), pp=4),
    ),
    "recompute": partial(memory_by, "Llama-3-8B on 8 H100, TP 2: memory", ONE_NODE, KEPT),
    "recompute-time": partial(time_by, "The same: seconds of an iteration", ONE_NODE, KEPT),
    "offload": partial(memory_by, "Llama-3-8B on 8 H100, DP 8, full recomputation", ONE_NODE, HELD),
    "offload-time": partial(time_by, "The same: seconds of an iteration", ONE_NODE, HELD),
}
