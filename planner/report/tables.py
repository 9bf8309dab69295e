"""Tables of plans: the best ones and a frontier for the terminal, all as CSV.

What rows differ in is shown at every width; of what is measured, the columns of the largest
``spare`` leave first.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from rich.table import Table as RichTable

from planner.answers.base import Answer, Plan
from planner.answers.rows import PlanRow
from planner.query.objectives import AMOUNTS, JobLimits
from planner.report.table import Column, Table, csv_text, differing, fitting_table
from planner.report.words import days, range_text
from planner.spec.strategy import FIELDS, GPU_DEGREES, OFFLOAD_POLICIES, SHOWN_DEGREES, Strategy
from planner.units import GIB, format_count, format_seconds

MAX_FRONTIER_ROWS = 16
TWICE = 2.0
ALWAYS_SHOWN = ("dp", "tp", "pp")
_BEHIND = {"num_micro_batches": "recompute", "dp_replicate": "recompute_modules"}
"""Columns that stand behind others in place of at the end."""
_LAYOUT = dict.fromkeys(
    column for name in FIELDS for column in (name, _BEHIND.get(name)) if column is not None
)
CSV_COLUMNS = (
    "table",
    "rank",
    "framework",
    "gpus",
    *_LAYOUT,
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


class Laid(Protocol):
    """Whatever has a strategy."""

    @property
    def strategy(self) -> Strategy:
        """The strategy."""


def layout_axes(plans: Iterable[Laid]) -> list[str]:
    """Axes worth showing: dp, tp, pp always, others where used; etp where it is not tp."""
    used = {*ALWAYS_SHOWN, *(axis for plan in plans for axis in plan.strategy.degrees)}
    return [axis for axis in dict.fromkeys((*GPU_DEGREES, *SHOWN_DEGREES)) if axis in used]


def telling_axes(plans: Sequence[Laid]) -> list[str]:
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
    """What is recomputed and, behind a plus, offloaded: ``12/80 + 75% optimizer``."""
    recompute = {"none": "", "full": "all", "selective": "selected"}
    recomputed = recompute.get(strategy.recompute, _recomputed_layers(strategy))
    offloaded = [f"+ {what}" for what in _offloaded(strategy)]
    return " ".join([recomputed, *offloaded]).strip() or "-"


def _recomputed_layers(strategy: Strategy) -> str:
    """How many layers are recomputed in full, and of how many what is selected."""
    num_layers, under = sum(strategy.layers_per_stage), strategy.layers_under
    said = {"full": "{}/{}", "selective": "{}/{} selected"}
    parts = [words.format(under[name], num_layers) for name, words in said.items() if under[name]]
    return ", ".join(parts)


def _offloaded(strategy: Strategy) -> list[str]:
    """States, how many percent of them, activations of how many layers."""
    parts = []
    if strategy.offload != "none":
        what, _, where = strategy.offload.partition(":")
        share = f"{strategy.offload_percent}% " if strategy.offload_percent < 100 else ""
        place = "" if where == "host" else f" to {where}"
        parts.append(f"{share}{what.replace('+', ', ')}{place}")
    layers = sum(strategy.layers_per_stage)
    return parts + [
        f"{under}/{layers} activations"
        for name in OFFLOAD_POLICIES
        if (under := strategy.layers_under[name])
    ]


def drops_sequence_parallel(plans: Iterable[Plan]) -> bool:
    """Whether some plan goes without sequence parallelism where it could have it."""
    return any(
        plan.strategy.tp > 1
        and not plan.strategy.sequence_parallel
        and plan.context.traits.support.sequence_parallel
        for plan in plans
    )


def sequence_parallel(strategy: Strategy) -> str:
    """On or off; nothing to say without tensor parallelism."""
    return "-" if strategy.tp == 1 else "on" if strategy.sequence_parallel else "off"


def _short_placement(placement: str) -> str:
    """The axes that placements differ in: ``dp, pp``."""
    return " in ".join(placement.split("-")[-2:])


def _degree_column(axis: str) -> Column[Plan]:
    return Column(axis, lambda plan: str(getattr(plan.strategy, axis)))


def _layout_columns(plans: Sequence[Plan]) -> list[Column[Plan]]:
    """The layout, and what else of the decisions tells rows apart."""
    decisions: list[Column[Plan]] = [
        Column("framework", lambda p: p.framework, right=False),
        Column("GPUs", lambda p: f"{p.strategy.num_gpus:,}"),
        Column("sequence\nparallel", lambda p: sequence_parallel(p.strategy)),
        Column("schedule", lambda p: p.strategy.schedule, right=False),
        Column("placed", lambda p: _short_placement(p.strategy.placement), right=False),
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
    if not drops_sequence_parallel(plans):
        decisions.pop(2)
    kept = differing(decisions, plans)
    axes = [_degree_column(axis) for axis in telling_axes(plans)]
    before = [column for column in kept if column.title in ("framework", "GPUs")]
    return [*before, *axes, *(column for column in kept if column not in before)]


def _change(plan: Plan, first: Plan) -> str:
    """A plan's time over the first one's: ``+2.6%``, ``3.1x`` from twice on."""
    if plan is first:
        return ""
    ratio = plan.estimate.iter_time_s / first.estimate.iter_time_s
    return f"{ratio:.1f}x" if ratio >= TWICE else f"{ratio - 1.0:+.1%}"


def _best_columns(plans: Sequence[Plan], ranks: Sequence[str]) -> list[Column[Plan]]:
    """Columns of the best plans."""
    hbm = plans[0].estimate.memory.hbm_bytes / GIB
    rank_of = {id(plan): rank for plan, rank in zip(plans, ranks, strict=True)}
    return [
        Column("#", lambda p: rank_of[id(p)]),
        *_layout_columns(plans),
        Column("iteration", lambda p: format_seconds(p.estimate.iter_time_s)),
        Column("vs #1", lambda p: _change(p, plans[0]), spare=2),
        Column("80 % interval", lambda p: range_text(p.estimate), spare=10),
        Column(
            "tokens/s\n/GPU",
            lambda p: f"{p.estimate.tokens_per_s_per_gpu:,.0f}",
            spare=8,
        ),
        Column("MFU", lambda p: f"{p.estimate.mfu:.1%}", spare=6),
        *_job_columns(plans),
        Column(
            f"GiB of\n{hbm:.1f}",
            lambda p: f"{p.estimate.memory.peak_bytes / GIB:,.1f}",
            spare=7,
        ),
        Column("free\nGiB", lambda p: f"{p.free_bytes / GIB:,.1f}", spare=1),
    ]


def _job_columns(plans: Sequence[Plan]) -> list[Column[Plan]]:
    """Days and cost, where the job's tokens are given."""
    if plans[0].total_s() is None:
        return []
    columns: list[Column[Plan]] = [Column("days", lambda p: days(p.total_s() or 0.0), spare=3)]
    if plans[0].cost_usd() is not None:
        columns.append(Column("USD", lambda p: _count(p.cost_usd()), spare=4))
    return columns


def plans_table(plans: Sequence[Plan], ladder: Sequence[Plan] = (), *, width: int) -> RichTable:
    """The best plans, one a row, and behind them the best on fewer GPUs."""
    every = [*plans, *ladder]
    ranks = [*(str(rank) for rank in range(1, len(plans) + 1)), *("" for _ in ladder)]
    best = {id(plan) for plan in plans}

    def style(plan: Plan) -> str:
        if plan is every[0]:
            return "bold"
        return "" if id(plan) in best else "dim"

    return fitting_table(Table(every, _best_columns(every, ranks), style=style), width)


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """At most MAX_FRONTIER_ROWS points, evenly spread over the frontier, both ends included."""
    if len(plans) <= MAX_FRONTIER_ROWS:
        return list(plans)
    step = (len(plans) - 1) / (MAX_FRONTIER_ROWS - 1)
    return [plans[round(i * step)] for i in range(MAX_FRONTIER_ROWS)]


def _count(number: float | None) -> str:
    return "-" if number is None else format_count(round(number))


def _amount_column(name: str, span: str) -> Column[Plan]:
    text = AMOUNTS[name].text

    def cell(plan: Plan) -> str:
        value = plan.amounts()[name]
        return text(value) if text and value is not None else _count(value)

    return Column(f"{AMOUNTS[name].column}{span}", cell)


def _amounts(plans: Sequence[Plan], traded: Sequence[str]) -> list[Column[Plan]]:
    """What the job takes, and the headroom where it is traded off."""
    has_budget = any(plan.total_s() is not None for plan in plans)
    span = "" if has_budget else "\n/1k it"
    every: list[tuple[bool, Column[Plan]]] = [
        (True, Column(f"GPU-hours{span}", lambda p: _count(p.gpu_hours()), spare=4)),
        (has_budget, Column("days", lambda p: days(p.total_s() or 0.0))),
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
            Column("free\nGiB", lambda p: f"{p.headroom_bytes / GIB:,.1f}"),
        ),
    ]
    return [column for is_shown, column in every if is_shown]


def _frontier_columns(
    plans: Sequence[Plan], traded: Sequence[str], limits: JobLimits | None
) -> list[Column[Plan]]:
    """Columns of a frontier."""
    columns = [
        *_layout_columns(plans),
        Column("iteration", lambda p: format_seconds(p.estimate.iter_time_s)),
        Column("tokens/s", lambda p: f"{p.estimate.tokens_per_s:,.0f}", spare=3),
        Column("MFU", lambda p: f"{p.estimate.mfu:.1%}", spare=2),
        *_amounts(plans, traded),
    ]
    if limits is not None:
        columns.append(
            Column(
                "misses",
                lambda p: ", ".join(limits.missed_by(p)) or "-",
                right=False,
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
) -> RichTable:
    """The points of a frontier, one a row; with limits, which of them each does not keep."""
    return fitting_table(Table(plans, _frontier_columns(plans, traded, limits)), width)


def csv_row(plan: Plan) -> dict[str, Any]:
    """Of one plan, by CSV_COLUMNS, what does not depend on its place in a table."""
    row = PlanRow.of(plan)
    known = vars(row.strategy) | vars(row.memory) | vars(row)
    return {
        name: " ".join(map(str, known[name])) if isinstance(known[name], list) else known[name]
        for name in CSV_COLUMNS
        if name in known
    }


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """All tables of the answer, a row per plan, by CSV_COLUMNS."""
    tables = (("plans", answer.plans), ("ladder", answer.ladder), ("pareto", answer.pareto))
    for table, plans in tables:
        for rank, plan in enumerate(plans, start=1):
            yield {"table": table, "rank": rank, **csv_row(plan)}


def render_csv(answer: Answer) -> str:
    """All tables of the answer as CSV with a header."""
    return csv_text(rows(answer), CSV_COLUMNS)
