"""Tables of plans: the best ones and a frontier for the terminal, all as CSV.

What rows differ in is shown at every width; of what is measured, the columns of the largest
``spare`` leave first.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from planner.answers.base import Answer, Plan
from planner.query.objectives import AMOUNTS, JobLimits
from planner.report.sizing_words import missed_text
from planner.report.table import Column, Table, differing
from planner.report.words import mfu_text, range_text
from planner.search.ranking.penalties import TIE_FRACTION
from planner.spec.strategy import (
    FIELDS,
    GPU_DEGREES,
    OFFLOAD_POLICIES,
    SHOWN_DEGREES,
    Strategy,
)
from planner.units import GIB, format_count, format_days, format_seconds

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


def telling_axes(plans: Sequence[Plan]) -> list[str]:
    """dp, tp, pp, and of the others those in which plans differ."""
    return [
        axis
        for axis in dict.fromkeys((*GPU_DEGREES, *SHOWN_DEGREES))
        if axis in ("dp", "tp", "pp")
        or len({plan.strategy.degrees.get(axis, 1) for plan in plans}) > 1
    ]


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


MACHINES: list[Column[Plan]] = [
    Column("framework", "framework", right=False),
    Column("GPUs", lambda p: f"{p.num_gpus:,}"),
]


def degree_columns(plans: Sequence[Plan]) -> list[Column[Plan]]:
    """GPUs and framework where they differ, and the degrees, joined: ``32·4·8``."""
    axes = telling_axes(plans)
    degrees = Column[Plan](
        "·".join(axes),
        lambda plan: "·".join(str(getattr(plan.strategy, axis)) for axis in axes),
        right=False,
    )
    return [*differing(MACHINES, plans), degrees]


def _layout_columns(plans: Sequence[Plan]) -> list[Column[Plan]]:
    could_have = [
        plan.strategy.sequence_parallel
        for plan in plans
        if plan.strategy.tp > 1 and "sequence_parallel" in plan.context.traits.support.features
    ]

    def sequence_parallel(plan: Plan) -> str:
        # Nothing to say where every plan has it that could, or without tensor parallelism.
        if all(could_have) or plan.strategy.tp == 1:
            return "-"
        return "on" if plan.strategy.sequence_parallel else "off"

    decisions: list[Column[Plan]] = [
        Column("sequence\nparallel", sequence_parallel),
        Column("schedule", "strategy.schedule", right=False),
        # The axes that placements differ in: ``dp in pp``.
        Column(
            "placed",
            lambda p: " in ".join(p.strategy.placement.split("-")[-2:]),
            right=False,
        ),
        Column("ZeRO", "strategy.zero_stage"),
        Column("replicas", "strategy.dp_replicate"),
        Column("micro-\nbatch", "strategy.micro_batch"),
        Column(
            "recompute\n+ offload",
            lambda p: memory_saved_by(p.strategy),
            right=False,
            wraps=True,
        ),
    ]
    axes = (Column[Plan](axis, f"strategy.{axis}") for axis in telling_axes(plans))
    return [*differing(MACHINES, plans), *axes, *differing(decisions, plans)]


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.1f}"


ITERATION = Column[Plan]("iteration", lambda p: format_seconds(p.estimate.iter_time_s))
TOKENS_PER_S = Column[Plan]("tokens/s", lambda p: format_count(p.estimate.tokens_per_s), spare=5)
MFU = Column[Plan]("MFU", mfu_text, spare=6)
DAYS = Column[Plan]("days", lambda p: format_days(p.span_s()), spare=3)


def amount_column(name: str, span: str = "") -> Column[Plan]:
    """Column of an amount that plans take: cost, energy, ..."""
    amount, text = AMOUNTS[name], AMOUNTS[name].text or format_count

    def cell(plan: Plan) -> str:
        value = plan.amounts()[name]
        return "-" if value is None else text(value)

    return Column(f"{amount.column}{span}", cell, spare=4 if amount.is_always_shown else 9)


def _time(plan: Plan) -> float:
    return plan.estimate.iter_time_s


def plans_table(
    plans: Sequence[Plan],
    ladder: Sequence[Plan] = (),
    names: Sequence[str] = (),
    fastest: Plan | None = None,
) -> Table[Plan]:
    """Plans by number beside the fastest, or by name beside the first; below them the ladder."""
    every, first = [*plans, *ladder], plans[0]
    named = names or [str(number) for number in range(1, len(plans) + 1)]
    ranks = dict(zip(map(id, plans), named, strict=True))
    of_job = [] if first.total_s() is None else [DAYS]
    of_job += [amount_column("cost_usd")] if of_job and first.cost_usd() is not None else []

    leading = fastest or first
    base = first if names else min((leading, *plans), key=_time)

    def change(plan: Plan) -> str:
        if plan is base:
            return ""
        ratio = _time(plan) / _time(base)
        is_near = max(ratio, plan.ranked_s / leading.ranked_s) <= 1.0 + TIE_FRACTION
        is_tie = not names and id(plan) in ranks and is_near
        much = f"{ratio - 1.0:+.1%}" if ratio < 10 else f"{ratio:,.0f} times"
        return f"{'≈ ' if is_tie else ''}{much}"

    columns = [
        Column("" if names else "#", lambda p: ranks.get(id(p), ""), right=not names),
        *_layout_columns(every),
        ITERATION,
        Column("vs first" if names else "vs\nfastest", change, spare=2),
        Column("80 % interval", lambda p: range_text(p.estimate), spare=10),
        Column("tokens/s\n/GPU", lambda p: f"{p.estimate.tokens_per_s_per_gpu:,.0f}", spare=8),
        MFU,
        *of_job,
        Column("peak\nGiB", lambda p: _gib(p.estimate.memory.peak_bytes), spare=7),
        Column("free\nGiB", lambda p: _gib(p.estimate.memory.free_bytes), spare=1),
    ]
    styles = dict.fromkeys(ranks, "") | {id(first): "bold"}
    return Table(every, columns, style=lambda plan: styles.get(id(plan), "dim"))


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """Return at most 16 points, evenly over the frontier, both ends included."""
    places = np.linspace(0, len(plans) - 1, min(len(plans), 16)).round().astype(int)
    return [plans[place] for place in places]


def frontier_table(
    plans: Sequence[Plan],
    limits: JobLimits,
    *,
    traded: Sequence[str] = (),
    marked: Collection[int] = (),
) -> Table[Plan]:
    """The points of a frontier, those on ``marked`` GPUs with a mark, and what limits they miss."""
    is_job = any(plan.total_s() is not None for plan in plans)
    span = "" if is_job else "\n/1k it"
    columns = [
        *(degree_columns(plans) if marked else _layout_columns(plans)),
        ITERATION,
        TOKENS_PER_S,
        MFU,
        Column(f"GPU-hours{span}", lambda p: format_count(p.gpu_hours()), spare=4),
        *([DAYS] if is_job else []),
    ]
    for name, amount in AMOUNTS.items():
        is_known = any(plan.amounts()[name] is not None for plan in plans)
        if name in traded or (amount.is_always_shown and is_known):
            columns.append(amount_column(name, span))
    if "headroom_bytes" in traded:
        columns.append(Column("free\nGiB", lambda p: _gib(p.estimate.memory.headroom_bytes)))
    if marked:
        columns.insert(0, Column("", lambda p: ">" if p.num_gpus in marked else ""))
    if not limits.is_empty:
        columns.append(
            Column(
                "misses by",
                lambda p: missed_text(p, limits, bare=True) or "-",
                right=False,
                wraps=True,
            )
        )
    return Table(plans, columns)


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """All tables of the answer, a row per plan, by CSV_COLUMNS."""
    from planner.answers.rows import PlanRow

    tables = {"plans": answer.plans, "ladder": answer.ladder, "pareto": answer.pareto}
    for table, plans in tables.items():
        for rank, plan in enumerate(plans, start=1):
            row = PlanRow.of(plan)
            known = vars(row.strategy) | vars(row.memory) | vars(row)
            known |= {"table": table, "rank": rank}
            told = ((name, known[name]) for name in CSV_COLUMNS)
            yield {
                name: " ".join(map(str, value)) if isinstance(value, list) else value
                for name, value in told
            }
