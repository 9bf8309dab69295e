"""Tables of plans: the best ones and a frontier for the terminal, all as CSV.

What rows differ in is shown at every width; of what is measured, the columns of the largest
``spare`` leave first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.table import Table as RichTable

from planner.answers.base import Answer, Plan
from planner.answers.rows import PlanRow
from planner.query.objectives import AMOUNTS, JobLimits
from planner.report.table import Column, Table, differing, fitting_table
from planner.report.words import days, range_text
from planner.spec.strategy import (
    FIELDS,
    GPU_DEGREES,
    OFFLOAD_POLICIES,
    SHOWN_DEGREES,
    Strategy,
)
from planner.units import GIB, format_count, format_seconds

MAX_FRONTIER_ROWS = 16
ALWAYS_SHOWN = ("dp", "tp", "pp")
# Columns that stand behind others in place of at the end.
_BEHIND = {"num_micro_batches": "recompute", "dp_replicate": "recompute_modules"}
CSV_COLUMNS = (
    "table",
    "rank",
    "framework",
    "gpus",
    *dict.fromkeys(column for name in FIELDS for column in (name, _BEHIND.get(name)) if column),
    "iter_time_s",
    "iter_time_s_lower",
    "iter_time_s_upper",
    "iter_time_s_overlapped",
    "iter_time_s_serial",
    "tokens_per_s_per_gpu",
    "mfu",
    "mfu_full_square",
    "peak_bytes",
    "usable_bytes",
    "gpu_hours",
    "days",
    *AMOUNTS,
    "headroom_bytes",
)


def layout_axes(plans: Iterable[Plan]) -> list[str]:
    """Axes worth showing: dp, tp, pp always, others where used; etp where it is not tp."""
    used = {*ALWAYS_SHOWN, *(axis for plan in plans for axis in plan.strategy.degrees)}
    return [axis for axis in dict.fromkeys((*GPU_DEGREES, *SHOWN_DEGREES)) if axis in used]


def telling_axes(plans: Sequence[Plan]) -> list[str]:
    """dp, tp, pp, and of the others those in which plans differ."""
    degrees = [plan.strategy.degrees for plan in plans]
    return [
        axis
        for axis in layout_axes(plans)
        if axis in ALWAYS_SHOWN or len({each.get(axis, 1) for each in degrees}) > 1
    ]


def layout(strategy: Strategy, axes: Sequence[str]) -> str:
    """Degrees joined by dots: ``32·4·8``; ``32/2`` where dp is two replicas of sharding groups."""
    replicas = strategy.dp_replicate
    words = {"dp": f"{strategy.dp}/{replicas}" if replicas > 1 else str(strategy.dp)}
    return "·".join(words.get(axis) or str(getattr(strategy, axis)) for axis in axes)


def memory_saved_by(strategy: Strategy) -> str:
    """Return what is recomputed and, after a plus, offloaded: ``12/80 + 75% optimizer``."""
    layers, under = sum(strategy.layers_per_stage), strategy.layers_under
    whole = {"none": "", "full": "all", "selective": "selected"}
    counted = {
        "full": f"{under['full']}/{layers}",
        "selective": f"{under['selective']}/{layers} selected",
    }
    parts = ", ".join(text for name, text in counted.items() if under[name])
    said = [whole.get(strategy.recompute, parts)]
    if strategy.offload != "none":
        what, _, where = strategy.offload.partition(":")
        share = f"{strategy.offload_percent}% " if strategy.offload_percent < 100 else ""
        place = "" if where == "host" else f" to {where}"
        said.append(f"+ {share}{what.replace('+', ', ')}{place}")
    said += [f"+ {under[name]}/{layers} activations" for name in OFFLOAD_POLICIES if under[name]]
    return " ".join(said).strip() or "-"


def _layout_columns(plans: Sequence[Plan]) -> list[Column[Plan]]:
    could_have = [
        plan.strategy.sequence_parallel
        for plan in plans
        if plan.strategy.tp > 1 and plan.context.traits.support.sequence_parallel
    ]

    def sequence_parallel(plan: Plan) -> str:
        # Nothing to say where every plan has it that could, or without tensor parallelism.
        if all(could_have) or plan.strategy.tp == 1:
            return "-"
        return "on" if plan.strategy.sequence_parallel else "off"

    def degree_column(axis: str) -> Column[Plan]:
        return Column(axis, lambda plan: str(getattr(plan.strategy, axis)))

    machines: list[Column[Plan]] = [
        Column("framework", lambda p: p.framework, right=False),
        Column("GPUs", lambda p: f"{p.strategy.num_gpus:,}"),
    ]
    decisions: list[Column[Plan]] = [
        Column("sequence\nparallel", sequence_parallel),
        Column("schedule", lambda p: p.strategy.schedule, right=False),
        # The axes that placements differ in: ``dp in pp``.
        Column("placed", lambda p: " in ".join(p.strategy.placement.split("-")[-2:]), right=False),
        Column("ZeRO", lambda p: str(p.strategy.zero_stage)),
        Column("replicas", lambda p: str(p.strategy.dp_replicate)),
        Column("micro-\nbatch", lambda p: str(p.strategy.micro_batch)),
        Column(
            "recompute\n+ offload",
            lambda p: memory_saved_by(p.strategy),
            right=False,
            wraps=True,
        ),
    ]
    axes = map(degree_column, telling_axes(plans))
    return [*differing(machines, plans), *axes, *differing(decisions, plans)]


def _change(plan: Plan, first: Plan) -> str:
    """A plan's time over the first one's: ``+2.6%``, ``3.1x`` from twice on."""
    if plan is first:
        return ""
    ratio = plan.estimate.iter_time_s / first.estimate.iter_time_s
    return f"{ratio:.1f}x" if ratio >= 2.0 else f"{ratio - 1.0:+.1%}"


def plans_table(plans: Sequence[Plan], ladder: Sequence[Plan] = (), *, width: int) -> RichTable:
    """The best plans, one a row, and behind them the best on fewer GPUs."""
    every, first = [*plans, *ladder], plans[0]
    ranks = {id(plan): str(rank) for rank, plan in enumerate(plans, start=1)}
    of_hbm = f"GiB of\n{first.estimate.memory.hbm_bytes / GIB:.1f}"
    # Where the job's tokens are given.
    of_job: list[Column[Plan]] = []
    if first.total_s() is not None:
        of_job.append(Column("days", lambda p: days(p.total_s() or 0.0), spare=3))
        if first.cost_usd() is not None:
            of_job.append(Column("USD", lambda p: _count(p.cost_usd()), spare=4))
    columns = [
        Column("#", lambda p: ranks.get(id(p), "")),
        *_layout_columns(every),
        Column("iteration", lambda p: format_seconds(p.estimate.iter_time_s)),
        Column("vs #1", lambda p: _change(p, first), spare=2),
        Column("80 % interval", lambda p: range_text(p.estimate), spare=10),
        Column("tokens/s\n/GPU", lambda p: f"{p.estimate.tokens_per_s_per_gpu:,.0f}", spare=8),
        Column("MFU", lambda p: f"{p.estimate.mfu:.1%}", spare=6),
        *of_job,
        Column(of_hbm, lambda p: f"{p.estimate.memory.peak_bytes / GIB:,.1f}", spare=7),
        Column("free\nGiB", lambda p: f"{p.estimate.memory.free_bytes / GIB:,.1f}", spare=1),
    ]

    def style(plan: Plan) -> str:
        if plan is first:
            return "bold"
        return "" if id(plan) in ranks else "dim"

    return fitting_table(Table(every, columns, style=style), width)


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """Return at most MAX_FRONTIER_ROWS points, evenly over the frontier, both ends included."""
    if len(plans) <= MAX_FRONTIER_ROWS:
        return list(plans)
    step = (len(plans) - 1) / (MAX_FRONTIER_ROWS - 1)
    return [plans[round(i * step)] for i in range(MAX_FRONTIER_ROWS)]


def _count(number: float | None) -> str:
    return "-" if number is None else format_count(round(number))


def amount_column(name: str, span: str, count: Callable[[float], str]) -> Column[Plan]:
    """What of an amount plans take; ``count``: how those without a unit of their own are said."""
    text = AMOUNTS[name].text or count

    def cell(plan: Plan) -> str:
        value = plan.amounts()[name]
        return "-" if value is None else text(value)

    return Column(f"{AMOUNTS[name].column}{span}", cell)


def frontier_table(
    plans: Sequence[Plan],
    *,
    traded: Sequence[str] = (),
    limits: JobLimits | None = None,
    width: int,
) -> RichTable:
    """The points of a frontier, one a row; with limits, which of them each does not keep."""
    has_budget = any(plan.total_s() is not None for plan in plans)
    span = "" if has_budget else "\n/1k it"
    amounts = [
        amount_column(name, span, _count)
        for name, amount in AMOUNTS.items()
        if name in traded
        or (amount.is_always_shown and any(p.amounts()[name] is not None for p in plans))
    ]
    columns = [
        *_layout_columns(plans),
        Column("iteration", lambda p: format_seconds(p.estimate.iter_time_s)),
        Column("tokens/s", lambda p: f"{p.estimate.tokens_per_s:,.0f}", spare=3),
        Column("MFU", lambda p: f"{p.estimate.mfu:.1%}", spare=2),
        Column(f"GPU-hours{span}", lambda p: _count(p.gpu_hours()), spare=4),
    ]
    if has_budget:
        columns.append(Column("days", lambda p: days(p.total_s() or 0.0)))
    columns += amounts
    if "headroom_bytes" in traded:
        columns.append(
            Column("free\nGiB", lambda p: f"{p.estimate.memory.headroom_bytes / GIB:,.1f}")
        )
    if limits is not None:

        def misses(plan: Plan) -> str:
            return ", ".join(limits.missed_by(plan)) or "-"

        columns.append(Column("misses", misses, right=False, wraps=True))
    return fitting_table(Table(plans, columns), width)


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """All tables of the answer, a row per plan, by CSV_COLUMNS."""
    tables = {"plans": answer.plans, "ladder": answer.ladder, "pareto": answer.pareto}
    for table, plans in tables.items():
        for rank, plan in enumerate(plans, start=1):
            row = PlanRow.of(plan)
            known = vars(row.strategy) | vars(row.memory) | vars(row)
            known |= {"table": table, "rank": rank}
            for name, value in known.items():
                if isinstance(value, list):
                    known[name] = " ".join(map(str, value))
            yield {name: known[name] for name in CSV_COLUMNS}
