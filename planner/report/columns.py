"""Columns of tables of plans: what tells rows apart, and what is left out where space lacks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import JustifyMethod
from rich.table import Table

from planner.plans.plan import Plan
from planner.report.screen import plain_table
from planner.spec.strategy import COLUMNS, GPU_DEGREES, MOVED, SHOWN_DEGREES, Strategy

MATTERS = 2
"""Columns of at most this ``spare`` would rather stand close, or wrap, than be left out."""
ALWAYS_SHOWN = ("dp", "tp", "pp")


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


def axis_title(axis: str, *, wide: bool) -> str:
    """An axis as its option is called, spelled out where there is room."""
    return COLUMNS[axis].word.replace(" ", "\n") if wide else axis


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
        f"{under}/{layers} activations" for name in MOVED if (under := strategy.layers_under[name])
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


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its title and what it says of a plan."""

    title: str
    text: Callable[[Plan], str]
    is_left: bool = False
    spare: int = 0
    """0: always shown; where space lacks, the largest is left out first."""
    wraps: bool = False


def telling(columns: Sequence[Column], plans: Sequence[Plan]) -> list[Column]:
    """The columns in which rows differ."""
    return [column for column in columns if len({column.text(plan) for plan in plans}) > 1]


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """How close columns stand: characters between them, and whether some may wrap."""

    gap: int
    wraps: bool = False

    def width(self, column: Column, plans: Sequence[Plan]) -> int:
        """Characters that a column needs: its longest word, where it wraps."""
        texts = (column.title, *map(column.text, plans))
        split = (part for text in texts for part in text.split("\n"))
        if self.wraps and column.wraps:
            split = (word for part in split for word in part.split() or [""])
        return max(map(len, split))

    def total(self, columns: Sequence[Column], plans: Sequence[Plan]) -> int:
        """Characters of a row."""
        return sum(self.width(column, plans) + self.gap for column in columns) - self.gap

    def fitting(self, columns: Sequence[Column], plans: Sequence[Plan], width: int) -> list[Column]:
        """The columns that fit, the spare ones left out in turn."""
        kept = list(columns)
        while self.total(kept, plans) > width:
            spare = max(kept, key=lambda column: column.spare)
            if not spare.spare:
                break
            kept.remove(spare)
        return kept


SETTINGS = (_Setting(gap=2), _Setting(gap=1), _Setting(gap=1, wraps=True))
"""Tried in turn until all columns fit that matter."""


def fitting(
    columns: Sequence[Column], plans: Sequence[Plan], width: int
) -> tuple[list[Column], int]:
    """The columns that fit beside each other, and the characters between them."""
    mattering = sum(column.spare <= MATTERS for column in columns)
    for setting in SETTINGS:
        kept = setting.fitting(columns, plans, width)
        if sum(column.spare <= MATTERS for column in kept) == mattering:
            break
    return kept, setting.gap


def fits(columns: Sequence[Column], plans: Sequence[Plan], width: int) -> bool:
    """Whether all columns fit beside each other."""
    return SETTINGS[0].total(columns, plans) <= width


def table_of(
    columns: Sequence[Column],
    plans: Sequence[Plan],
    *,
    gap: int = SETTINGS[0].gap,
    leads: bool = False,
    best: int = 0,
) -> Table:
    """The table, one plan a row; the first stands out where it ``leads``.

    Rows behind the ``best`` step back, where that is not 0.
    """
    table = plain_table(gap=gap)
    for column in columns:
        justify: JustifyMethod = "left" if column.is_left else "right"
        table.add_column(column.title, justify=justify, no_wrap=not column.wraps, vertical="bottom")
    for row, plan in enumerate(plans):
        style = "bold" if leads and row == 0 else "dim" if best and row >= best else None
        table.add_row(*(column.text(plan) for column in columns), style=style)
    return table
