"""Screens and JSON of `planner size`: the fewest GPUs that do a job, and how a job scales."""

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from planner.answers.base import Plan
from planner.answers.layout import short_layout
from planner.answers.rows import InputsRow
from planner.answers.scale import (
    BITE_FRACTION,
    ScaleDocument,
    ScaleRow,
    Scaling,
    gpus_for_deadline,
)
from planner.answers.size import SizeDocument, SizeRow, Sizing
from planner.query.objectives import AMOUNTS, JobLimits
from planner.report.sizing_words import limits_text, missed_options, missed_text
from planner.report.table import Column, Table, show
from planner.report.tables import (
    DAYS,
    ITERATION,
    MFU,
    TOKENS_PER_S,
    degree_columns,
    frontier_table,
)
from planner.report.words import (
    figure_lines,
    ground_lines,
    inputs_line,
    note_lines,
    question_lines,
    run_line,
    software_lines,
)
from planner.units import DAY_S, TERA, format_count, format_days, format_seconds, plural

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


def print_sizing(sizing: Sizing, console: Console, *, verbose: bool = False) -> None:
    """Print the size and its plan, and the sizes around it; ``verbose``: what all rests on."""
    case, chosen = sizing.case, sizing.chosen
    cluster = case.context.cluster
    asked = limits_text(sizing.limits) or "the fewest GPUs that hold it"
    inputs = f"{inputs_line(case.contexts, on=cluster.node.name)}: {asked}"
    none = f"No size up to {cluster.num_accelerators:,} GPUs does it; the nearest are marked."
    named = (chosen,) if chosen else sizing.nearest
    marked = {size.num_gpus: size for size in named}
    show(
        console,
        *question_lines(inputs, case.notes, case.narrowing.texts),
        *(_chosen(sizing, chosen) if chosen else [Text(none, "bold yellow")]),
        frontier_table(_shown_sizes(sizing, marked), sizing.limits, marked=marked),
    )
    more = (
        "" if sizing.is_complete else Text(_search_line(sizing), "yellow"),
        Text("-v adds assumptions, prices, evidence and the search.", "dim"),
    )
    show(console, *(_grounds(sizing) if verbose else more))


def _shown_sizes(sizing: Sizing, marked: Mapping[int, Plan]) -> list[Plan]:
    """The marked sizes, those 1, 2 and 4 places beside them, and both ends."""
    sizes = [marked.get(size.num_gpus, size) for size in sizing.sizes]
    shown = {0, len(sizes) - 1}
    for place, size in enumerate(sizes):
        if size.num_gpus in marked:
            shown |= {place + step for step in (-4, -2, -1, 0, 1, 2, 4)}
    return [size for place, size in enumerate(sizes) if place in shown]


def _chosen(sizing: Sizing, plan: Plan) -> list[Text]:
    """The size, what to run on it, and why no smaller one does."""
    gpus, node = plan.num_gpus, sizing.case.context.cluster.node
    run = run_line(plan, of_gpus=gpus, names_framework=len(sizing.case.contexts) > 1)
    others = []
    if below := [size for size in sizing.sizes if size.num_gpus < gpus]:
        next_one = below[-1]
        why = missed_text(next_one, sizing.limits) or "not enough as a cluster of its own"
        others.append(f"No smaller size does: the next, {next_one.num_gpus:,} GPUs, is {why}.")
    if size := sizing.resident:
        others.append(
            f"With nothing offloaded {size.num_gpus:,} do ({size.num_nodes:,} x "
            f"{node.name}, {short_layout(size.strategy)}): "
            f"{format_seconds(size.estimate.iter_time_s)} per iteration."
        )
    if plan.context.job.total_tokens is not None:
        made, deadline_s = plan.estimate, sizing.limits.deadline_s
        slow_s = plan.span_s() * made.iter_time_s_upper / made.iter_time_s
        late_s = 0.0 if deadline_s is None else max(slow_s - deadline_s, 0.0)
        late = f", {format_seconds(late_s)} late" if late_s else ""
        others.append(f"At the slow end of the range the job takes {format_seconds(slow_s)}{late}.")
    is_part = plan.num_nodes == 1 and gpus < node.num_accelerators
    place = f"of a {node.name}" if is_part else f"{plan.num_nodes:,} x {node.name}"
    one, several = ("holds", "hold") if sizing.limits.is_empty else ("does", "do")
    what = f"is the fewest that {one} it" if gpus == 1 else f"are the fewest that {several} it"
    head = f"{plural(gpus, 'GPU')} ({place}) {what}."
    figures = [f"  {line}" for line in figure_lines(plan)]
    return [Text(head, "bold green"), Text(run, "bold"), *map(Text, [*figures, *others])]


def _search_line(sizing: Sizing) -> str:
    proof = "proved optimal under the model" if sizing.is_complete else "optimality NOT proved"
    return (
        f"Searched {sum(r.num_configurations for r in sizing.searches):,} configurations on up to "
        f"{sizing.case.context.cluster.num_accelerators:,} GPUs in {sizing.seconds:.2f} s: "
        f"{len(sizing.sizes)} sizes are faster than every smaller one; {proof}."
    )


def _grounds(sizing: Sizing) -> list[Text | str]:
    """Return what the size rests on: its plan's costs, evidence, prices, software, search."""
    chosen, cluster = sizing.chosen, sizing.case.context.cluster
    basis = ["time: without start-up, checkpoints, evaluation, failures and restarts."]
    basis += [amount.basis(cluster) for amount in AMOUNTS.values()]
    return [
        *(ground_lines(chosen) if chosen else ()),
        *(Text(line, "dim") for line in basis),
        *note_lines(sizing.case.notes, assumed=True),
        *software_lines(sizing.case.contexts, sizing.sizes),
        Text(_search_line(sizing), "dim"),
    ]


def _size_row(size: Plan, limits: JobLimits) -> SizeRow:
    return SizeRow.of(
        size, nodes=size.num_nodes, total_s=size.span_s(), **missed_options(size, limits)
    )


def size_document(sizing: Sizing) -> SizeDocument:
    """The answer as a document, in base units."""
    limits, node = sizing.limits, sizing.case.context.cluster.node
    return SizeDocument(
        inputs=InputsRow.of(sizing.case),
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


def _scaling_table(result: Scaling) -> Table[Plan]:
    plans = result.plans
    batch = Column[Plan]("batch", lambda plan: f"{plan.context.job.global_batch:,}")
    columns = [
        *degree_columns(plans),
        *([batch] if result.is_weak else []),
        ITERATION,
        TOKENS_PER_S,
        *([DAYS] if result.base.total_s() is not None else []),
        Column("speed-up", lambda plan: f"{result.speed_up(plan):,.1f}"),
        Column("efficiency", lambda plan: f"{result.efficiency(plan):.1%}"),
        MFU,
    ]
    return Table(plans, columns)


def _bite_lines(result: Scaling) -> Iterator[str]:
    """Where each limit begins to bite, the earliest first."""
    earliest = sorted(result.bites().items(), key=lambda item: item[1][0][0])
    for name, sizes in earliest:
        (first, loss), (last, _) = sizes[0], sizes[-1]
        worst, most = max(sizes, key=lambda size: size[1])
        where = f"at {first:,} to {last:,} GPUs"
        if first == last:
            where = f"at {first:,} GPUs"
        elif last == result.plans[-1].num_gpus:
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
    for size in result.without:
        reasons.setdefault(size.why or "", []).append(f"{size.gpus:,}")
    yield from (f"none on {', '.join(sizes)} GPUs: {why}." for why, sizes in reasons.items())


def _deadline_line(result: Scaling, seconds: float) -> str:
    """The fewest GPUs that finish in time, and how many would do at their rate."""
    plan = result.finishes_in(seconds)
    job = plan.context.job if plan else result.base.context.job
    tokens = job.total_tokens or 0
    head = f"{format_count(tokens)} tokens in {seconds / DAY_S:g} days"
    if plan is None:
        return f"{head}: on none of these sizes."
    rate = plan.estimate.model_flops_per_s_per_gpu
    flops = plan.estimate.model_flops * (tokens / job.tokens_per_iteration)
    enough = gpus_for_deadline(flops, rate, seconds)
    return (
        f"{head}: {plan.num_gpus:,} GPUs take {format_days(plan.span_s())}; at their "
        f"{rate / TERA:.0f} TFLOP/s each, about {enough:,.0f} would do."
    )


def _verdict_line(result: Scaling) -> str:
    """How far the largest size gets, and what takes most of what is lost."""
    plan = result.plans[-1]
    gpus, base = plan.strategy.num_gpus, result.base.strategy.num_gpus
    if gpus == base:
        return f"Only {gpus:,} GPUs have such a plan: nothing to compare."
    name = result.limit(plan)
    lost = f", most of the rest lost to {TITLES[name]}" if name else ""
    return (
        f"{gpus:,} GPUs are {result.speed_up(plan):,.1f} times as fast as {base:,}: "
        f"{result.efficiency(plan):.0%} efficient{lost}."
    )


def print_scaling(result: Scaling, console: Console, *, verbose: bool = False) -> None:
    """Print how far it scales and the best plan of every size; ``verbose``: what is assumed."""
    context = result.case.context
    growing = f"batch in proportion to GPUs x {context.job.seq_len} tokens"
    batch, node = growing if result.is_weak else None, context.cluster.node.name
    inputs = inputs_line(result.case.contexts, on=node, batch=batch)
    title = f"{'Weak' if result.is_weak else 'Strong'} scaling of {inputs}"
    within_s, late = result.finish_in_s, ", ".join(f"{gpus:,}" for gpus in result.late_at)
    struck = f"On {late} GPUs a limit struck: faster plans may exist there."
    base = result.base.strategy.num_gpus
    show(
        console,
        *question_lines(title, result.case.notes),
        Text(_verdict_line(result), "bold green"),
        "" if within_s is None else Text(_deadline_line(result, within_s), "bold"),
        _scaling_table(result),
        Text(struck, "yellow") if late else "",
        f"Against {base:,} GPUs; limits bite that take {BITE_FRACTION:.0%} of it or more:",
        *(f"- {line}" for line in list(_bite_lines(result)) or ["none does."]),
        *(note_lines(result.case.notes, assumed=True) if verbose else ()),
        "" if verbose else Text("-v adds assumptions.", "dim"),
    )


def scale_document(result: Scaling) -> ScaleDocument:
    """The answer as a document, in base units."""
    return ScaleDocument(
        scaling="weak" if result.is_weak else "strong",
        inputs=InputsRow.of(result.case),
        base_gpus=result.base.strategy.num_gpus,
        sizes=sorted(
            [*result.without, *(ScaleRow.of(result, plan) for plan in result.plans)],
            key=lambda size: size.gpus,
        ),
        limit_struck_at_gpus=list(result.late_at),
        batch_exhausted_from_gpus=result.exhausted_from(),
        seconds=result.seconds,
    )
