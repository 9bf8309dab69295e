"""Documents of a search, and of why a layout is not the one chosen."""

from typing import Any, NotRequired

from planner.answers.rows import PlanRow
from planner.cost.ledger_item import LedgerItem
from planner.plans.ratio_error import RatioError
from planner.report.rows.base import Row
from planner.report.rows.parts import ItemDifferenceRow
from planner.spec.strategy import Strategy


class WhyRankingWeights(Row):
    """What the times are multiplied by to rank them."""

    asked: float
    best: float


class WhyHandicap(Row):
    """By mechanism."""

    asked: float
    """Factor; 1 where unused."""
    best: float
    reason: str


class WhyStageLayers(Row):
    """What ``layers`` holds."""

    asked: int
    best: int


class WhyStage(Row):
    """The same stage of both, where both have as many."""

    stage: int
    layers: WhyStageLayers
    time: list[ItemDifferenceRow]
    """Its own work of an iteration."""


class WhyLayout(Row):
    """What differs."""

    asked: Any
    best: Any


class WhyNothingFitsRule(Row):
    """Rules that leave nothing."""

    name: str
    message: str
    violations: list[str]
    """What layouts do against it, with numbers."""
    allowed: str | None


class WhyNothingFitsNearest(Row):
    """The layout that lacks least memory."""

    strategy: Strategy
    limit: str
    stage: int
    missing_bytes: float
    is_least: bool
    """No other lacks less."""
    peak_bytes: float
    ledger: list[LedgerItem]


class WhyNothingFitsChange(Row):
    """Changes of the question after which something fits."""

    change: str
    options: list[str]
    cluster: str | None
    gpus: int
    framework: str
    iter_time_s: float
    time_factor: float | None
    proved_optimal: bool
    strategy: Strategy


class WhyNothingFits(Row):
    """What ``nothing_fits`` holds."""

    framework: str
    rules: list[WhyNothingFitsRule]
    each_rule_alone: bool | None
    """Any of them leaves nothing."""
    conflict: list[str]
    """Options that cannot hold together."""
    limits: list[str]
    nearest: WhyNothingFitsNearest | None
    ideal_iter_time_s: float | None
    """If memory were no limit."""
    changes: list[WhyNothingFitsChange]


class WhyDocument(Row):
    """Why a layout is not the one chosen.

    What compares two plans is there only where there are two.
    """

    options: list[str]
    """As given."""
    verdict: str
    """In a word."""
    asked: PlanRow | None
    """The best with these options; null where none fits."""
    best: PlanRow | None
    """Without them."""
    slower_by: float | None
    """Of the best plan's time; below 0 is faster."""
    gpu_time_factor: NotRequired[float]
    """GPU time of an iteration over the best plan's."""
    ratio_error: NotRequired[RatioError]
    within_error: NotRequired[bool]
    """The times are closer than the typical error."""
    ranking_weights: NotRequired[WhyRankingWeights]
    handicaps: NotRequired[dict[str, WhyHandicap]]
    stages: NotRequired[list[WhyStage]]
    time: list[ItemDifferenceRow]
    """Items of the whole pipeline, mean over its stages.

    They add up to that of the iterations.
    """
    layout: dict[str, WhyLayout]
    nothing_fits: WhyNothingFits | None
    complete: bool
    """No time limit struck."""
    notes: list[str]
    """Defaults that were assumed."""
