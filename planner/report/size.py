"""Screens and JSON of `planner size`: the fewest GPUs that do a job, and how a job scales."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

from rich.console import Console
from rich.text import Text

from planner.answers.base import Plan
from planner.answers.layout import short_layout
from planner.answers.rows import InputsRow
from planner.answers.scale import (
    BITE_FRACTION,
    ScaleDocument,
    ScalePoint,
    ScaleRow,
    Scaling,
    gpus_for_deadline,
    shares,
)
from planner.answers.size import SizeDocument, SizeRow, Sizing
from planner.cost.context import Context
from planner.notes import Note
from planner.query.objectives import AMOUNTS, JobLimits
from planner.report.sizing_words import (
    count_text,
    job_text,
    limits_text,
    missed_text,
    option_text,
    time_text,
)
from planner.report.table import Column, Table, show
from planner.report.tables import amount_column, layout, layout_axes
from planner.report.words import (
    costs_line,
    evidence_line,
    memory_lines,
    note_lines,
    placement_line,
    range_line,
    run_line,
    selects_line,
    software_lines,
    time_line,
    utilization_line,
)
from planner.units import DAY_S, format_count, format_seconds

TITLES = {
    "bubble": "pipeline bubble",
    "DP": "data-parallel communication",
    "TP": "tensor- and context-parallel communication",
    "EP": "expert all-to-all",
    "p2p": "pipeline transfers",
    "recompute": "recomputation",
    "compute": "slower kernels (smaller pieces)",
    "other": "optimizer step, offload and overhead",
}


def print_sizing(
    sizing: Sizing, notes: Sequence[Note], console: Console, *, verbose: bool = False
) -> None:
    """Print the size and its plan, and the sizes around it; ``verbose``: what all rests on."""
    context = sizing.case.context
    frameworks = ", ".join(each.traits.name for each in sizing.case.contexts)
    asked = limits_text(sizing.limits) or "the fewest GPUs that hold it"
    inputs = f"{_job_words(context, f'batch {context.job.global_batch}')}, {frameworks}: {asked}"
    narrowed = sizing.case.narrowing.texts
    most = context.cluster.num_accelerators
    none = f"No size up to {most:,} GPUs does it; the nearest are marked."
    show(
        console,
        Text(inputs, "dim"),
        f"narrowed by {', '.join(narrowed)}" if narrowed else "",
        *note_lines(notes, assumed=False),
        *(_chosen(sizing, sizing.chosen) if sizing.chosen else [Text(none, "bold yellow")]),
        # Room for what else tells sizes apart.
        _sizes_table(sizing, wide=console.width >= 110),
    )
    if verbose:
        show(console, *_grounds(sizing, notes))
        return
    show(
        console,
        "" if sizing.is_complete else Text(_search_line(sizing), "yellow"),
        Text("-v adds assumptions, prices, evidence and the search.", "dim"),
    )


def _job_words(context: Context, batch: str) -> str:
    return (
        f"{context.model.name} on {context.cluster.node.name}, {batch} x {context.job.seq_len} "
        f"tokens, {context.job.precision}{context.traits.training.suffix}"
    )


def _shown_sizes(sizing: Sizing, marked: Mapping[int, Plan]) -> list[Plan]:
    """The marked sizes, those 1, 2 and 4 places beside them, and both ends."""
    sizes = [marked.get(size.num_gpus, size) for size in sizing.sizes]
    places = {0, len(sizes) - 1}
    for place, size in enumerate(sizes):
        if size.num_gpus in marked:
            places |= {place + step for step in (-4, -2, -1, 0, 1, 2, 4)}
    return [sizes[place] for place in sorted(places) if 0 <= place < len(sizes)]


def _sizes_table(sizing: Sizing, *, wide: bool) -> Table[Plan]:
    """The sizes around the answer, which is marked, and what each misses."""
    of_answer = (sizing.chosen,) if sizing.chosen else sizing.nearest
    marked = {size.num_gpus: size for size in of_answer}
    shown = _shown_sizes(sizing, marked)
    axes = layout_axes(shown)
    known = sizing.case.context.job.total_tokens is not None
    per = "" if known else "/1k it"

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
            columns.append(amount_column(name, per, count_text))
    if not sizing.limits.is_empty:

        def missed(size: Plan) -> str:
            return missed_text(size, sizing, bare=True) or "-"

        columns.append(Column("misses by", missed, right=False, wraps=True))
    return Table(shown, columns)


def _chosen(sizing: Sizing, plan: Plan) -> list[Text]:
    """The size, what to run on it, and why no smaller one does."""
    job = sizing.case.context.job
    run = run_line(plan, of_gpus=plan.num_gpus, names_framework=len(sizing.case.contexts) > 1)
    figures = [time_line(plan), utilization_line(plan), *memory_lines(plan)]
    if job.total_tokens is not None:
        figures.append(f"the job: {job_text(plan)}")
    others = []
    below = [size for size in sizing.sizes if size.num_gpus < plan.num_gpus]
    if below:
        why = missed_text(below[-1], sizing) or "not enough in a cluster of their own"
        others.append(f"No smaller size does: {below[-1].num_gpus:,} GPUs, the next, are {why}.")
    if size := sizing.resident:
        others.append(
            f"With nothing offloaded {size.num_gpus:,} do ({size.num_nodes:,} x "
            f"{sizing.case.context.cluster.node.name}, {short_layout(size.strategy)}): "
            f"{format_seconds(size.estimate.iter_time_s)} per iteration."
        )
    if job.total_tokens is not None:
        made, deadline_s = plan.estimate, sizing.limits.deadline_s
        slow_s = plan.span_s() * made.iter_time_s_upper / made.iter_time_s
        is_late = deadline_s is not None and slow_s > deadline_s
        late = f", {time_text(slow_s - (deadline_s or 0.0))} late" if is_late else ""
        others.append(f"At the slow end of that the job takes {time_text(slow_s)}{late}.")
    node, gpus = sizing.case.context.cluster.node, plan.num_gpus
    is_part = plan.num_nodes == 1 and gpus < node.num_accelerators
    place = f"of a {node.name}" if is_part else f"{plan.num_nodes:,} x {node.name}"
    one, several = ("holds", "hold") if sizing.limits.is_empty else ("does", "do")
    head = f"{gpus:,} GPUs ({place}) are the fewest that {several} it."
    if gpus == 1:
        head = f"1 GPU ({place}) is the fewest that {one} it."
    styled = [Text(head, "bold green"), Text(run, "bold")]
    return [*styled, *(Text(f"  {line}") for line in figures), *map(Text, others)]


def _search_line(sizing: Sizing) -> str:
    proof = "proved optimal under the model" if sizing.is_complete else "optimality NOT proved"
    return (
        f"Searched {sum(r.num_configurations for r in sizing.searches):,} configurations on up to "
        f"{sizing.case.context.cluster.num_accelerators:,} GPUs in {sizing.seconds:.2f} s: "
        f"{len(sizing.sizes)} sizes are faster than every smaller one; {proof}."
    )


def _grounds(sizing: Sizing, notes: Sequence[Note]) -> list[Text | str]:
    """Return what the size rests on: its plan's costs, evidence, prices, software, search."""
    lines = []
    if plan := sizing.chosen:
        lines = [
            selects_line([plan]),
            costs_line(plan),
            f"Placed {placement_line(plan.context, plan.strategy)}.",
            range_line(plan.estimate),
            evidence_line(plan.context, plan.evidence),
        ]
    basis = [amount.basis(sizing.case.context.cluster) for amount in AMOUNTS.values()]
    basis.insert(0, "time: without start-up, checkpoints, evaluation, failures and restarts.")
    return [
        *lines,
        *(Text(line, "dim") for line in basis),
        *note_lines(notes, assumed=True),
        *software_lines(sizing.case.contexts, sizing.sizes),
        Text(_search_line(sizing), "dim"),
    ]


def _size_row(size: Plan, limits: JobLimits) -> SizeRow:
    missed = limits.missed_by(size)
    return SizeRow.of(
        size,
        nodes=size.num_nodes,
        total_s=size.span_s(),
        misses=list(missed),
        options=[option_text(size, one) for one in missed],
    )


def size_document(sizing: Sizing, notes: Sequence[Note]) -> SizeDocument:
    """Everything in base units."""
    limits, node = sizing.limits, sizing.case.context.cluster.node
    return SizeDocument(
        inputs=InputsRow.of(sizing.case.contexts, sizing.case.narrowing, tuple(notes)),
        limits=limits,
        includes={name: amount.includes for name, amount in AMOUNTS.items()},
        usd_per_node_hour=node.usd_per_hour,
        price_source=node.price_note,
        power_w_per_gpu=node.accelerator.tdp_w,
        chosen=_size_row(sizing.chosen, limits) if sizing.chosen else None,
        sizes=[_size_row(size, limits) for size in sizing.sizes],
        nearest=[_size_row(size, limits) for size in sizing.nearest],
        enough=_size_row(sizing.enough, limits) if sizing.enough else None,
        resident=_size_row(sizing.resident, limits) if sizing.resident else None,
        seconds=sizing.seconds,
        proved_optimal=sizing.is_complete,
    )


def _scaling_table(result: Scaling) -> Table[ScalePoint]:
    axes = layout_axes([plan for _, plan in result.fitting])

    def of_plan(title: str, text: Callable[[Plan], str]) -> Column[ScalePoint]:
        return Column(title, lambda point: text(point.plan) if point.plan else "")

    columns: list[Column[ScalePoint]] = [
        Column("GPUs", lambda point: f"{point.num_gpus:,}"),
        Column(
            "·".join(axes),
            lambda point: layout(point.plan.strategy, axes) if point.plan else "none",
        ),
        of_plan("iteration", lambda plan: format_seconds(plan.estimate.iter_time_s)),
        of_plan("tokens/s", lambda plan: format_count(round(plan.estimate.tokens_per_s))),
        of_plan("speed-up", lambda plan: f"{result.speed_up(plan):,.1f}"),
        of_plan("efficiency", lambda plan: f"{result.efficiency(plan):.1%}"),
        of_plan("MFU", lambda plan: f"{plan.estimate.mfu:.1%}"),
    ]
    if result.base.context.job.total_tokens:
        days = of_plan("days", lambda plan: f"{(plan.total_s() or 0.0) / DAY_S:,.1f}")
        columns.insert(4, days)
    if result.is_weak:
        columns.insert(1, Column("batch", lambda point: f"{point.global_batch:,}"))
    return Table(result.points, columns)


def _shares_table(result: Scaling) -> Table[Sequence[str]]:
    found = [shares(plan.estimate) for _, plan in result.fitting]
    # Limits that never take this share of an iteration get no column.
    shown = [name for name in found[0] if max(part[name] for part in found) >= 0.005]
    rows = []
    for (point, plan), part in zip(result.fitting, found, strict=True):
        # Beside what takes most, that the batch is exhausted.
        limits = filter(None, (result.limit(plan), "batch" if point.is_exhausted else ""))
        rows.append(
            (
                f"{point.num_gpus:,}",
                f"{plan.strategy.num_micro_batches:,}",
                *(f"{part[name]:.0%}" for name in shown),
                "+".join(limits) or "-",
            )
        )
    columns: list[Column[Sequence[str]]] = [
        Column(title, itemgetter(place), right=title != "limit")
        for place, title in enumerate(("GPUs", "micro-\nbatches", *shown, "limit"))
    ]
    return Table(rows, columns)


def _bite_lines(result: Scaling) -> Iterator[str]:
    """Where each limit begins to bite, the earliest first."""
    for name, sizes in sorted(result.bites().items(), key=lambda item: item[1][0][0]):
        (first, loss), (last, _) = sizes[0], sizes[-1]
        worst, most = max(sizes, key=lambda size: size[1])
        where = f"at {first:,} to {last:,} GPUs"
        if first == last:
            where = f"at {first:,} GPUs"
        elif last == result.largest.strategy.num_gpus:
            where = f"from {first:,} GPUs on"
        at_worst = f", {most:.1%} at {worst:,}" if worst != first else ""
        yield f"{name}: {TITLES[name]} takes {loss:.1%} {where}{at_worst}."
    exhausted = result.exhausted_from()
    if exhausted is not None:
        yield (
            f"batch: exhausted from {exhausted:,} GPUs on (one micro-batch per replica): more "
            "GPUs can only cut the model into smaller pieces."
        )
    reasons: dict[str, list[str]] = {}
    for point in result.points:
        if point.plan is None:
            reasons.setdefault(point.why_none, []).append(f"{point.num_gpus:,}")
    yield from (f"none on {', '.join(sizes)} GPUs: {why}." for why, sizes in reasons.items())


def _deadline_line(result: Scaling, seconds: float) -> str:
    """The fewest GPUs that finish in time, and how many would do at their rate."""
    plan = result.finishes_in(seconds)
    job = plan.context.job if plan else result.base.context.job
    tokens = format_count(job.total_tokens or 0)
    head = f"{tokens} tokens in {seconds / DAY_S:g} days"
    if plan is None:
        return f"{head}: on none of these sizes."
    gpus, flops = plan.strategy.num_gpus, plan.estimate.model_flops
    rate = flops / (plan.estimate.iter_time_s * gpus)
    num_iterations = (job.total_tokens or 0) / job.tokens_per_iteration
    enough = gpus_for_deadline(num_iterations * flops, rate, seconds)
    return (
        f"{head}: {gpus:,} GPUs take {(plan.total_s() or 0.0) / DAY_S:.1f}; at their "
        f"{rate / 1e12:.0f} TFLOP/s each, about {enough:,.0f} would do."
    )


def _verdict_line(result: Scaling) -> str:
    """How far the largest size gets, and what takes most of what is lost."""
    plan = result.largest
    gpus, base = plan.strategy.num_gpus, result.base.strategy.num_gpus
    if gpus == base:
        return f"Only {gpus:,} GPUs have such a plan: nothing to compare."
    name = result.limit(plan)
    lost = f", most of the rest lost to {TITLES[name]}" if name else ""
    return (
        f"{gpus:,} GPUs are {result.speed_up(plan):,.1f} times as fast as {base:,}: "
        f"{result.efficiency(plan):.0%} efficient{lost}."
    )


def print_scaling(
    result: Scaling, notes: Sequence[Note], console: Console, *, verbose: bool = False
) -> None:
    """Print how far it scales and the best plan of every size; ``verbose``: where time goes."""
    context = result.largest.context
    batch = f"batch {context.job.global_batch}"
    if result.is_weak:
        batch = "batch in proportion to GPUs"
    title = f"{'Weak' if result.is_weak else 'Strong'} scaling of {_job_words(context, batch)}"
    within_s, late = result.finish_in_s, ", ".join(f"{gpus:,}" for gpus in result.late_at)
    struck = f"On {late} GPUs a limit struck: faster plans may exist there."
    base = result.base.strategy.num_gpus
    show(
        console,
        Text(title, "dim"),
        *note_lines(notes, assumed=False),
        Text(_verdict_line(result), "bold green"),
        "" if within_s is None else Text(_deadline_line(result, within_s), "bold"),
        _scaling_table(result),
        Text(struck, "yellow") if late else "",
        f"Against {base:,} GPUs; limits bite that take {BITE_FRACTION:.0%} of it or more:",
        *(f"- {line}" for line in list(_bite_lines(result)) or ["none does."]),
    )
    if not verbose:
        more = "-v adds where the time of every size goes, and assumptions."
        show(console, Text(more, "dim"))
        return
    head = Text("Share of the iteration, and what takes most from the efficiency", "bold")
    show(console, head, _shares_table(result), *note_lines(notes, assumed=True))


def scale_document(result: Scaling, notes: Sequence[Note]) -> ScaleDocument:
    """Everything in base units."""
    return ScaleDocument(
        scaling="weak" if result.is_weak else "strong",
        inputs=InputsRow.of(result.case.contexts, result.case.narrowing, tuple(notes)),
        base_gpus=result.base.strategy.num_gpus,
        sizes=[ScaleRow.of(result, point) for point in result.points],
        limit_struck_at_gpus=list(result.late_at),
        batch_exhausted_from_gpus=result.exhausted_from(),
        seconds=result.seconds,
    )
