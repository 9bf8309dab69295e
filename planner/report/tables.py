"""Tables of plans for the terminal: the best ones, and a frontier.

What rows differ in is shown at every width; of what is measured, the columns of the largest
``spare`` leave first.
"""

from collections.abc import Sequence

from rich.table import Table

from planner.plans.objectives import AMOUNTS, JobLimits
from planner.plans.plan import Plan
from planner.report.columns import (
    Column,
    axis_title,
    drops_sequence_parallel,
    fits,
    fitting,
    memory_saved_by,
    sequence_parallel,
    table_of,
    telling,
    telling_axes,
)
from planner.report.evidence import range_text
from planner.units import GIB, format_count, format_seconds

SPELLED_OUT_COLUMNS = 110
"""From this console width on, axes are called by their words where the table then fits."""
MAX_FRONTIER_ROWS = 16
TWICE = 2.0


def _short_placement(placement: str) -> str:
    """The axes that placements differ in: ``dp, pp``."""
    return " in ".join(placement.split("-")[-2:])


def _axis_column(axis: str, *, wide: bool) -> Column:
    return Column(title=axis_title(axis, wide=wide), text=lambda p: str(getattr(p.strategy, axis)))


def _layout_columns(plans: Sequence[Plan], *, wide: bool) -> list[Column]:
    """The layout, and what else of the decisions tells rows apart."""
    decisions = [
        Column(title="framework", text=lambda p: p.framework, is_left=True),
        Column(title="GPUs", text=lambda p: f"{p.strategy.num_gpus:,}"),
        Column(title="sequence\nparallel", text=lambda p: sequence_parallel(p.strategy)),
        Column(title="schedule", text=lambda p: p.strategy.schedule, is_left=True),
        Column(title="placed", text=lambda p: _short_placement(p.strategy.placement), is_left=True),
        Column(title="exchange", text=lambda p: p.context.traits.exchange.text, is_left=True),
        Column(title="ZeRO", text=lambda p: str(p.strategy.zero_stage)),
        Column(title="replicas", text=lambda p: str(p.strategy.dp_replicate)),
        Column(title="micro-\nbatch", text=lambda p: str(p.strategy.micro_batch)),
        Column(
            title="recompute\n+ offload",
            text=lambda p: memory_saved_by(p.strategy),
            is_left=True,
            wraps=True,
        ),
    ]
    if not drops_sequence_parallel(plans):
        decisions.pop(2)
    kept = telling(decisions, plans)
    axes = [_axis_column(axis, wide=wide) for axis in telling_axes(plans)]
    before = [column for column in kept if column.title in ("framework", "GPUs")]
    return [*before, *axes, *(column for column in kept if column not in before)]


def _change(plan: Plan, first: Plan) -> str:
    """A plan's time over the first one's: ``+2.6%``, ``3.1x`` from twice on."""
    if plan is first:
        return ""
    ratio = plan.estimate.iter_time_s / first.estimate.iter_time_s
    return f"{ratio:.1f}x" if ratio >= TWICE else f"{ratio - 1.0:+.1%}"


def _best_columns(plans: Sequence[Plan], ranks: Sequence[str], *, wide: bool) -> list[Column]:
    """Columns of the best plans."""
    hbm = plans[0].estimate.memory.hbm_bytes / GIB
    rank_of = {id(plan): rank for plan, rank in zip(plans, ranks, strict=True)}
    return [
        Column(title="#", text=lambda p: rank_of[id(p)]),
        *_layout_columns(plans, wide=wide),
        Column(title="iteration", text=lambda p: format_seconds(p.estimate.iter_time_s)),
        Column(title="vs 1", text=lambda p: _change(p, plans[0]), spare=2),
        Column(title="80 % of runs", text=lambda p: range_text(p.estimate), spare=10),
        Column(
            title="tokens/s\n/GPU",
            text=lambda p: f"{p.estimate.tokens_per_s_per_gpu:,.0f}",
            spare=8,
        ),
        Column(title="MFU", text=lambda p: f"{p.estimate.mfu:.1%}", spare=6),
        *_job_columns(plans),
        Column(
            title=f"GiB of\n{hbm:.1f}",
            text=lambda p: f"{p.estimate.memory.peak_bytes / GIB:,.1f}",
            spare=7,
        ),
        Column(title="free\nGiB", text=lambda p: f"{p.free_bytes / GIB:,.1f}", spare=1),
    ]


def _job_columns(plans: Sequence[Plan]) -> list[Column]:
    """Days and cost, where the job's tokens are given."""
    if plans[0].total_s() is None:
        return []
    columns = [Column(title="days", text=lambda p: days(p.total_s() or 0.0), spare=3)]
    if plans[0].cost_usd() is not None:
        columns.append(Column(title="USD", text=lambda p: _count(p.cost_usd()), spare=4))
    return columns


def _table(
    narrow: Sequence[Column],
    spelled_out: Sequence[Column],
    plans: Sequence[Plan],
    width: int,
    *,
    leads: bool = False,
    best: int = 0,
) -> Table:
    """The table with axes spelled out where nothing has to leave for it."""
    if width >= SPELLED_OUT_COLUMNS and fits(spelled_out, plans, width):
        return table_of(spelled_out, plans, leads=leads, best=best)
    columns, gap = fitting(narrow, plans, width)
    return table_of(columns, plans, gap=gap, leads=leads, best=best)


def plans_table(plans: Sequence[Plan], ladder: Sequence[Plan] = (), *, width: int) -> Table:
    """The best plans, one a row, and behind them the best on fewer GPUs."""
    every = [*plans, *ladder]
    ranks = [*(str(rank) for rank in range(1, len(plans) + 1)), *("" for _ in ladder)]
    narrow, spelled_out = (_best_columns(every, ranks, wide=wide) for wide in (False, True))
    return _table(narrow, spelled_out, every, width, leads=True, best=len(plans))


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """At most MAX_FRONTIER_ROWS points, evenly spread over the frontier, both ends included."""
    if len(plans) <= MAX_FRONTIER_ROWS:
        return list(plans)
    step = (len(plans) - 1) / (MAX_FRONTIER_ROWS - 1)
    return [plans[round(i * step)] for i in range(MAX_FRONTIER_ROWS)]


def days(seconds: float) -> str:
    """Days, with a decimal where there are fewer than a hundred."""
    number = seconds / 86400.0
    return f"{number:,.1f}" if number < 100.0 else f"{number:,.0f}"


def _count(number: float | None) -> str:
    return "-" if number is None else format_count(round(number))


def _amount_column(name: str, span: str) -> Column:
    text = AMOUNTS[name].text

    def cell(plan: Plan) -> str:
        value = plan.amounts()[name]
        return text(value) if text and value is not None else _count(value)

    return Column(title=f"{AMOUNTS[name].column}{span}", text=cell)


def _amounts(plans: Sequence[Plan], traded: Sequence[str]) -> list[Column]:
    """What the job takes, and the headroom where it is traded off."""
    has_budget = any(plan.total_s() is not None for plan in plans)
    span = "" if has_budget else "\n/1k it"
    every = [
        (True, Column(title=f"GPU-hours{span}", text=lambda p: _count(p.gpu_hours()), spare=4)),
        (has_budget, Column(title="days", text=lambda p: days(p.total_s() or 0.0))),
        *(
            (
                name in traded
                or (amount.is_always_shown and any(p.amounts()[name] is not None for p in plans)),
                _amount_column(name, span),
            )
            for name, amount in AMOUNTS.items()
        ),
        (
            "headroom_bytes" in traded,
            Column(title="free\nGiB", text=lambda p: f"{p.headroom_bytes / GIB:,.1f}"),
        ),
    ]
    return [column for is_shown, column in every if is_shown]


def _frontier_columns(
    plans: Sequence[Plan], traded: Sequence[str], limits: JobLimits | None, *, wide: bool
) -> list[Column]:
    """Columns of a frontier."""
    columns = [
        *_layout_columns(plans, wide=wide),
        Column(title="iteration", text=lambda p: format_seconds(p.estimate.iter_time_s)),
        Column(title="tokens/s", text=lambda p: f"{p.estimate.tokens_per_s:,.0f}", spare=3),
        Column(title="MFU", text=lambda p: f"{p.estimate.mfu:.1%}", spare=2),
        *_amounts(plans, traded),
    ]
    if limits is not None:
        columns.append(
            Column(
                title="misses",
                text=lambda p: ", ".join(limits.missed_by(p)) or "-",
                is_left=True,
                wraps=True,
            )
        )
    return columns


def frontier_table(
    plans: Sequence[Plan],
    *,
    traded: Sequence[str] = (),
    limits: JobLimits | None = None,
    width: int,
) -> Table:
    """The points of a frontier, one a row; with limits, which of them each does not keep."""
    narrow, spelled_out = (
        _frontier_columns(plans, traded, limits, wide=wide) for wide in (False, True)
    )
    return _table(narrow, spelled_out, plans, width)
