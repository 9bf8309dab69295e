"""Columns of tables of plans: strategies in short words, and what is left out where space lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table

from planner.plans.plan import Plan
from planner.spec.strategy import LAYER_POLICIES, MOVED, RECOMPUTED, SHOWN_DEGREES, Strategy

REPLICATED = "dp/rep"
"""The axis dp with the replicas of its sharding groups, where some plan has several."""
OFFLOAD_SHORT = {
    "none": "-",
    "optimizer:host": "opt",
    "optimizer+parameters:host": "opt+par",
    "optimizer:nvme": "opt nvme",
    "optimizer+parameters:nvme": "opt+par nvme",
}
SCHEDULE_SHORT = {"zb-interleaved": "zb-int", "dualpipe-v": "dual-v"}
FRAMEWORK_SHORT = {"megatron": "meg", "deepspeed": "ds", "torchtitan": "tt", "accelerate": "acc"}


class Laid(Protocol):
    """Whatever has a strategy."""

    @property
    def strategy(self) -> Strategy:
        """The strategy."""


def layout_axes(plans: Sequence[Laid]) -> list[str]:
    """Axes worth a place in the layout column: dp, tp, pp always, others where used.

    etp is shown where it is another than tp.
    """
    used = {"tp", "pp", *(axis for plan in plans for axis in plan.strategy.degrees)} - {"dp"}
    replicated = any(plan.strategy.dp_replicate > 1 for plan in plans)
    others = [axis for axis in SHOWN_DEGREES if axis in used]
    return [REPLICATED if replicated else "dp", *others]


def layout(strategy: Strategy, axes: Sequence[str]) -> str:
    """Degrees joined by dots: ``32·4·8``; ``32/2`` where dp is two replicas of sharding groups."""
    dp, replicas = strategy.dp, strategy.dp_replicate
    words = {REPLICATED: f"{dp}/{replicas}" if replicas > 1 else str(dp)}
    return "·".join(words.get(axis) or str(getattr(strategy, axis)) for axis in axes)


def recomputed(strategy: Strategy, *, wide: bool) -> str:
    """How many layers are recomputed, and how."""
    if strategy.recompute == "none":
        return "-"
    words = strategy.recompute
    for name in () if wide else RECOMPUTED:
        words = words.replace(name, LAYER_POLICIES[name].short)
    return words


def offloaded(strategy: Strategy) -> str:
    """What is offloaded: states, how many percent of them, activations of how many layers."""
    parts = []
    if strategy.offload != "none":
        share = f" {strategy.offload_percent}%" if strategy.offload_percent < 100 else ""
        parts.append(f"{OFFLOAD_SHORT[strategy.offload]}{share}")
    for name, policy in MOVED.items():
        if layers := strategy.layers_under[name]:
            parts.append(f"{policy.short} {layers}/{sum(strategy.layers_per_stage)}")
    return " + ".join(parts) or "-"


def shows_schedule(plans: Sequence[Plan]) -> bool:
    """Whether some plan runs another schedule than 1F1B."""
    return any(plan.strategy.schedule != "1f1b" for plan in plans)


def drops_sequence_parallel(plans: Sequence[Plan]) -> bool:
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


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its title and what it says of a plan."""

    title: str
    text: Callable[[Plan], str]
    is_left: bool = False
    spare: int = 0
    """0: always shown; where space lacks, the largest is left out first."""
    wraps: bool = False


def _width(column: Column, plans: Sequence[Plan]) -> int:
    lines = [*column.title.split("\n"), *(column.text(plan) for plan in plans)]
    return max(len(line) for line in lines)


def fitting(columns: Sequence[Column], plans: Sequence[Plan], width: int) -> list[Column]:
    """The columns that fit beside each other, the spare ones left out in turn."""
    kept = list(columns)
    widths = {id(column): _width(column, plans) + 2 for column in kept}
    while sum(widths[id(column)] for column in kept) > width:
        spare = max(kept, key=lambda column: column.spare)
        if not spare.spare:
            break
        kept.remove(spare)
    return kept


def fits(columns: Sequence[Column], plans: Sequence[Plan], width: int) -> bool:
    """Whether the columns fit beside each other."""
    return sum(_width(column, plans) + 2 for column in columns) <= width


def table_of(columns: Sequence[Column], plans: Sequence[Plan]) -> Table:
    """The table, one plan a row."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        justify: JustifyMethod = "left" if column.is_left else "right"
        table.add_column(column.title, justify=justify, no_wrap=not column.wraps)
    for plan in plans:
        table.add_row(*(column.text(plan) for column in columns))
    return table
