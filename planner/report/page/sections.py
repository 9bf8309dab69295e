"""The parts of the page: tables and words around the charts."""

from collections.abc import Iterator, Sequence

from planner.answers.software import assumptions_line
from planner.cost.estimate import Estimate
from planner.cost.ledger import StageLedger
from planner.formats.format import OutputFile
from planner.plans.differences import differences, short_layout, values
from planner.plans.evidence import PublishedRun, evidence
from planner.plans.plan import Answer, Plan
from planner.report.catalog import describe_size
from planner.report.evidence import range_line
from planner.report.formulas import item_of, item_title, summary_of
from planner.report.headline import degrees_words, saving_words
from planner.report.mfu import mfu_line
from planner.report.page.html import Html, element, facts, folded, joined, section, table
from planner.report.page.sheet import Sheet
from planner.report.page.words import job_text, software
from planner.report.placement import placement_line
from planner.units import GIB, format_bytes, format_seconds

MAX_OTHERS = 8
MAX_LEDGER = 40
SHOWN = {
    "ZeRO": "ZeRO stage",
    "etp": "ranks per expert",
    "vpp": "virtual stages",
    "schedule": "schedule",
    "sequence parallel": "sequence parallel",
    "shard groups": "shard groups",
    "layers per stage": "layers per stage",
    "recompute modules": "selective repeats",
}
"""Decisions that no other row says, by the names of :func:`differences.values`."""
USUAL = {
    "vpp": "1",
    "schedule": "1f1b",
    "sequence parallel": "off",
    "shard groups": "1",
    "recompute modules": "the profile's",
}
"""What goes without saying."""


def _list(lines: Sequence[str]) -> Html:
    return element("ul", *(element("li", line) for line in lines))


def plan_section(plan: Plan) -> Html:
    """The layout, decision by decision; what is as usual is left out."""
    context, strategy = plan.context, plan.strategy
    cluster, used = context.cluster, strategy.num_gpus
    named = values(strategy)
    left_out = {name for name, usual in USUAL.items() if named[name] == usual}
    if strategy.etp == strategy.tp:
        left_out.add("etp")
    rows = [
        ("model", f"{context.model.name}, {describe_size(context.model)}"),
        ("cluster", f"{cluster.name}: {used:,} of {cluster.num_accelerators:,} GPUs"),
        ("framework", software(context)),
        ("batch", job_text(context)),
        ("layout", degrees_words(strategy) or "one GPU"),
        ("micro-batch", f"{strategy.micro_batch} × {strategy.num_micro_batches:,} an iteration"),
        ("saved memory", ", ".join(saving_words(plan))),
        *((words, named[name]) for name, words in SHOWN.items() if name not in left_out),
        ("on the network", placement_line(context, strategy)),
    ]
    return section("The plan", facts(rows))


def time_table(estimate: Estimate) -> Html:
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
    total = ("iteration", "", format_seconds(estimate.iter_time_s), "100.0%", "")
    head = ("on the slowest stage", "item", "adds", "share", "hidden besides")
    return table(head, [*rows, total], left=2)


def bracket_text(estimate: Estimate) -> str:
    """How much overlap matters."""
    return (
        f"With all communication overlapped: {format_seconds(estimate.iter_time_s_overlapped)}; "
        f"with none: {format_seconds(estimate.iter_time_s_serial)}."
    )


def memory_table(plan: Plan) -> Html:
    """Every stage's peak against the device."""
    memory, layers = plan.estimate.memory, plan.strategy.layers_per_stage
    rows = [
        (
            str(stage),
            str(layers[stage]),
            f"{peak / GIB:,.2f}",
            f"{(memory.hbm_bytes - peak) / GIB:,.2f}",
            memory.verdict_at(peak),
        )
        for stage, peak in enumerate(memory.stage_peak_bytes)
    ]
    return table(("stage", "layers", "peak GiB", "free GiB", ""), rows)


def ledger_table(ledger: StageLedger) -> Html:
    """The largest items of the fullest stage."""
    rows: list[tuple[str, str, str, str]] = [
        (
            each.name,
            each.lifetime,
            format_bytes(each.num_bytes),
            f"{each.num_bytes / ledger.peak_bytes:.1%}",
        )
        for each in ledger.items[:MAX_LEDGER]
    ]
    rest = sum(each.num_bytes for each in ledger.items[MAX_LEDGER:])
    rows += [("all others", "", format_bytes(rest), f"{rest / ledger.peak_bytes:.1%}")] * (rest > 0)
    rows.append(("peak", ledger.moment, format_bytes(ledger.peak_bytes), "100.0%"))
    return table(("item", "alive", "bytes", "share"), rows, left=2)


def _row(plan: Plan, own: Plan) -> tuple[str, ...]:
    estimate = plan.estimate
    change = estimate.iter_time_s / own.estimate.iter_time_s - 1.0
    return (
        short_layout(plan.strategy),
        f"{plan.strategy.num_gpus:,}",
        format_seconds(estimate.iter_time_s),
        f"{change:+.1%}",
        f"{estimate.tokens_per_s:,.0f}",
        f"{estimate.mfu:.1%}",
        f"{estimate.memory.peak_bytes / GIB:,.1f}",
        f"{plan.free_bytes / GIB:,.1f}",
    )


HEAD = ("layout", "GPUs", "iteration", "against it", "tokens/s", "MFU", "peak GiB", "free GiB")


def _others(plan: Plan, answer: Answer) -> Iterator[Plan]:
    fastest = [] if answer.fastest is None else [answer.fastest]
    for each in (*answer.plans, *fastest):
        if differences(plan.strategy, each.strategy) or each.framework != plan.framework:
            yield each


def others_section(sheet: Sheet) -> Html:
    """Other layouts, beside this one."""
    plan, answer = sheet.plan, sheet.answer
    assert answer is not None
    others = list(_others(plan, answer))[:MAX_OTHERS]
    proof = "best under the model, as was proved" if answer.proved_optimal else "not proved best"
    words = (
        f"Best plans of other layouts for the same question ({proof}). A layout may be faster here "
        "and stand behind: what rests on less certain mechanisms has to gain more than their error."
    )
    _, gpus, seconds, _, *rest = _row(plan, plan)
    this = (f"this: {short_layout(plan.strategy)}", gpus, seconds, "", *rest)
    body = table(HEAD, [this, *(_row(each, plan) for each in others)])
    if not others:
        words = "No other layout fits."
    return section("Other layouts", element("p", words, kind="quiet"), body)


def fewer_table(plan: Plan, answer: Answer) -> Html:
    """The points of the frontier."""
    points = sorted(answer.frontier or answer.ladder, key=lambda each: -each.strategy.num_gpus)
    return table(HEAD, [_row(each, plan) for each in points])


def _run_row(run: PublishedRun) -> tuple[str, ...]:
    memory = "" if run.memory_error is None else f"{run.memory_error:+.1%}"
    degrees = " ".join(
        f"{name}{getattr(run, name)}"
        for name in ("dp", "tp", "pp", "cp", "ep")
        if getattr(run, name) > 1
    )
    what = f"{run.framework}, {run.precision}"
    where = f"{run.gpus:,} {run.accelerator}"
    return (run.model, where, degrees, what, f"{run.time_error:+.1%}", memory)


def trust_section(sheet: Sheet) -> Html:
    """Ranges, evidence, conventions and what was assumed."""
    plan = sheet.plan
    found = evidence(plan.context, plan.strategy)
    head = ("published run", "on", "layout", "with", "time", "memory")
    runs = [_run_row(near.run) for near in found.runs]
    parts: list[str] = [
        element("p", range_line(plan.estimate)),
        element("p", found.note) if found.note else Html(),
    ]
    if runs:
        parts += [
            element("p", "Nearest published runs, predicted over measured:"),
            table(head, runs, left=4),
        ]
    parts += [
        element("p", mfu_line(plan)),
        element("p", assumptions_line(plan.context, [plan.strategy]), kind="quiet"),
    ]
    if sheet.notes:
        parts.append(folded("Defaults of the question", _list(sheet.notes)))
    return section("How sure this is", joined(parts))


def files_section(sheet: Sheet) -> Html:
    """What starts it, whole."""
    body: list[str] = [
        folded(f"{file.name} ({file.text.count(chr(10)):,} lines)", _code(file))
        for file in sheet.files
    ]
    if sheet.refused:
        body = [element("p", "No files can be written:"), element("pre", sheet.refused)]
    return section("Files", joined(body))


def _code(file: OutputFile) -> Html:
    return element("pre", element("code", file.text))


def formulas_folded(estimate: Estimate) -> Html:
    """What each item of time is, in a sentence."""
    found = [item_of(f"time.{name}") for name in estimate.time]
    rows = {item.address: summary_of(item) for item in found if item is not None}
    return folded("What the items are", table(("item", "is"), list(rows.items()), left=2))
