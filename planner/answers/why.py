"""Reasons why a layout is not chosen, item by item, and one question under other settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.evidence import RatioError, kinds_of_difference, ratio_error
from planner.answers.layout import differences
from planner.answers.nothing_fits import NothingFits, NothingFitsRow, explain_nothing
from planner.answers.row import Row, property_row, row_from
from planner.answers.rows import PlanRow, Ratio
from planner.answers.whatif import best
from planner.cost.estimate import TimeItem
from planner.query.objectives import cost_usd, gpu_hours
from planner.query.resolve import Case
from planner.search.ranking.penalties import PENALTIES
from planner.search.search import Progress, no_progress
from planner.search.space.narrow import narrowing_of

ROUNDING = 1e-5  # relative difference of times that is none: that of the stage problem

# ``ranked behind``: faster by the model, but not by what evidence for it has to make up for.
Verdict = Literal[
    "is the best plan", "ties", "slower", "faster", "ranked behind", "illegal", "does not fit"
]


class ItemDifference(Row):
    """One item of iteration time in both plans."""

    name: str
    asked_s: float
    best_s: float
    difference_s: float
    """Extra seconds of the plan under the options."""

    @classmethod
    def of(cls, name: str, asked_s: float, best_s: float) -> "ItemDifference":
        """The item with its difference."""
        return cls(name=name, asked_s=asked_s, best_s=best_s, difference_s=asked_s - best_s)


class StageDifference(Row):
    """The same stage of both pipelines: its own work of an iteration, without waiting."""

    stage: int
    asked_layers: int
    best_layers: int
    asked_s: float
    best_s: float
    items: tuple[ItemDifference, ...]
    """Largest difference first."""


class Penalty(Row):
    """Confidence penalty of a mechanism: a factor of the time a plan is ranked by."""

    name: str
    asked: float
    """1 where the plan does not use it."""
    best: float
    reason: str
    """Reason why the mechanism must gain something before it is used."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The plan asked for beside the best one: how far apart they are, and in what."""

    asked: Plan
    best: Plan

    @property
    def slower_by(self) -> float:
        """Fraction of the best plan's time that the asked one takes more; below 0: less."""
        return self.asked.estimate.iter_time_s / self.best.estimate.iter_time_s - 1.0

    @property
    def weighed_ratio(self) -> float:
        """Ratio of both times as they are ranked, penalties included."""
        return self.asked.ranked_s / self.best.ranked_s

    @property
    def gpu_time_factor(self) -> float:
        """GPU time of an iteration, of the best plan's."""
        return (1.0 + self.slower_by) * self.asked.num_gpus / self.best.num_gpus

    @property
    def ratio_error(self) -> RatioError:
        """Error of the model on the ratio of the two times."""
        kinds = kinds_of_difference(self.asked.strategy, self.best.strategy)
        others = ("framework",) if self.asked.framework != self.best.framework else ()
        return ratio_error((*kinds, *others))

    @property
    def within_error(self) -> bool:
        """True if the times, weighed or not, are closer than the typical error of such ratios."""
        ratios = (1.0 + self.slower_by, self.weighed_ratio)
        return all(self.ratio_error.may_tie(ratio) for ratio in ratios)

    @property
    def time(self) -> tuple[ItemDifference, ...]:
        """Items of both whole pipelines, by what the asked one takes more; sum to the difference.

        Each is the mean over the plan's stages; what stages wait for the slowest is an item.
        """
        return _items(self.asked.estimate.pipeline_time, self.best.estimate.pipeline_time)

    @property
    def stages(self) -> tuple[StageDifference, ...]:
        """The end stages and the slowest one of either, each in both; empty where pp differs."""
        first, second = self.asked.strategy, self.best.strategy
        if first.pp != second.pp or first.pp == 1:
            return ()
        both = (self.asked.estimate, self.best.estimate)
        shown = {0, first.pp - 1, *(each.slowest_stage for each in both)}
        items = {stage: _items(*(each.stage_time(stage) for each in both)) for stage in shown}
        return tuple(
            StageDifference(
                stage=stage,
                asked_layers=first.layers_per_stage[stage],
                best_layers=second.layers_per_stage[stage],
                asked_s=sum(item.asked_s for item in items[stage]),
                best_s=sum(item.best_s for item in items[stage]),
                items=items[stage],
            )
            for stage in sorted(shown)
        )

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """Mechanisms that count for more in one plan than in the other."""
        first, second = self.asked.penalties(), self.best.penalties()
        return tuple(
            Penalty(
                name=name,
                asked=first.get(name, 1.0),
                best=second.get(name, 1.0),
                reason=PENALTIES[name].reason,
            )
            for name in dict.fromkeys((*first, *second))
            if first.get(name) != second.get(name)
        )

    @property
    def layout(self) -> dict[str, tuple[str, str]]:
        """Values that differ between the layouts: asked, best."""
        return differences(self.asked.strategy, self.best.strategy)


@property_row(Comparison)
class ComparisonRow(Row):
    """The comparison of both plans."""


@dataclass(frozen=True, kw_only=True)
class WhyAnswer:
    """The best plan under the user's options beside the best of all."""

    case: Case
    best: Plan | None  # of the space without the options, but for --allow; None: nothing fits
    asked: Plan | None  # of the space under the options; None where nothing fits in it
    nothing: NothingFits | None  # why nothing fits under the options
    is_complete: bool  # no time limit struck

    @property
    def comparison(self) -> Comparison | None:
        """Comparison of both plans, if there are two."""
        asked, best = self.asked, self.best
        return Comparison(asked=asked, best=best) if asked and best else None

    @property
    def verdict(self) -> Verdict:
        """The answer in a word."""
        both = self.comparison
        if self.nothing is not None:
            return "illegal" if self.nothing.forbidding else "does not fit"
        if both is None:
            return "faster"
        asked, best = both.asked, both.best
        if (asked.framework, asked.strategy) == (best.framework, best.strategy):
            return "is the best plan"
        if abs(both.slower_by) <= ROUNDING:
            return "ties"
        if both.slower_by > 0:
            return "slower"
        return "ranked behind" if both.weighed_ratio > 1.0 - ROUNDING else "faster"


class WhyDocument(Row):
    """Reasons why a layout is not the one chosen."""

    options: list[str]
    verdict: Verdict
    asked: PlanRow | None
    """The best with these options; null where none fits."""
    best: PlanRow | None
    comparison: ComparisonRow | None
    nothing_fits: NothingFitsRow | None
    complete: bool
    """No time limit struck."""
    notes: list[str]

    @classmethod
    def of(cls, answer: WhyAnswer) -> "WhyDocument":
        """The whole answer."""
        both = answer.comparison
        return cls(
            options=list(answer.case.narrowing.texts),
            verdict=answer.verdict,
            asked=PlanRow.of(answer.asked) if answer.asked else None,
            best=PlanRow.of(answer.best) if answer.best else None,
            comparison=row_from(ComparisonRow, both) if both else None,
            nothing_fits=NothingFitsRow.of(answer.nothing) if answer.nothing else None,
            complete=answer.is_complete,
            notes=[str(note) for note in answer.case.notes],
        )


def _items(
    asked: Mapping[str, TimeItem], best: Mapping[str, TimeItem]
) -> tuple[ItemDifference, ...]:
    nothing = TimeItem(busy_s=0.0, exposed_s=0.0)
    found = [
        ItemDifference.of(name, *(times.get(name, nothing).exposed_s for times in (asked, best)))
        for name in dict.fromkeys((*asked, *best))
    ]
    return tuple(sorted(found, key=lambda item: -item.difference_s))


def why(
    case: Case,
    *,
    deadline: Deadline | None = None,
    progress: Progress = no_progress,
) -> WhyAnswer:
    """Compare the best plan under the options with the best of all; raises NothingFitsError."""
    deadline = deadline or Deadline()
    deadline.num_left = 2 * len(case.contexts)
    wider = replace(case, narrowing=narrowing_of(case.narrowing.widening))
    asked = best(case, deadline, progress=progress)
    of_all = best(wider, deadline, progress=progress)
    for found in (asked, of_all):
        if found.plan is None and not found.is_complete:
            raise deadline.nothing_found()
    if asked.plan is None:
        progress("looking for what would let it fit", 0.9)
    return WhyAnswer(
        case=case,
        best=of_all.plan,
        asked=asked.plan,
        nothing=explain_nothing(case) if asked.plan is None else None,
        is_complete=asked.is_complete and of_all.is_complete,
    )


@dataclass(frozen=True, kw_only=True)
class Side:
    """A question and its answer."""

    label: str  # what was said otherwise: ``precision=fp8``; empty of the question as asked
    answer: Answer | None  # None where nothing fits
    why_none: str = ""

    @property
    def plan(self) -> Plan | None:
        """The best plan."""
        return self.answer.plans[0] if self.answer and self.answer.plans else None


def speed(asked: Plan, other: Plan) -> Ratio:
    """Tokens per second of the other plan over those of the plan as asked.

    Of layouts of one job the range is that of published pairs that differ in the same
    (planner.answers.evidence). Else the logarithms of what each time may be off are added in
    quadrature, as of independent errors: what both share cancels, so the range is rather too wide.
    """
    value = other.estimate.tokens_per_s / asked.estimate.tokens_per_s
    if asked.context == other.context:
        error = ratio_error(kinds_of_difference(asked.strategy, other.strategy))
        basis = f"of {error.num_pairs} published pairs that differ so"
        width = 1.0 + (0.0 if asked.strategy == other.strategy else error.widest)
        lower, upper = value / width, value * width
    else:
        both = (asked.estimate, other.estimate)
        # Logarithms of how far the ends of each range lie from its time.
        slower = [math.log(made.iter_time_s_upper / made.iter_time_s) for made in both]
        faster = [math.log(made.iter_time_s_lower / made.iter_time_s) for made in both]
        below = math.hypot(faster[0], slower[1])
        above = math.hypot(slower[0], faster[1])
        lower = value / math.exp(below)
        upper = value * math.exp(above)
        basis = "of both times, as if they erred independently"
    return Ratio(
        value=value, lower=lower, upper=upper, basis=basis, within_error=lower <= 1.0 <= upper
    )


def usd_per_token(plan: Plan) -> float | None:
    """Price of a token; None where the node has none."""
    usd_per_s = cost_usd(gpu_hours(plan.num_gpus, 1.0), plan.context.cluster.node)
    return None if usd_per_s is None else usd_per_s / plan.estimate.tokens_per_s


def relative_speed(asked: Side, other: Side) -> Ratio | None:
    """Return the relative speed of the other side; None if either has no plan."""
    return speed(asked.plan, other.plan) if asked.plan and other.plan else None
