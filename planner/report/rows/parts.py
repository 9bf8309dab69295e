"""Rows that documents of several kinds share."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from planner.formats.finding import Finding
from planner.plans.repair import MemoryDeficit
from planner.report.rows.base import FieldsOf, Row
from planner.spec.strategy import Strategy

RepairedRowChange = TypedDict(
    "RepairedRowChange",
    {"field": str, "from": Any, "to": Any, "counts": bool, "key": str, "line": int},
)


class RepairedRow(Row):
    """A repaired, in any document."""

    changes: list[RepairedRowChange]
    strategy: Strategy
    iter_time_s: float
    tokens_per_s: float
    peak_bytes: float
    """Fullest stage."""
    usable_bytes: float
    stage: int
    """The fullest, from 0."""
    host_bytes: float
    """Offloaded per rank."""
    proved_fastest: bool
    """Of the repairs with as few changes."""


class RepairRowViolation(Row):
    """Rules that it breaks."""

    key: str
    message: str


RepairRowMemoryDeficit = Annotated[
    dict[str, Any],
    FieldsOf(
        "RepairRowMemoryDeficit",
        MemoryDeficit,
        more={
            "missing_bytes": float,
        },
    ),
]
"""Stages whose memory is not enough."""


class RepairRowBefore(Row):
    """Figures of the layout as it is; null where it cannot be priced."""

    iter_time_s: float
    tokens_per_s: float
    peak_bytes: float
    usable_bytes: float
    stage: int
    host_bytes: float


class RepairRow(Row):
    """A repair, in any document."""

    path: str
    """Of the file."""
    format: str
    """Plan or the name of a format."""
    model: str
    cluster: str
    framework: str
    profile: str
    num_gpus: int
    margin_fraction: float
    """Of HBM kept free."""
    is_sound: bool
    """Nothing is to be repaired."""
    violations: list[RepairRowViolation]
    memory_deficits: list[RepairRowMemoryDeficit]
    errors: list[Finding]
    """Of a configuration file as it is."""
    errors_left: list[Finding]
    """That no layout fixes."""
    before: RepairRowBefore | None
    before_cluster: str | None
    """The cluster of those figures where it is another."""
    num_changes: int | None
    """Fewest that do; 0 of a sound one, null where none was found."""
    is_complete: bool
    """No time limit struck."""
    none_with_at_most: int | None
    """So many changes were tried and none does; null where one was found."""
    repair: RepairedRow | None
    alternatives: list[RepairedRow]
    search_command: str
    """That searches for the best plan in place of the nearest."""
    configurations: int
    """Looked at by the search."""
    seconds: float
    """Of the search (s)."""
    assumed: list[str]
    """What a configuration file does not say."""
    diff: list[str]
    """Unified, of what --apply changes in a configuration file."""


"""An item difference, in any document."""


class CollectiveCostRow(Row):
    """A collective cost, in any document."""

    time_s: float
    rounds: float
    """Messages one after another."""
    sent_bytes: float
    """By one rank."""
