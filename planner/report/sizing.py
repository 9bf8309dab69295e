"""The forms of a sizing: headline, plan and the sizes around it; JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from planner.answers.rows import PlanRow
from planner.answers.size import Sizing
from planner.answers.software import assumptions_line
from planner.notes import Note
from planner.plans.differences import short_layout
from planner.plans.plan import Plan
from planner.query.objectives import AMOUNTS
from planner.report.document import serialise
from planner.report.evidence import evidence_line, range_line
from planner.report.headline import memory_lines, run_line, time_line, utilization_line
from planner.report.placement import placement_line
from planner.report.sizing_words import (
    count_text,
    job_text,
    limits_text,
    missed_text,
    option_text,
    time_text,
)
from planner.report.table import Column, Table, rich_table
from planner.report.tables import SPELLED_OUT_COLUMNS, layout, layout_axes
from planner.report.text import costs_line, print_notes, selects_lines
from planner.units import format_seconds

MISSES = "misses by"
PLACES_BESIDE = (0, 1, 2, 4)


def inputs_line(sizing: Sizing) -> str:
    """What was asked, in one line."""
    context = sizing.case.context
    job = context.job
    frameworks = ", ".join(c.traits.name for c in sizing.case.contexts)
    return (
        f"{context.model.name} on {context.cluster.node.name}, "
        f"batch {job.global_batch} x {job.seq_len} tokens, {job.precision}"
        f"{context.traits.training.suffix}, {frameworks}: "
        f"{limits_text(sizing.limits) or 'the fewest GPUs that hold it'}"
    )


def shown_sizes(sizing: Sizing) -> list[Plan]:
    """The chosen (or nearest) size, those 1, 2 and 4 places beside it, and both ends."""
    marked = {size.num_gpus: size for size in _marked(sizing)}
    sizes = [marked.get(size.num_gpus, size) for size in sizing.sizes]
    rows = {0, len(sizes) - 1}
    for row, size in enumerate(sizes):
        if size.num_gpus in marked:
            rows |= {row + sign * step for step in PLACES_BESIDE for sign in (-1, 1)}
    return [sizes[row] for row in sorted(rows) if 0 <= row < len(sizes)]


def _marked(sizing: Sizing) -> tuple[Plan, ...]:
    return (sizing.chosen,) if sizing.chosen else sizing.nearest


def _amount_text(size: Plan, name: str) -> str:
    value = size.amounts()[name]
    return "-" if value is None else (AMOUNTS[name].text or count_text)(value)


def sizes_table(sizing: Sizing, *, wide: bool) -> RichTable:
    """The sizes around the answer, which is marked, and what each misses."""
    shown = shown_sizes(sizing)
    marked = {size.num_gpus for size in _marked(sizing)}
    axes = layout_axes(shown)
    known = sizing.case.context.job.total_tokens is not None
    per = "" if known else "/1k it"

    def amount_column(name: str) -> Column[Plan]:
        return Column(f"{AMOUNTS[name].column}{per}", lambda size: _amount_text(size, name))

    def is_shown(name: str) -> bool:
        is_worth_it = wide or AMOUNTS[name].is_always_shown
        return is_worth_it and any(size.amounts()[name] is not None for size in shown)

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
    columns += [amount_column(name) for name in AMOUNTS if is_shown(name)]
    if not sizing.limits.is_empty:
        columns.append(
            Column(
                MISSES,
                lambda size: missed_text(size, sizing, bare=True) or "-",
                right=False,
                wraps=True,
            )
        )
    return rich_table(Table(shown, columns))


def _chosen_lines(sizing: Sizing, chosen: Plan) -> list[str]:
    """The headline, and why the next smaller size does not do."""
    node = sizing.case.context.cluster.node.name
    holds = sizing.limits.is_empty
    does = "hold it" if holds else "do it"
    count = f"{chosen.num_gpus:,} GPU{'s' * (chosen.num_gpus > 1)}"
    verb = "are" if chosen.num_gpus > 1 else "is"
    does = does if chosen.num_gpus > 1 else does.replace("hold", "holds").replace("do ", "does ")
    place = f"{chosen.num_nodes:,} x {node}"
    if (
        chosen.num_nodes == 1
        and chosen.num_gpus < sizing.case.context.cluster.node.num_accelerators
    ):
        place = f"of a {node}"
    lines = [f"{count} ({place}) {verb} the fewest that {does}."]
    below = [size for size in sizing.sizes if size.num_gpus < chosen.num_gpus]
    if below:
        why = missed_text(below[-1], sizing) or "not enough in a cluster of their own"
        lines.append(f"No smaller size does: {below[-1].num_gpus:,} GPUs, the next, are {why}.")
    if sizing.resident:
        size = sizing.resident
        lines.append(
            f"With nothing offloaded {size.num_gpus:,} do ({size.num_nodes:,} x {node}, "
            f"{short_layout(size.strategy)}): {format_seconds(size.estimate.iter_time_s)} per "
            "iteration."
        )
    return lines


def _slow_end_line(sizing: Sizing, chosen: Plan) -> str:
    """Whether the deadline holds where such runs were slowest; empty without a job's length."""
    if sizing.case.context.job.total_tokens is None:
        return ""
    estimate = chosen.estimate
    slow_s = chosen.span_s() * estimate.iter_time_s_upper / estimate.iter_time_s
    deadline_s = sizing.limits.deadline_s
    late = deadline_s is not None and slow_s > deadline_s
    past = f", {time_text(slow_s - deadline_s)} late" if late and deadline_s else ""
    return f"At the slow end of that the job takes {time_text(slow_s)}{past}."


def _basis_lines(sizing: Sizing) -> list[str]:
    """What stands behind time, cost and energy."""
    time = "time: without start-up, checkpoints, evaluation, failures and restarts."
    cluster = sizing.case.context.cluster
    return [time, *(amount.basis(cluster) for amount in AMOUNTS.values())]


def search_line(sizing: Sizing) -> str:
    """How far was searched, and what of it is proved."""
    proof = "proved optimal under the model" if sizing.is_complete else "optimality NOT proved"
    return (
        f"Searched {sum(r.num_configurations for r in sizing.searches):,} configurations on up to "
        f"{sizing.case.context.cluster.num_accelerators:,} GPUs in {sizing.seconds:.2f} s: "
        f"{len(sizing.sizes)} sizes are faster than every smaller one; {proof}."
    )


def _print_chosen(sizing: Sizing, chosen: Plan, console: Console) -> None:
    """The size, what to run on it, and why no smaller one does."""
    plan = chosen
    head, *why = _chosen_lines(sizing, chosen)
    console.print(head, style="bold green", markup=False)
    several = len(sizing.case.contexts) > 1
    run = run_line(plan, of_gpus=chosen.num_gpus, names_framework=several)
    console.print(run, style="bold", markup=False)
    has_tokens = sizing.case.context.job.total_tokens is not None
    job = [f"the job: {job_text(chosen)}"] if has_tokens else []
    for line in (time_line(plan), utilization_line(plan), *memory_lines(plan), *job):
        console.print(f"  {line}", markup=False)
    for line in (*why, _slow_end_line(sizing, chosen)):
        if line:
            console.print(line, markup=False)


def _print_grounds(sizing: Sizing, notes: Sequence[Note], console: Console) -> None:
    """What the size rests on: its plan's costs, evidence, prices, software, search."""
    if sizing.chosen:
        plan = sizing.chosen
        for line in (*selects_lines([plan]), costs_line(plan)):
            console.print(line, markup=False)
        console.print(f"Placed {placement_line(plan.context, plan.strategy)}.")
        console.print(range_line(plan.estimate))
        console.print(evidence_line(plan.context, plan.strategy), markup=False)
    for line in _basis_lines(sizing):
        console.print(line, style="dim")
    print_notes([note for note in notes if note.is_assumed], console)
    for context in sizing.case.contexts:
        used = [size.strategy for size in sizing.sizes if size.context.traits == context.traits]
        if used:
            console.print(assumptions_line(context, used), style="dim", markup=False)
    console.print(search_line(sizing), style="dim")


def print_sizing(
    sizing: Sizing, notes: Sequence[Note], console: Console, *, verbose: bool = False
) -> None:
    """Print the size and its plan, and the sizes around it; ``verbose``: what all rests on."""
    console.print(inputs_line(sizing), style="dim", markup=False)
    if sizing.case.narrowing.texts:
        console.print(f"narrowed by {', '.join(sizing.case.narrowing.texts)}", markup=False)
    print_notes([note for note in notes if not note.is_assumed], console)
    if sizing.chosen:
        _print_chosen(sizing, sizing.chosen, console)
    else:
        most = sizing.case.context.cluster.num_accelerators
        line = f"No size up to {most:,} GPUs does it; the nearest are marked."
        console.print(line, style="bold yellow")
    console.print(sizes_table(sizing, wide=console.width >= SPELLED_OUT_COLUMNS))
    if verbose:
        _print_grounds(sizing, notes, console)
    elif not sizing.is_complete:
        console.print(search_line(sizing), style="yellow")
    if not verbose:
        console.print("-v adds assumptions, prices, evidence and the search.", style="dim")


def _size_dict(size: Plan, sizing: Sizing) -> dict[str, Any]:
    strategy = {**asdict(size.strategy), "recompute": size.strategy.recompute}
    return {
        "gpus": size.num_gpus,
        "nodes": size.num_nodes,
        "framework": size.framework,
        "strategy": strategy,
        "iter_time_s": size.estimate.iter_time_s,
        "tokens_per_s": size.estimate.tokens_per_s,
        "total_s": size.span_s(),
        "gpu_hours": size.gpu_hours(),
        **size.amounts(),
        "misses": list(sizing.limits.missed_by(size)),
        "proved_optimal": size.is_optimal,
    }


def _nearest_dict(size: Plan, sizing: Sizing) -> dict[str, Any]:
    options = [option_text(size, limit) for limit in sizing.limits.missed_by(size)]
    return {**_size_dict(size, sizing), "options": options}


def render_sizing_json(sizing: Sizing, notes: Sequence[Note]) -> str:
    """Return everything as JSON, base units throughout."""
    context, chosen, enough = sizing.case.context, sizing.chosen, sizing.enough
    cluster = context.cluster
    data = {
        "inputs": {
            "model": context.model.name,
            "node": cluster.node.name,
            "accelerator": cluster.accelerator.name,
            "max_gpus": cluster.num_accelerators,
            "frameworks": [c.traits.name for c in sizing.case.contexts],
            "profiles": [c.traits.profile for c in sizing.case.contexts],
            "global_batch": context.job.global_batch,
            "seq_len": context.job.seq_len,
            "precision": context.job.precision,
            **context.traits.training.inputs,
            "total_tokens": context.job.total_tokens,
            "narrowing": list(sizing.case.narrowing.texts),
            "assumed": [str(note) for note in notes],
        },
        "limits": asdict(sizing.limits),
        "includes": {name: amount.includes for name, amount in AMOUNTS.items()},
        "usd_per_node_hour": cluster.node.usd_per_hour,
        "price_source": cluster.node.price_note,
        "power_w_per_gpu": cluster.accelerator.tdp_w,
        "chosen": chosen and {**_size_dict(chosen, sizing), "plan": PlanRow.of(chosen)},
        "sizes": [_size_dict(size, sizing) for size in sizing.sizes],
        "nearest": [_nearest_dict(size, sizing) for size in sizing.nearest],
        "enough": enough and _size_dict(enough, sizing),
        "resident": sizing.resident and _size_dict(sizing.resident, sizing),
        "seconds": sizing.seconds,
        "proved_optimal": sizing.is_complete,
    }
    return serialise("size", data)
