"""The forms of a question asked in several ways: verdicts, one table, JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from planner.answers.rows import OtherRow, PlanRow, SideRow, SpeedRow, VersusDocument
from planner.answers.versus import Ratio, Side, Versus, usd_per_token
from planner.plans.plan import Plan
from planner.report.document import serialise
from planner.report.evidence import range_text
from planner.report.headline import host_line, layout_words, over_words
from planner.report.table import Column, Table, rich_table
from planner.report.tables import days
from planner.report.text import inputs_line
from planner.units import GIB, TERA, format_count, format_seconds

AS_ASKED = "as asked"
BILLION = 1e9
SMALL = 0.005
"""Ratios closer to 1 are told without a direction."""


def verdict_line(found: Versus, other: Side) -> str:
    """How much faster the other side is, whether that is sure, and what a token costs there."""
    ratio = found.ratio(other)
    if ratio is None:
        lacking = "nothing fits" if other.plan is None else f"fits, and {AS_ASKED} nothing does"
        return f"{other.label}: {lacking}."
    return f"{other.label} {_ratio_words(ratio)}{_cost_words(found, other)}."


def _ratio_words(ratio: Ratio) -> str:
    value, lower, upper = ratio.value, ratio.lower, ratio.upper
    if abs(value - 1.0) < SMALL:
        return "is as fast"
    how = "times as fast"
    if value < 1.0:
        value, lower, upper, how = 1.0 / value, 1.0 / upper, 1.0 / lower, "times as long"
    verb = "is" if how == "times as fast" else "takes"
    inside = ", inside the error" if ratio.is_open else ""
    return f"{verb} {value:.2f} ({lower:.2f} to {upper:.2f}) {how}{inside}"


def _cost_words(found: Versus, other: Side) -> str:
    """What a token costs there, or takes of GPUs, where the machines are others."""
    assert found.asked.plan is not None
    assert other.plan is not None
    asked, plan = found.asked.plan, other.plan
    if asked.context.cluster == plan.context.cluster:
        return ""
    prices = (usd_per_token(asked), usd_per_token(plan))
    if prices[0] and prices[1]:
        factor = prices[1] / prices[0]
        much = "as much" if abs(factor - 1.0) < SMALL else f"{factor:.2f} times as much"
        return f"; a token costs {much}"
    gpus = plan.strategy.num_gpus / asked.strategy.num_gpus
    tokens_per_s = plan.estimate.tokens_per_s / asked.estimate.tokens_per_s
    return f"; a token takes {gpus / tokens_per_s:.2f} times the GPU time"


def _title(side: Side) -> str:
    """A column's: the words said otherwise, and of numbers what they are."""
    parts = [part.partition("=")[::2] for part in side.label.split(",") if part]
    words = [
        value if value and not value[0].isdecimal() else f"{key}={value}" for key, value in parts
    ]
    return ", ".join(words) or AS_ASKED


def _usd(plan: Plan) -> str:
    price = usd_per_token(plan)
    return "" if price is None else f"{BILLION * price:,.3g}"


def _days(plan: Plan) -> str:
    total_s = plan.total_s()
    return "" if total_s is None else days(total_s)


def _memory(plan: Plan) -> str:
    memory = plan.estimate.memory
    tight = ", tight" if memory.verdict == "tight" else ""
    return f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB{tight}"


def _mfu_range(plan: Plan) -> str:
    made = plan.estimate
    return f"{100 * made.mfu_lower:.1f} - {100 * made.mfu_upper:.1f} %"


ROWS: Mapping[str, Callable[[Plan], str]] = {
    "GPUs": lambda plan: f"{plan.strategy.num_gpus:,} {plan.context.cluster.accelerator.name}",
    "framework": lambda plan: plan.framework,
    "batch": lambda plan: f"{plan.context.job.global_batch:,} x {plan.context.job.seq_len:,}",
    "iteration": lambda plan: format_seconds(plan.estimate.iter_time_s),
    "80 % of runs": lambda plan: range_text(plan.estimate),
    "tokens/s": lambda plan: format_count(round(plan.estimate.tokens_per_s)),
    "a GPU": lambda plan: format_count(round(plan.estimate.tokens_per_s_per_gpu)),
    "MFU": lambda plan: f"{plan.estimate.mfu:.1%}{over_words(plan)}",
    "MFU, range": _mfu_range,
    "TFLOP/s": lambda plan: f"{plan.estimate.model_flops_per_s_per_gpu / TERA:,.3g}",
    "memory": _memory,
    "host": lambda plan: host_line(plan).partition(" of a node")[0],
    "days": _days,
    "USD": lambda plan: "" if plan.total_s() is None else format_count(round(plan.cost_usd() or 0)),
    "USD/1B tokens": _usd,
    "layout": layout_words,
}
SAME_LEFT_OUT = ("framework", "batch", "GPUs")
"""Rows that say nothing where all sides say the same."""


def _shown_rows(found: Versus) -> list[str]:
    """Titles of rows that say something, and where sides could differ, differ."""
    titles = []
    for title, text in ROWS.items():
        said = {text(side.plan) for side in found.sides if side.plan} - {""}
        if said and not (title in SAME_LEFT_OUT and len(said) == 1):
            titles.append(title)
    return titles


def _side_column(side: Side) -> Column[str]:
    return Column(
        _title(side),
        lambda title: ROWS[title](side.plan) if side.plan else "",
        right=False,
        wraps=True,
    )


def print_versus(found: Versus, console: Console) -> None:
    """Print a verdict for every other side, the figures side by side, and how sure they are."""
    for other in found.others:
        console.print(verdict_line(found, other), style="bold green", markup=False)
    first = next(side for side in found.sides if side.answer)
    if first.answer:
        console.print(inputs_line(first.answer), style="dim", markup=False)
    columns: list[Column[str]] = [
        Column("", str, right=False),
        *(_side_column(side) for side in found.sides),
    ]
    console.print(rich_table(Table(_shown_rows(found), columns)))
    for side in found.sides:
        if side.plan is None:
            reason = side.why_none.splitlines()
            console.print(f"{side.label or AS_ASKED}: {' '.join(reason[:2])}", markup=False)
    for basis in dict.fromkeys(r.basis for o in found.others if (r := found.ratio(o))):
        console.print(f"Ranges of ratios hold eight of ten: {basis}.", style="dim")


def _side(side: Side) -> dict[str, Any]:
    return {
        "otherwise": side.label,
        "plan": PlanRow.of(side.plan) if side.plan else None,
        "usd_per_token": usd_per_token(side.plan) if side.plan else None,
        "why_none": side.why_none,
        "assumed": [str(note) for note in side.answer.notes] if side.answer else [],
    }


def _other(found: Versus, other: Side) -> OtherRow:
    ratio = found.ratio(other)
    speed = None if ratio is None else SpeedRow(**asdict(ratio), within_error=ratio.is_open)
    return OtherRow(**_side(other), speed=speed, verdict=verdict_line(found, other))


def render_versus_json(found: Versus) -> str:
    """The answer as indented JSON."""
    others = [_other(found, other) for other in found.others]
    asked = SideRow(**_side(found.asked))
    return serialise("versus", VersusDocument(asked=asked, others=others))
