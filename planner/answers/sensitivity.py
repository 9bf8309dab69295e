"""Response of time and the best layout to another value of a figure, found by planning again."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.answers.base import Deadline, Plan
from planner.answers.layout import short_layout
from planner.answers.parameters import Parameter, parameters
from planner.answers.row import Row
from planner.answers.rows import InputsRow, LayoutRow, PlanRow, layout_row
from planner.answers.whatif import bisect, first_plan, price_layout
from planner.query.resolve import Case
from planner.search.search import Progress, no_progress

FACTORS = (0.5, 0.9, 1.1, 2.0)  # of a figure's value, at which is planned again
CROSSING_RATIO = 1.01  # a crossing lies between values that differ by less
WORTH_FRACTION = 0.002  # of time; figures that move less have no effect


def layout_of(plan: Plan) -> tuple[object, ...]:
    """Return what distinguishes layouts: framework, degrees, ZeRO stage, what is offloaded."""
    strategy = plan.strategy
    states = (strategy.zero_stage, strategy.offload)
    return plan.framework, strategy.num_gpus, strategy.degrees, states


class Point(Row):
    """A figure at another value, planned again."""

    factor: float
    """Ratio to the value now."""
    value: float
    """Value in the figure's unit."""
    time_per_token_change: float | None
    """Of the best plan there against the one now, as plans are ranked, by what is known of their
    mechanisms too; null where nothing fits.
    """
    best_iter_time_s: float | None
    plan_iter_time_s: float | None
    """Of the layout given, or of the best one now, kept; null where it is illegal or does not fit.
    """
    same_layout: bool
    """True if the layout is the best one now."""
    strategy: LayoutRow | None
    """Layout of the best plan there."""


class Crossover(Row):
    """Value at which another layout begins to win, nearest to the figure's value on one side."""

    factor: float
    """Here another layout wins, and within CROSSING_RATIO, or a step of a count, it does not."""
    value: float
    """Value in the figure's unit."""
    strategy: LayoutRow | None
    """Layout of the winner beyond it; null where nothing fits."""
    layout: str
    """The same in words."""


class ParameterSweep(Row):
    """Effect of one figure."""

    figure: Parameter
    points: tuple[Point, ...]
    crossings: tuple[Crossover, ...]
    span: float
    """Share of its time by which the plan differs between the ends of the range of machines."""

    @property
    def decides(self) -> bool:
        """Another layout wins within what machines differ by."""
        low, high = self.figure.ends or (1.0, 1.0)
        return any(low <= crossing.factor <= high for crossing in self.crossings)

    @property
    def matters(self) -> bool:
        """Time or the winner changes somewhere."""
        changes = [point.time_per_token_change for point in self.points]
        return bool(self.crossings) or any(
            change is None or abs(change) > WORTH_FRACTION for change in changes
        )


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The answer: every figure's response."""

    case: Case
    plan: Plan  # of the question, or saved
    best: Plan  # that a search finds; the same of a question
    responses: tuple[ParameterSweep, ...]
    num_searches: int
    is_proved: bool  # every plan was proved best under the model

    @property
    def worth_measuring(self) -> tuple[ParameterSweep, ...]:
        """Figures of the hardware that machines differ in, what moves time most first."""
        found = [one for one in self.responses if one.span > WORTH_FRACTION or one.decides]
        return tuple(sorted(found, key=lambda one: -one.span))


def _per_token(plan: Plan) -> float:
    """Return the time per token as plans are ranked: their own time, penalties included."""
    return plan.ranked_s / plan.context.job.tokens_per_iteration


@dataclass(kw_only=True)
class _Asker:
    """Plans again, and counts."""

    case: Case
    deadline: Deadline
    keeps_margin: bool
    best: Plan
    plan: Plan  # whose time is followed
    progress: Progress
    num_planned: int
    num_done: int = 0
    is_proved: bool = True  # every plan found was proved best

    def at(self, figure: Parameter, factor: float) -> tuple[Plan | None, Plan | None]:
        """The winner where the figure is so many times as large, and the plan now, kept."""
        share = min(1.0, self.num_done / self.num_planned)
        self.progress(f"planning with {figure.title} x{factor:.2g}", share)
        self.num_done += 1
        scaled = self.case.with_each(lambda context: figure.scaled(context, factor))
        kept = self.kept(figure, factor)
        # Work grows with batch, length and layers.
        change = 1.0 if figure.is_hardware else factor
        if kept:
            # 1e-9: so that rounding does not hide the one kept.
            change = kept.estimate.iter_time_s / self.plan.estimate.iter_time_s * (1.0 + 1e-9)
        found = first_plan(
            scaled,
            self.deadline,
            keeps_margin=self.keeps_margin,
            known=kept,
            guess_s=self.best.ranked_s * change,
        )
        self.is_proved &= found is None or found.is_optimal
        return found, kept

    def kept(self, figure: Parameter, factor: float) -> Plan | None:
        """The layout followed, there; None where it is illegal or does not fit."""
        found = price_layout(figure.scaled(self.plan.context, factor), self.plan.strategy)
        return found if isinstance(found, Plan) and found.estimate.memory.fits else None


def sensitivity(
    case: Case,
    *,
    keeps_margin: bool = False,
    deadline: Deadline | None = None,
    plan: Plan | None = None,
    progress: Progress = no_progress,
) -> Sensitivity | None:
    """Scale every figure and plan again; ``plan`` stands in place of the best one for its time.

    Every winner is that of a whole search: the best by time, before ties are broken. None where
    nothing fits. ``keeps_margin``: as of :func:`planner.answers.whatif.first_plan`.
    """
    deadline = deadline or Deadline()
    progress("planning", 0.0)
    # A tie may be broken anew by any change: of the order only what times decide can cross.
    case = case.with_each(lambda context: replace(context, ranking="evidence"))
    deadline.num_left = len(case.contexts)
    best = first_plan(case, deadline, keeps_margin=keeps_margin)
    if best is None:
        return None
    known = parameters(best.context)
    # About four searches of a crossing.
    usual = len(known) * (len(FACTORS) + 4)
    deadline.num_left = usual * len(case.contexts)
    asker = _Asker(
        case=case,
        deadline=deadline,
        keeps_margin=keeps_margin,
        best=best,
        plan=plan or best,
        progress=progress,
        num_planned=usual,
    )
    return Sensitivity(
        case=case,
        plan=asker.plan,
        best=best,
        responses=tuple(_response(figure, asker) for figure in known),
        num_searches=asker.num_done + 1,
        is_proved=best.is_optimal and asker.is_proved,
    )


def _response(figure: Parameter, asker: _Asker) -> ParameterSweep:
    # Counts may have one value for two factors.
    factors = sorted({*map(figure.factor, FACTORS)} - {1.0})
    found = {factor: asker.at(figure, factor) for factor in factors}
    points = [
        Point(
            factor=factor,
            value=factor * figure.value,
            time_per_token_change=_per_token(best) / _per_token(asker.best) - 1 if best else None,
            best_iter_time_s=best.estimate.iter_time_s if best else None,
            plan_iter_time_s=kept.estimate.iter_time_s if kept else None,
            same_layout=_same(best, asker.best),
            strategy=layout_row(best.strategy) if best else None,
        )
        for factor, (best, kept) in found.items()
    ]
    winners = {factor: best for factor, (best, _) in found.items()}
    # At both ends of what machines differ by.
    ends = (asker.kept(figure, end) for end in figure.ends or ())
    times = sorted(moved.estimate.iter_time_s for moved in ends if moved)
    return ParameterSweep(
        figure=figure,
        points=tuple(points),
        crossings=tuple(_crossings(figure, winners, asker)),
        span=times[-1] / times[0] - 1.0 if len(times) == 2 else 0.0,
    )


def _crossings(
    figure: Parameter, winners: Mapping[float, Plan | None], asker: _Asker
) -> Iterator[Crossover]:
    """Yield on either side the first crossing, going outwards, where another layout wins."""
    less = [factor for factor in winners if factor < 1.0]
    more = [factor for factor in winners if factor > 1.0]
    for outwards in (less[::-1], more):
        for inside, outside in pairwise([1.0, *outwards]):
            if not _same(winners[outside], asker.best):
                yield _crossing(figure, inside, outside, winners[outside], asker)
                break


def _same(plan: Plan | None, best: Plan) -> bool:
    return plan is not None and layout_of(plan) == layout_of(best)


def _crossing(
    figure: Parameter, inside: float, outside: float, found: Plan | None, asker: _Asker
) -> Crossover:
    """The crossing between a value where the best layout wins and one where it does not.

    By halves of the values between: CROSSING_RATIO apart at most, or all whole ones of a count.
    """
    halvings = math.ceil(math.log2(abs(math.log(outside / inside)) / math.log(CROSSING_RATIO)))
    between = np.geomspace(inside, outside, 2**halvings + 1).tolist()
    factors = list(dict.fromkeys(map(figure.factor, between)))
    winners = {len(factors) - 1: found}

    def differs(place: int) -> bool:
        winners[place], _ = asker.at(figure, factors[place])
        return not _same(winners[place], asker.best)

    _, far = bisect(0, len(factors) - 1, differs)
    winner = winners[far]
    return Crossover(
        factor=factors[far],
        value=factors[far] * figure.value,
        strategy=layout_row(winner.strategy) if winner else None,
        layout=short_layout(winner.strategy) if winner else "",
    )


class SensitivityDocument(Row):
    """Response of time and the best layout to another value of a figure of hardware or job."""

    inputs: InputsRow
    best: PlanRow
    """Plan that a search finds."""
    given: PlanRow | None
    """Plan of the given file."""
    figures: list[ParameterSweep]
    worth_measuring: list[str]
    """Figures by what their range moves, most first."""
    next_command: str | None
    """Shell command that measures these figures; null if there are none or torch cannot."""
    searches: int
    proved_optimal: bool
    """Every plan was proved best under the model."""

    @classmethod
    def of(cls, result: Sensitivity, following: str) -> "SensitivityDocument":
        """The whole answer; ``following`` is the next command."""
        return cls(
            inputs=InputsRow.of(result.case),
            best=PlanRow.of(result.best),
            given=None if result.plan is result.best else PlanRow.of(result.plan),
            figures=list(result.responses),
            worth_measuring=[one.figure.key for one in result.worth_measuring],
            next_command=following or None,
            searches=result.num_searches,
            proved_optimal=result.is_proved,
        )
