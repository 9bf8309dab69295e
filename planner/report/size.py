"""Screen and JSON of `planner size`: the fewest GPUs that do a job, and the sizes around."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from planner.answers.base import Plan
from planner.answers.layout import short_layout
from planner.answers.rows import InputsRow, PlanRow
from planner.answers.size import Sizing
from planner.answers.size_rows import ChosenSizeRow, NearestSizeRow, SizeDocument, SizeRow
from planner.answers.software import assumptions_line
from planner.cost.context import Context
from planner.notes import Note
from planner.query.objectives import AMOUNTS
from planner.report.document import serialise
from planner.report.sizing_words import (
    count_text,
    job_text,
    limits_text,
    missed_text,
    option_text,
    time_text,
)
from planner.report.table import Column, Table, rich_table
from planner.report.tables import layout, layout_axes
from planner.report.words import (
    costs_line,
    evidence_line,
    memory_lines,
    placement_line,
    print_notes,
    range_line,
    run_line,
    selects_lines,
    time_line,
    utilization_line,
)
from planner.units import format_seconds

WIDE_COLUMNS = 110  # room for what else tells sizes apart
PLACES_BESIDE = (0, 1, 2, 4)  # of the answer, whose sizes are shown


def print_sizing(
    sizing: Sizing, notes: Sequence[Note], console: Console, *, verbose: bool = False
) -> None:
    """Print the size and its plan, and the sizes around it; ``verbose``: what all rests on."""
    context = sizing.case.context
    frameworks = ", ".join(each.traits.name for each in sizing.case.contexts)
    asked = limits_text(sizing.limits) or "the fewest GPUs that hold it"
    batch = f"batch {context.job.global_batch}"
    console.print(f"{job_words(context, batch)}, {frameworks}: {asked}", style="dim")
    if sizing.case.narrowing.texts:
        console.print(f"narrowed by {', '.join(sizing.case.narrowing.texts)}")
    print_notes([note for note in notes if not note.is_assumed], console)
    if sizing.chosen:
        _print_chosen(sizing, sizing.chosen, console)
    else:
        most = context.cluster.num_accelerators
        line = f"No size up to {most:,} GPUs does it; the nearest are marked."
        console.print(line, style="bold yellow")
    console.print(_sizes_table(sizing, wide=console.width >= WIDE_COLUMNS))
    if verbose:
        _print_grounds(sizing, notes, console)
        return
    if not sizing.is_complete:
        console.print(search_line(sizing), style="yellow")
    console.print("-v adds assumptions, prices, evidence and the search.", style="dim")


def job_words(context: Context, batch: str) -> str:
    """What is trained on which node, in one line."""
    return (
        f"{context.model.name} on {context.cluster.node.name}, {batch} x {context.job.seq_len} "
        f"tokens, {context.job.precision}{context.traits.training.suffix}"
    )


def _marked(sizing: Sizing) -> tuple[Plan, ...]:
    return (sizing.chosen,) if sizing.chosen else sizing.nearest


def shown_sizes(sizing: Sizing) -> list[Plan]:
    """The chosen (or nearest) size, those 1, 2 and 4 places beside it, and both ends."""
    marked = {size.num_gpus: size for size in _marked(sizing)}
    sizes = [marked.get(size.num_gpus, size) for size in sizing.sizes]
    rows = {0, len(sizes) - 1}
    for row, size in enumerate(sizes):
        if size.num_gpus in marked:
            rows |= {row + sign * step for step in PLACES_BESIDE for sign in (-1, 1)}
    return [sizes[row] for row in sorted(rows) if 0 <= row < len(sizes)]


def _sizes_table(sizing: Sizing, *, wide: bool) -> RichTable:
    """The sizes around the answer, which is marked, and what each misses."""
    shown = shown_sizes(sizing)
    marked = {size.num_gpus for size in _marked(sizing)}
    axes = layout_axes(shown)
    known = sizing.case.context.job.total_tokens is not None
    per = "" if known else "/1k it"

    def amount_column(name: str) -> Column[Plan]:
        def text(size: Plan) -> str:
            value = size.amounts()[name]
            return "-" if value is None else (AMOUNTS[name].text or count_text)(value)

        return Column(f"{AMOUNTS[name].column}{per}", text)

    columns: list[Column[Plan]] = [
        Column("", lambda size: ">" if size.num_gpus in marked else "", right=False),
        Column("GPUs", lambda size: f"{size.num_gpus:,}"),
    ]
    if wide:
        columns.append(Column("nodes", lambda size: f"{size.num_nodes:,}"))
    if len(sizing.case.contexts) > 1:
        columns.append(Column("framework", lambda size: size.framework, right=False))
    columns += [
        Column("·".join(axes), lambda size: layout(size.strategy, axes), right=False),
        Column("iteration", lambda size: format_seconds(size.estimate.iter_time_s)),
        Column("tokens/s", lambda size: count_text(size.estimate.tokens_per_s)),
    ]
    if known:
        columns.append(Column("time", lambda size: time_text(size.span_s())))
    columns.append(Column(f"GPU-h{per}", lambda size: count_text(size.gpu_hours())))
    for name, amount in AMOUNTS.items():
        is_known = any(size.amounts()[name] is not None for size in shown)
        if is_known and (wide or amount.is_always_shown):
            columns.append(amount_column(name))
    if not sizing.limits.is_empty:

        def missed(size: Plan) -> str:
            return missed_text(size, sizing, bare=True) or "-"

        columns.append(Column("misses by", missed, right=False, wraps=True))
    return rich_table(Table(shown, columns))


def _print_chosen(sizing: Sizing, plan: Plan, console: Console) -> None:
    """The size, what to run on it, and why no smaller one does."""
    console.print(_head(sizing, plan), style="bold green")
    names_framework = len(sizing.case.contexts) > 1
    run = run_line(plan, of_gpus=plan.num_gpus, names_framework=names_framework)
    console.print(run, style="bold")
    for line in (time_line(plan), utilization_line(plan), *memory_lines(plan)):
        console.print(f"  {line}")
    is_job = sizing.case.context.job.total_tokens is not None
    if is_job:
        console.print(f"  the job: {job_text(plan)}")
    below = [size for size in sizing.sizes if size.num_gpus < plan.num_gpus]
    if below:
        why = missed_text(below[-1], sizing) or "not enough in a cluster of their own"
        gpus = below[-1].num_gpus
        console.print(f"No smaller size does: {gpus:,} GPUs, the next, are {why}.")
    if size := sizing.resident:
        console.print(
            f"With nothing offloaded {size.num_gpus:,} do ({size.num_nodes:,} x "
            f"{sizing.case.context.cluster.node.name}, {short_layout(size.strategy)}): "
            f"{format_seconds(size.estimate.iter_time_s)} per iteration."
        )
    if is_job:
        console.print(_slow_end_line(sizing, plan))


def _head(sizing: Sizing, plan: Plan) -> str:
    """How many GPUs, and where."""
    node, gpus = sizing.case.context.cluster.node, plan.num_gpus
    is_part = plan.num_nodes == 1 and gpus < node.num_accelerators
    place = f"of a {node.name}" if is_part else f"{plan.num_nodes:,} x {node.name}"
    holds = sizing.limits.is_empty
    if gpus == 1:
        return f"1 GPU ({place}) is the fewest that {'holds' if holds else 'does'} it."
    return f"{gpus:,} GPUs ({place}) are the fewest that {'hold' if holds else 'do'} it."


def _slow_end_line(sizing: Sizing, plan: Plan) -> str:
    """Whether the deadline holds where such runs were slowest."""
    slow_s = plan.span_s() * plan.estimate.iter_time_s_upper / plan.estimate.iter_time_s
    deadline_s = sizing.limits.deadline_s
    late = f", {time_text(slow_s - deadline_s)} late" if deadline_s and slow_s > deadline_s else ""
    return f"At the slow end of that the job takes {time_text(slow_s)}{late}."


def search_line(sizing: Sizing) -> str:
    """How far was searched, and what of it is proved."""
    proof = "proved optimal under the model" if sizing.is_complete else "optimality NOT proved"
    return (
        f"Searched {sum(r.num_configurations for r in sizing.searches):,} configurations on up to "
        f"{sizing.case.context.cluster.num_accelerators:,} GPUs in {sizing.seconds:.2f} s: "
        f"{len(sizing.sizes)} sizes are faster than every smaller one; {proof}."
    )


def _print_grounds(sizing: Sizing, notes: Sequence[Note], console: Console) -> None:
    """What the size rests on: its plan's costs, evidence, prices, software, search."""
    if plan := sizing.chosen:
        for line in (
            *selects_lines([plan]),
            costs_line(plan),
            f"Placed {placement_line(plan.context, plan.strategy)}.",
            range_line(plan.estimate),
            evidence_line(plan.context, plan.strategy),
        ):
            console.print(line)
    cluster = sizing.case.context.cluster
    time = "time: without start-up, checkpoints, evaluation, failures and restarts."
    for line in (time, *(amount.basis(cluster) for amount in AMOUNTS.values())):
        console.print(line, style="dim")
    print_notes([note for note in notes if note.is_assumed], console)
    for context in sizing.case.contexts:
        used = [size.strategy for size in sizing.sizes if size.context.traits == context.traits]
        if used:
            console.print(assumptions_line(context, used), style="dim")
    console.print(search_line(sizing), style="dim")


def render_sizing_json(sizing: Sizing, notes: Sequence[Note]) -> str:
    """Return everything as JSON, base units throughout."""
    limits, chosen = sizing.limits, sizing.chosen
    cluster = sizing.case.context.cluster
    nearest = []
    for size in sizing.nearest:
        options = [option_text(size, limit) for limit in limits.missed_by(size)]
        nearest.append(NearestSizeRow.of(size, limits, options=options))
    data = SizeDocument(
        inputs=InputsRow.of(sizing.case.contexts, sizing.case.narrowing, tuple(notes)),
        limits=limits,
        includes={name: amount.includes for name, amount in AMOUNTS.items()},
        usd_per_node_hour=cluster.node.usd_per_hour,
        price_source=cluster.node.price_note,
        power_w_per_gpu=cluster.accelerator.tdp_w,
        chosen=ChosenSizeRow.of(chosen, limits, plan=PlanRow.of(chosen)) if chosen else None,
        sizes=[SizeRow.of(size, limits) for size in sizing.sizes],
        nearest=nearest,
        enough=SizeRow.of(sizing.enough, limits) if sizing.enough else None,
        resident=SizeRow.of(sizing.resident, limits) if sizing.resident else None,
        seconds=sizing.seconds,
        proved_optimal=sizing.is_complete,
    )
    return serialise("size", data)
