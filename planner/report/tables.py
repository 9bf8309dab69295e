"""Tables of plans for the terminal: the best ones, and a frontier."""

from collections.abc import Sequence

from rich.table import Table

from planner.plans.objectives import AMOUNTS, JobLimits
from planner.plans.plan import Plan
from planner.report.columns import (
    FRAMEWORK_SHORT,
    SCHEDULE_SHORT,
    Column,
    drops_sequence_parallel,
    fits,
    fitting,
    layout,
    layout_axes,
    offloaded,
    recomputed,
    sequence_parallel,
    shows_schedule,
    table_of,
)
from planner.report.evidence import range_text
from planner.units import GIB, format_count, format_seconds

WIDE_COLUMNS = 140
"""From this console width on, column titles are spelled out."""
NARROW_COLUMNS = 80
MAX_FRONTIER_ROWS = 16
NARROW_LEGEND = (
    "v: virtual stages; Z: ZeRO stage; mb: micro-batch; redo: layers recomputed; "
    "offl: offloaded; fw: framework; rep: replicas of sharding groups."
)


def _short_placement(placement: str) -> str:
    """The axes that placements differ in: ``dp-pp``."""
    return "-".join(placement.split("-")[-2:])


def _place_columns(plans: Sequence[Plan], *, wide: bool, with_framework: bool) -> list[Column]:
    """Framework, layout, and what else says where ranks go."""
    axes = layout_axes(plans)
    title = "·".join("v" if axis == "vpp" and not wide else axis for axis in axes)
    columns = [Column(title=title, text=lambda p: layout(p.strategy, axes), is_left=True)]
    if with_framework:
        names = {} if wide else FRAMEWORK_SHORT
        name = "framework" if wide else "fw"
        framework = Column(
            title=name, text=lambda p: names.get(p.framework, p.framework), is_left=True
        )
        columns.insert(0, framework)
    if drops_sequence_parallel(plans):
        columns.append(Column(title="sp", text=lambda p: sequence_parallel(p.strategy), spare=1))
    if shows_schedule(plans):
        short = {} if wide else SCHEDULE_SHORT
        columns.append(
            Column(
                title="schedule" if wide else "sched",
                text=lambda p: short.get(p.strategy.schedule, p.strategy.schedule),
                is_left=True,
            )
        )
    if len({plan.strategy.placement for plan in plans}) > 1:
        columns.append(
            Column(
                title="placed",
                text=lambda p: _short_placement(p.strategy.placement),
                is_left=True,
                spare=2,
            )
        )
    return columns


def _choice_columns(*, wide: bool, spare: int) -> list[Column]:
    """ZeRO, micro-batch, and how memory is saved."""
    return [
        Column(title="ZeRO" if wide else "Z", text=lambda p: str(p.strategy.zero_stage)),
        Column(title="micro-batch" if wide else "mb", text=lambda p: str(p.strategy.micro_batch)),
        Column(
            title="recompute" if wide else "redo",
            text=lambda p: recomputed(p.strategy, wide=wide),
            is_left=True,
            spare=2 * spare,
            wraps=True,
        ),
        Column(
            title="offload" if wide else "offl",
            text=lambda p: offloaded(p.strategy),
            is_left=True,
            spare=spare,
            wraps=True,
        ),
    ]


def _best_columns(plans: Sequence[Plan], *, wide: bool, with_framework: bool) -> list[Column]:
    """Columns of the best plans."""
    hbm = plans[0].estimate.memory.hbm_bytes / GIB
    several_counts = len({plan.strategy.num_gpus for plan in plans}) > 1
    ranks = {id(plan): str(rank) for rank, plan in enumerate(plans, start=1)}
    return [
        Column(title="#", text=lambda p: ranks[id(p)]),
        Column(
            title="GPUs",
            text=lambda p: f"{p.strategy.num_gpus:,}",
            spare=0 if several_counts else 9,
        ),
        *_place_columns(plans, wide=wide, with_framework=with_framework),
        *_choice_columns(wide=wide, spare=0),
        Column(
            title="iteration" if wide else "iter",
            text=lambda p: format_seconds(p.estimate.iter_time_s),
        ),
        Column(
            title="vs 1",
            text=lambda p: (
                ""
                if p is plans[0]
                else f"{p.estimate.iter_time_s / plans[0].estimate.iter_time_s - 1.0:+.1%}"
            ),
            spare=7,
        ),
        Column(title="80 % of runs", text=lambda p: range_text(p.estimate), spare=10),
        Column(
            title="tokens/s/GPU" if wide else "tok/s\n/GPU",
            text=lambda p: f"{p.estimate.tokens_per_s_per_gpu:,.0f}",
        ),
        Column(title="MFU", text=lambda p: f"{p.estimate.mfu:.1%}", spare=3),
        Column(
            title=f"peak GiB of {hbm:.1f}" if wide else f"GiB of\n{hbm:.1f}",
            text=lambda p: f"{p.estimate.memory.peak_bytes / GIB:,.1f}",
        ),
        Column(
            title="free GiB" if wide else "free",
            text=lambda p: f"{p.free_bytes / GIB:,.1f}",
            spare=8,
        ),
    ]


def plans_table(
    plans: Sequence[Plan], *, wide: bool, with_framework: bool, width: int | None = None
) -> Table:
    """The best plans, one a row, in ``width`` characters."""
    width = width or (WIDE_COLUMNS if wide else NARROW_COLUMNS)
    columns: list[Column] = []
    for spelled_out in [True, False] if wide else [False]:
        every = _best_columns(plans, wide=spelled_out, with_framework=with_framework)
        columns = fitting(every, plans, width)
        if fits(columns, plans, width):
            break
    return table_of(columns, plans)


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """At most MAX_FRONTIER_ROWS points, evenly spread over the frontier, both ends included."""
    if len(plans) <= MAX_FRONTIER_ROWS:
        return list(plans)
    step = (len(plans) - 1) / (MAX_FRONTIER_ROWS - 1)
    return [plans[round(i * step)] for i in range(MAX_FRONTIER_ROWS)]


def _days(seconds: float) -> str:
    """Days, with a decimal where there are fewer than a hundred."""
    days = seconds / 86400.0
    return f"{days:,.1f}" if days < 100.0 else f"{days:,.0f}"


def _count(number: float | None) -> str:
    return "-" if number is None else format_count(round(number))


def _amount_column(name: str, span: str) -> Column:
    text = AMOUNTS[name].text

    def cell(plan: Plan) -> str:
        value = plan.amounts()[name]
        return text(value) if text and value is not None else _count(value)

    return Column(title=f"{AMOUNTS[name].column}{span}", text=cell)


def _amounts(plans: Sequence[Plan], traded: Sequence[str], *, wide: bool) -> list[Column]:
    """What the job takes, and the headroom where it is traded off."""
    has_budget = any(plan.total_s() is not None for plan in plans)
    span = "" if has_budget else " per 1,000 iterations" if wide else "\n/1k it"
    per_span = "" if wide else span
    hours = f"GPU-hours{span}" if wide else f"GPU-h{span}"
    every = [
        (True, Column(title=hours, text=lambda p: _count(p.gpu_hours()), spare=4)),
        (has_budget, Column(title="days", text=lambda p: _days(p.total_s() or 0.0))),
        *(
            (
                name in traded
                or (amount.is_always_shown and any(p.amounts()[name] is not None for p in plans)),
                _amount_column(name, per_span),
            )
            for name, amount in AMOUNTS.items()
        ),
        (
            "headroom_bytes" in traded,
            Column(
                title="headroom GiB" if wide else "free\nGiB",
                text=lambda p: f"{p.headroom_bytes / GIB:,.1f}",
            ),
        ),
    ]
    return [column for is_shown, column in every if is_shown]


def _frontier_columns(
    plans: Sequence[Plan],
    traded: Sequence[str],
    limits: JobLimits | None,
    *,
    wide: bool,
    with_framework: bool,
) -> list[Column]:
    """Columns of a frontier."""
    columns = [
        Column(title="GPUs", text=lambda p: f"{p.strategy.num_gpus:,}"),
        *_place_columns(plans, wide=wide, with_framework=with_framework),
        *_choice_columns(wide=wide, spare=1 if "headroom_bytes" in traded else 5),
        Column(
            title="iteration" if wide else "iter",
            text=lambda p: format_seconds(p.estimate.iter_time_s),
        ),
        Column(title="tokens/s", text=lambda p: f"{p.estimate.tokens_per_s:,.0f}", spare=3),
        Column(title="MFU", text=lambda p: f"{p.estimate.mfu:.1%}", spare=2),
        *_amounts(plans, traded, wide=wide),
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
    wide: bool,
    with_framework: bool,
    traded: Sequence[str] = (),
    limits: JobLimits | None = None,
    width: int | None = None,
) -> Table:
    """The points of a frontier, one a row; with limits, which of them each does not keep."""
    width = width or (WIDE_COLUMNS if wide else NARROW_COLUMNS)
    every = _frontier_columns(plans, traded, limits, wide=wide, with_framework=with_framework)
    return table_of(fitting(every, plans, width), plans)
