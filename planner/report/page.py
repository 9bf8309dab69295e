"""A plan as one HTML page: what page.html.j2 shows of it."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from planner import __version__
from planner.answers.base import Answer, Plan
from planner.answers.evidence import PublishedRun
from planner.answers.execution import Iteration, iteration, too_long
from planner.answers.explain import item_of, item_title, summary_of
from planner.answers.layout import differences, short_layout, values
from planner.answers.software import assumptions_line
from planner.cost.context import Context
from planner.cost.estimate import Estimate
from planner.cost.ledger import StageLedger, stage_ledger
from planner.cost.stage_model import price
from planner.errors import ExpressError
from planner.formats.format import Format, OutputFile
from planner.frameworks.registry import CURRENT
from planner.launchers.launcher import Launcher
from planner.layers.parameters import describe_size
from planner.limits import printable
from planner.report.charts import (
    frontier_chart,
    memory_bars,
    schedule_chart,
    stage_seconds,
    time_bars,
)
from planner.report.emitted import README, PlanText, output_files
from planner.report.sizing_words import time_text
from planner.report.table import Table, text_table
from planner.report.words import (
    degrees_words,
    layout_words,
    mfu_line,
    placement_line,
    range_line,
    range_text,
    saving_words,
)
from planner.units import GIB, format_bytes, format_count, format_seconds

MAX_LEDGER = 40
# Decisions that no other row says, by the names of :func:`differences.values`: words for them, and
# the value that goes without saying.
SHOWN = {
    "ZeRO": ("ZeRO stage", None),
    "etp": ("ranks per expert", None),
    "vpp": ("virtual stages", "1"),
    "schedule": ("schedule", "1f1b"),
    "sequence parallel": ("sequence parallel", "off"),
    "shard groups": ("shard groups", "1"),
    "layers per stage": ("layers per stage", None),
    "recompute modules": ("selective repeats", "the profile's"),
}


def page_of(
    plan: Plan,
    text: PlanText,
    made: Format,
    launcher: Launcher,
    *,
    origin: str,
    answer: Answer | None,
) -> dict[str, Any]:
    """The page of a plan with the files that start it; the README is left out, as it says the same.

    ``origin`` is the command or call that made the page.
    """
    files: tuple[OutputFile, ...] = ()
    refused = ""
    try:
        files = output_files(made, launcher, plan.context, plan.strategy, text)
    except ExpressError as error:
        refused = str(error)
    kept = [file for file in files if file.name != README]
    return describe(plan, files=kept, refused=refused, origin=origin, answer=answer)


def describe(
    plan: Plan,
    *,
    files: Sequence[OutputFile],
    refused: str,
    origin: str,
    answer: Answer | None,
) -> dict[str, Any]:
    """Return the template's values by name; None where there is no such part."""
    context, strategy, estimate = plan.context, plan.strategy, plan.estimate
    hbm_bytes, fullest = estimate.memory.hbm_bytes, estimate.memory.stage
    not_drawn = too_long(strategy)
    found = None if not_drawn else iteration(plan)
    sources = plan.evidence
    points = (answer.frontier or answer.ladder) if answer else ()
    has_frontier = len(points) > 1
    by_gpus = sorted(points, key=lambda each: -each.strategy.num_gpus)
    others = []
    others_note = "No other layout fits."
    if answer:
        others = [
            each
            for each in (*answer.plans, *filter(None, [answer.fastest]))
            if differences(strategy, each.strategy) or each.framework != plan.framework
        ][:8]
    if answer and others:
        proved = answer.proved_optimal
        proof = "best under the model, as was proved" if proved else "not proved best"
        others_note = (
            f"Best plans of other layouts for the same question ({proof}). A layout may be faster "
            "here and stand behind: what rests on less certain mechanisms has to gain more than "
            "their error."
        )
    stages = [
        (
            str(stage),
            str(strategy.layers_per_stage[stage]),
            f"{peak / GIB:,.2f}",
            f"{(hbm_bytes - peak) / GIB:,.2f}",
            estimate.memory.verdict_at(peak),
        )
        for stage, peak in enumerate(estimate.memory.stage_peak_bytes)
    ]
    formulas = [item_of(f"time.{name}") for name in estimate.time]
    sentences = {item.address: summary_of(item) for item in formulas if item is not None}
    return {
        "title": f"{context.model.name} on {context.cluster.name}: plan",
        "headline": (
            f"Train {context.model.name} on {strategy.num_gpus:,} "
            f"{context.cluster.accelerator.name} under {_software(context)}: {layout_words(plan)}."
        ),
        "tiles": _tiles(plan),
        "decisions": _decisions(plan),
        "waiting": _waiting(found),
        "time_chart": time_bars(found) if found else None,
        "time_items": _time_items(estimate),
        "overlap": (
            f"With all communication overlapped: {format_seconds(estimate.iter_time_s_overlapped)};"
            f" with none: {format_seconds(estimate.iter_time_s_serial)}."
        ),
        "formulas": text_table(("item", "is"), sentences.items(), left=("is",)),
        "schedule": schedule_chart(found, strategy, hbm_bytes, fullest) if found else None,
        "not_drawn": not_drawn,
        "memory_chart": memory_bars(found, hbm_bytes) if found else None,
        "stages": text_table(("stage", "layers", "peak GiB", "free GiB", ""), stages),
        "fullest": fullest,
        "ledger": _ledger(stage_ledger(price(context, strategy), fullest)),
        "others_note": others_note,
        "others": _layouts(plan, [plan, *others]) if answer else None,
        "frontier": frontier_chart(points, plan) if has_frontier else None,
        "frontier_points": _layouts(plan, by_gpus) if has_frontier else None,
        "trust": [line for line in (range_line(estimate), sources.note) if line],
        "runs": _runs(sources.runs),
        "mfu": mfu_line(plan),
        "assumed": assumptions_line(context, [strategy]),
        "notes": [str(note) for note in answer.notes] if answer else (),
        "files": [
            (f"{each.name} ({each.text.count(chr(10)):,} lines)", each.text) for each in files
        ],
        "refused": refused,
        "made_by": f"Modelled by planner {__version__}, not measured. Made by: {origin}",
    }


def render_page(page: Mapping[str, Any]) -> str:
    """The whole page; every text is escaped, and shown without control characters."""
    import jinja2

    def shown(value: object) -> object:
        return value if hasattr(value, "__html__") else printable(str(value))

    environment = jinja2.Environment(
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(page=page) + "\n"


def _software(context: Context) -> str:
    """The framework as a command names it, with another profile than the current one."""
    traits = context.traits
    return traits.name if traits.profile == CURRENT else f"{traits.name} ({traits.profile})"


def _tiles(plan: Plan) -> list[tuple[str, str, str]]:
    estimate, memory = plan.estimate, plan.estimate.memory
    left = plan.estimate.memory.free_bytes
    free = f"{format_bytes(abs(left))} {'free' if left >= 0 else 'missing'}"
    found = [
        (
            format_seconds(estimate.iter_time_s),
            "per iteration",
            f"{range_text(estimate)} in eight of ten such runs",
        ),
        (
            format_count(round(estimate.tokens_per_s)),
            "tokens per second",
            f"{estimate.tokens_per_s_per_gpu:,.0f} per GPU",
        ),
        (
            f"{estimate.mfu:.1%}",
            "model FLOPs utilisation",
            f"{estimate.mfu_full_square:.1%} counting the whole attention square",
        ),
        (
            f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB",
            f"HBM of the fullest rank: {memory.verdict}",
            f"{free}; uncertain by {format_bytes(memory.uncertainty_bytes)}",
        ),
    ]
    total_s, cost = plan.total_s(), plan.cost_usd()
    tokens = plan.context.job.total_tokens
    if total_s is not None and tokens:
        ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
        span = " - ".join(time_text(total_s * end / estimate.iter_time_s) for end in ends)
        price = "" if cost is None else f", {format_count(round(cost))} USD"
        hours = f"{span}; {format_count(round(plan.gpu_hours()))} GPU-hours{price}"
        found.append((time_text(total_s), f"for {format_count(tokens)} tokens", hours))
    return found


def _decisions(plan: Plan) -> list[tuple[str, str]]:
    """The layout, decision by decision; what is as usual is left out."""
    context, strategy = plan.context, plan.strategy
    cluster, job, traits = context.cluster, context.job, context.traits
    named = values(strategy)
    shown = [(words, named[name]) for name, (words, usual) in SHOWN.items() if named[name] != usual]
    if strategy.etp == strategy.tp:
        shown.remove((SHOWN["etp"][0], named["etp"]))
    batch = (
        f"{job.global_batch:,} sequences of {job.seq_len:,} tokens "
        f"({format_count(job.tokens_per_iteration)} tokens), {job.precision}, "
        f"{traits.optimizer.name}{traits.training.suffix}"
    )
    gpus = f"{strategy.num_gpus:,} of {cluster.num_accelerators:,} GPUs"
    return [
        ("model", f"{context.model.name}, {describe_size(context.model)}"),
        ("cluster", f"{cluster.name}: {gpus}"),
        ("framework", _software(context)),
        ("batch", batch),
        ("layout", degrees_words(strategy) or "one GPU"),
        ("micro-batch", f"{strategy.micro_batch} × {strategy.num_micro_batches:,} an iteration"),
        ("saved memory", ", ".join(saving_words(plan))),
        *shown,
        ("on the network", placement_line(context, strategy)),
    ]


def _waiting(found: Iteration | None) -> str:
    """Return which stage waits most, and how long; empty for one stage."""
    if found is None:
        return ""
    whole = found.timeline.iteration_s
    waits = [stage_seconds(found, stage)["wait"] / whole for stage in range(len(found.curves))]
    if len(waits) == 1:
        return ""
    most = waits.index(max(waits))
    mean = sum(waits) / len(waits)
    return f"Stages wait {mean:.1%} of it in the mean, stage {most} most: {waits[most]:.1%}."


def _time_items(estimate: Estimate) -> Table[Sequence[str]]:
    """Every item of time: what it adds, and how long it runs where part of it hides."""
    rows = []
    for name, item in sorted(estimate.time.items(), key=lambda each: -each[1].exposed_s):
        hidden_s = item.busy_s - item.exposed_s
        hides = hidden_s > 1e-3 * item.busy_s and hidden_s > 0.0
        rows.append(
            (
                item_title(name),
                f"time.{name}",
                format_seconds(item.exposed_s),
                f"{item.exposed_s / estimate.iter_time_s:.1%}",
                format_seconds(hidden_s) if hides else "",
            )
        )
    rows.append(("iteration", "", format_seconds(estimate.iter_time_s), "100.0%", ""))
    head = ("on the slowest stage", "item", "adds", "share", "overlapped")
    return text_table(head, rows, left=("item",))


def _ledger(ledger: StageLedger) -> Table[Sequence[str]]:
    rest = sum(each.num_bytes for each in ledger.items[MAX_LEDGER:])
    rows: list[tuple[str, str, float]] = [
        (each.name, each.lifetime, each.num_bytes) for each in ledger.items[:MAX_LEDGER]
    ]
    rows += [("all others", "", rest)] * (rest > 0)
    rows.append(("peak", ledger.moment, ledger.peak_bytes))
    shown = [
        (name, alive, format_bytes(size), f"{size / ledger.peak_bytes:.1%}")
        for name, alive, size in rows
    ]
    return text_table(("item", "alive", "bytes", "share"), shown, left=("alive",))


def _layouts(own: Plan, plans: Sequence[Plan]) -> Table[Sequence[str]]:
    rows = []
    for plan in plans:
        estimate, layout = plan.estimate, short_layout(plan.strategy)
        change = f"{estimate.iter_time_s / own.estimate.iter_time_s - 1.0:+.1%}"
        rows.append(
            (
                f"this: {layout}" if plan is own else layout,
                f"{plan.strategy.num_gpus:,}",
                format_seconds(estimate.iter_time_s),
                "" if plan is own else change,
                f"{estimate.tokens_per_s:,.0f}",
                f"{estimate.mfu:.1%}",
                f"{estimate.memory.peak_bytes / GIB:,.1f}",
                f"{plan.estimate.memory.free_bytes / GIB:,.1f}",
            )
        )
    head = "layout|GPUs|iteration|against it|tokens/s|MFU|peak GiB|free GiB"
    return text_table(head.split("|"), rows)


def _runs(runs: Sequence[PublishedRun]) -> Table[Sequence[str]]:
    rows = []
    for run in runs:
        degrees = [
            f"{name}{getattr(run, name)}"
            for name in ("dp", "tp", "pp", "cp", "ep")
            if getattr(run, name) > 1
        ]
        rows.append(
            (
                run.model,
                f"{run.gpus:,} {run.accelerator}",
                " ".join(degrees),
                f"{run.framework}, {run.precision}",
                f"{run.time_error:+.1%}",
                "" if run.memory_error is None else f"{run.memory_error:+.1%}",
            )
        )
    head = ("published run", "on", "layout", "with", "time", "memory")
    return text_table(head, rows, left=("on", "layout", "with"))
