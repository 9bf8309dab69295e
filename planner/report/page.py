"""A plan as one HTML page: what page.html.j2 shows of it."""

from collections.abc import Sequence
from typing import Any

from planner import __version__
from planner.answers.base import Answer, Plan
from planner.answers.evidence import evidence
from planner.answers.execution import iteration, too_long
from planner.answers.explain import summary_of
from planner.answers.layout import differences
from planner.answers.software import assumptions_line
from planner.cost.estimate import Estimate, item_of, item_title
from planner.cost.ledger import stage_ledger
from planner.cost.stage_model import price
from planner.errors import ExpressError
from planner.formats.format import Format, OutputFile
from planner.launchers import Launcher
from planner.report.charts import memory_bars, schedule_chart, time_bars
from planner.report.document import rendered
from planner.report.emitted import README, PlanText, decisions, output_files
from planner.report.explain import ledger_table
from planner.report.table import Table, text_table
from planner.report.tables import plans_table
from planner.report.words import (
    job_line,
    layout_words,
    mfu_line,
    mfu_text,
    placement_line,
    range_line,
    range_text,
)
from planner.units import GIB, format_bytes, format_count, format_seconds


def page_of(
    plan: Plan,
    text: PlanText,
    made: Format,
    launcher: Launcher,
    *,
    origin: str,
    answer: Answer | None,
) -> str:
    """The page of a plan with the files that start it but the README, which says the same.

    ``origin`` is the command or call that made the page. Every text is escaped.
    """
    files: tuple[OutputFile, ...] = ()
    refused = ""
    try:
        files = output_files(made, launcher, plan.context, plan.strategy, text)
    except ExpressError as error:
        refused = str(error)
    kept = [file for file in files if file.name != README]
    page = describe(plan, files=kept, refused=refused, origin=origin, answer=answer)
    return rendered("page.html.j2", page=page)


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
    points = (answer.frontier or answer.ladder) if answer else ()
    proved = answer is not None and answer.proved_optimal
    by_gpus = sorted(points, key=lambda each: -each.strategy.num_gpus)
    others = [
        each
        for each in ((*answer.plans, answer.fastest) if answer else ())
        if each and (differences(strategy, each.strategy) or each.framework != plan.framework)
    ]
    stages = [
        (
            f"{stage}",
            f"{strategy.layers_per_stage[stage]}",
            f"{peak / GIB:,.2f}",
            f"{(hbm_bytes - peak) / GIB:,.2f}",
            estimate.memory.verdict_at(peak),
        )
        for stage, peak in enumerate(estimate.memory.stage_peak_bytes)
    ]
    nearby = evidence(context, strategy).line(context)
    named = filter(None, (item_of(f"time.{name}") for name in estimate.time))
    sentences = {item.address: summary_of(item) for item in named}
    return {
        "title": f"{context.model.name} on {context.cluster.name}: plan",
        "headline": (
            f"Train {context.model.name} on {strategy.num_gpus:,} "
            f"{context.cluster.accelerator.name} under {plan.framework}: {layout_words(plan)}."
        ),
        "tiles": _tiles(plan),
        "decisions": [
            ("framework", f"{plan.framework}, profile {context.traits.profile}"),
            *decisions(context, strategy),
            ("on the network", placement_line(context, strategy)),
        ],
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
        "ledger": ledger_table(stage_ledger(price(context, strategy), fullest), 40),
        "proof": "best under the model, as was proved" if proved else "not proved best",
        "others": plans_table([plan, *others[:8]], fastest=answer.fastest)
        if answer and others
        else None,
        "frontier": plans_table(by_gpus) if len(by_gpus) > 1 else None,
        "trust": (range_line(estimate), nearby, mfu_line(plan)),
        "assumed": assumptions_line(context, [strategy]),
        "notes": [str(note) for note in answer.notes] if answer else (),
        "files": [
            (f"{each.name} ({each.text.count(chr(10)):,} lines)", each.text) for each in files
        ],
        "refused": refused,
        "made_by": f"Modelled by planner {__version__}, not measured. Made by: {origin}",
    }


def _tiles(plan: Plan) -> list[tuple[str, str, str]]:
    """The main figures, each with its name and a note."""
    estimate, memory = plan.estimate, plan.estimate.memory
    interval = f"{range_text(estimate)} in eight of ten such runs"
    per_gpu = f"{estimate.tokens_per_s_per_gpu:,.0f} per GPU"
    full_square = f"{mfu_text(plan, full_square=True)} counting the whole attention square"
    held = f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB"
    left = memory.free_bytes
    free = f"{format_bytes(abs(left))} {'free' if left >= 0 else 'missing'}"
    uncertain = f"{free}; uncertain by {format_bytes(memory.uncertainty_bytes)}"
    found = [
        (format_seconds(estimate.iter_time_s), "per iteration", interval),
        (format_count(estimate.tokens_per_s), "tokens per second", per_gpu),
        (mfu_text(plan), "model FLOPs utilisation", full_square),
        (held, f"HBM of the fullest rank: {memory.verdict}", uncertain),
    ]
    if tokens := plan.context.job.total_tokens:
        name = f"for {format_count(tokens)} tokens"
        found.append((format_seconds(plan.span_s()), name, job_line(plan)))
    return found


def _time_items(estimate: Estimate) -> Table[Sequence[str]]:
    """Every item of time: what it adds, and how long it runs where part of it hides."""
    rows = []
    largest_first = sorted(estimate.time.items(), key=lambda each: -each[1].exposed_s)
    for name, item in largest_first:
        hidden_s = item.busy_s - item.exposed_s
        hidden = format_seconds(hidden_s) if hidden_s > max(1e-3 * item.busy_s, 0.0) else ""
        adds, share = format_seconds(item.exposed_s), item.exposed_s / estimate.iter_time_s
        rows.append((item_title(name), f"time.{name}", adds, f"{share:.1%}", hidden))
    whole = ("iteration", "", format_seconds(estimate.iter_time_s), "100.0%", "")
    head = ("on the slowest stage", "item", "adds", "share", "overlapped")
    return text_table(head, [*rows, whole], left=("item",))
