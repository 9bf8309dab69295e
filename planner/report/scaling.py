"""Screen and JSON of `planner size --gpus`: how a job scales."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table as RichTable

from planner.answers.base import Plan
from planner.answers.rows import InputsRow
from planner.answers.scale import BITE_FRACTION, Point, Scaling, gpus_for_deadline, shares
from planner.answers.size_rows import ScaleDocument, ScaleRow
from planner.notes import Note
from planner.report.document import serialise
from planner.report.size import job_words
from planner.report.table import Column, Table, rich_table
from planner.report.tables import layout, layout_axes
from planner.report.words import print_notes
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
SHOWN_FRACTION = 0.005  # limits that never take this share of an iteration get no column


def _shown(result: Scaling) -> list[str]:
    """Limits with a share worth a column at any size."""
    found = [shares(plan.estimate) for _, plan in result.fitting]
    return [name for name in found[0] if max(part[name] for part in found) >= SHOWN_FRACTION]


def _limit(result: Scaling, point: Point, plan: Plan) -> str:
    """The dominating limit; ``batch`` beside it where the batch is exhausted."""
    name = result.limit(plan)
    names = [*([name] if name else []), *(["batch"] * point.is_exhausted)]
    return "+".join(names) or "-"


def scaling_table(result: Scaling) -> RichTable:
    """The best plan of every size, and what it gains."""
    axes = layout_axes([plan for _, plan in result.fitting])

    def of_plan(title: str, text: Callable[[Plan], str]) -> Column[Point]:
        return Column(title, lambda point: text(point.plan) if point.plan else "")

    columns: list[Column[Point]] = [
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
    return rich_table(Table(result.points, columns))


def shares_table(result: Scaling) -> RichTable:
    """Where the time of every size's plan goes, and the dominating limit."""

    def share_column(name: str) -> Column[tuple[Point, Plan]]:
        return Column(name, lambda row: f"{shares(row[1].estimate)[name]:.0%}")

    columns: list[Column[tuple[Point, Plan]]] = [
        Column("GPUs", lambda row: f"{row[0].num_gpus:,}"),
        Column("micro-\nbatches", lambda row: f"{row[1].strategy.num_micro_batches:,}"),
        *map(share_column, _shown(result)),
        Column("limit", lambda row: _limit(result, *row), right=False),
    ]
    return rich_table(Table(result.fitting, columns))


def _bite_line(name: str, title: str, sizes: Sequence[tuple[int, float]], most_gpus: int) -> str:
    (first, loss), (last, _) = sizes[0], sizes[-1]
    worst, most = max(sizes, key=lambda size: size[1])
    where = f"from {first:,} GPUs on" if last == most_gpus else f"at {first:,} to {last:,} GPUs"
    if first == last:
        where = f"at {first:,} GPUs"
    line = f"{name}: {title} takes {loss:.1%} {where}"
    return line + (f", {most:.1%} at {worst:,}." if worst != first else ".")


def bite_lines(result: Scaling) -> list[str]:
    """Where each limit begins to bite, the earliest first."""
    bites = sorted(result.bites().items(), key=lambda item: item[1][0][0])
    most_gpus = result.largest.strategy.num_gpus
    lines = [_bite_line(name, TITLES[name], sizes, most_gpus) for name, sizes in bites]
    exhausted = result.exhausted_from()
    if exhausted is not None:
        lines.append(
            f"batch: exhausted from {exhausted:,} GPUs on (one micro-batch per replica): more "
            "GPUs can only cut the model into smaller pieces."
        )
    reasons: dict[str, list[str]] = {}
    for point in result.points:
        if point.plan is None:
            reasons.setdefault(point.why_none, []).append(f"{point.num_gpus:,}")
    lines += [f"none on {', '.join(sizes)} GPUs: {why}." for why, sizes in reasons.items()]
    return lines


def deadline_line(result: Scaling, seconds: float) -> str:
    """The fewest GPUs that finish in time, and how many would do at their rate."""
    plan = result.finishes_in(seconds)
    tokens = format_count(result.base.context.job.total_tokens or 0)
    head = f"{tokens} tokens in {seconds / DAY_S:g} days"
    if plan is None:
        return f"{head}: on none of these sizes."
    gpus, flops = plan.strategy.num_gpus, plan.estimate.model_flops
    rate = flops / (plan.estimate.iter_time_s * gpus)
    enough = gpus_for_deadline((plan.num_iterations() or 0.0) * flops, rate, seconds)
    return (
        f"{head}: {gpus:,} GPUs take {(plan.total_s() or 0.0) / DAY_S:.1f}; at their "
        f"{rate / 1e12:.0f} TFLOP/s each, about {enough:,.0f} would do."
    )


def _kind(result: Scaling) -> str:
    return "Weak" if result.is_weak else "Strong"


def verdict_line(result: Scaling) -> str:
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
    console.print(f"{_kind(result)} scaling of {job_words(context, batch)}", style="dim")
    print_notes([note for note in notes if not note.is_assumed], console)
    console.print(verdict_line(result), style="bold green")
    if result.finish_in_s is not None:
        console.print(deadline_line(result, result.finish_in_s), style="bold")
    console.print(scaling_table(result))
    if result.late_at:
        sizes = ", ".join(f"{gpus:,}" for gpus in result.late_at)
        line = f"On {sizes} GPUs a limit struck: faster plans may exist there."
        console.print(line, style="yellow")
    base = result.base.strategy.num_gpus
    bites = f"limits bite that take {BITE_FRACTION:.0%} of it or more"
    console.print(f"Against {base:,} GPUs; {bites}:")
    for line in bite_lines(result) or ["none does."]:
        console.print(f"- {line}")
    if verbose:
        console.print(
            "Share of the iteration, and what takes most from the efficiency", style="bold"
        )
        console.print(shares_table(result))
        print_notes([note for note in notes if note.is_assumed], console)
    else:
        console.print("-v adds where the time of every size goes, and assumptions.", style="dim")


def render_scaling_json(result: Scaling, notes: Sequence[Note]) -> str:
    """Return everything as JSON, base units throughout."""
    data = ScaleDocument(
        scaling="weak" if result.is_weak else "strong",
        inputs=InputsRow.of(result.case.contexts, result.case.narrowing, tuple(notes)),
        base_gpus=result.base.strategy.num_gpus,
        sizes=[ScaleRow.of(result, point) for point in result.points],
        limit_struck_at_gpus=list(result.late_at),
        batch_exhausted_from_gpus=result.exhausted_from(),
        seconds=result.seconds,
    )
    return serialise("scale", data)
