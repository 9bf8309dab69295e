"""The CSV form of an answer: one row per plan of every table."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from planner.plans.objectives import AMOUNTS
from planner.plans.plan import Answer, Plan
from planner.spec.strategy import FIELDS

_BEHIND = {"num_micro_batches": "recompute", "dp_replicate": "recompute_modules"}
"""Columns that stand behind others in place of at the end."""
_LAYOUT = dict.fromkeys(
    column for name in FIELDS for column in (name, _BEHIND.get(name)) if column is not None
)
COLUMNS = (
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


def plan_row(plan: Plan) -> dict[str, Any]:
    """Of one plan, by COLUMNS, what does not depend on its place in a table."""
    strategy, estimate = plan.strategy, plan.estimate
    values: dict[str, Any] = {name: getattr(strategy, name) for name in _LAYOUT}
    values |= {
        name: " ".join(str(part) for part in value)
        for name, value in values.items()
        if isinstance(value, tuple)
    }
    total_s = plan.total_s()
    return values | {
        "framework": plan.framework,
        "gpus": strategy.num_gpus,
        "iter_time_s": estimate.iter_time_s,
        "iter_time_s_lower": estimate.iter_time_s_lower,
        "iter_time_s_upper": estimate.iter_time_s_upper,
        "iter_time_s_overlapped": estimate.iter_time_s_overlapped,
        "iter_time_s_serial": estimate.iter_time_s_serial,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "mfu_full_square": estimate.mfu_full_square,
        "peak_bytes": estimate.memory.peak_bytes,
        "usable_bytes": estimate.memory.usable_bytes,
        "gpu_hours": plan.gpu_hours(),
        "days": "" if total_s is None else total_s / 86400.0,
        **{name: "" if value is None else value for name, value in plan.amounts().items()},
        "headroom_bytes": plan.headroom_bytes,
    }


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """All tables of the answer, a row per plan, by COLUMNS."""
    tables = (("plans", answer.plans), ("ladder", answer.ladder), ("pareto", answer.pareto))
    for table, plans in tables:
        for rank, plan in enumerate(plans, start=1):
            row = {"table": table, "rank": rank, **plan_row(plan)}
            yield {name: row[name] for name in COLUMNS}


def render_csv(answer: Answer) -> str:
    """All tables of the answer as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(answer))
    return text.getvalue()
