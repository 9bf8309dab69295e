"""What time and the best layout do when a figure is another one, found by planning again."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.answers.base import Deadline, Plan
from planner.answers.parameters import Parameter, parameters
from planner.answers.rows import InputsRow, LayoutRow, PlanRow, Row, layout_row
from planner.answers.whatif import Case, crossing, first_plan, price
from planner.cost.context import Context
from planner.notes import Note
from planner.search.search import Progress
from planner.spec.strategy import Strategy

FACTORS = (0.5, 0.9, 1.1, 2.0)  # of a figure's value, at which is planned again
CROSSING_RATIO = 1.01  # a crossing lies between values that differ by less
WORTH_FRACTION = 0.002  # of time; figures that move less have no effect
SEARCHES_OF_A_CROSSING = 3  # about, as most lie where prices say
PROBE_RATIO = 1.004  # on either side of where two plans take as long is planned again

Layout = tuple[object, ...]
Price = Callable[[float], float]
"""Factor of a figure to seconds."""


def layout_of(plan: Plan) -> Layout:
    """What makes it another layout: framework, degrees, ZeRO stage, what is offloaded."""
    strategy = plan.strategy
    degrees = tuple(strategy.degrees.items())
    return plan.framework, strategy.num_gpus, degrees, strategy.zero_stage, strategy.offload


@dataclass(frozen=True, kw_only=True)
class Point:
    """A figure at another value: the best plan there, and the plan as it is."""

    factor: float
    best: Plan | None
    """None where nothing fits."""
    kept_s: float | None
    """Iteration of the plan of the question; None where it is no longer legal or does not fit."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where another layout begins to win, nearest to the figure's value on one side."""

    factor: float
    """Here another layout wins, and within CROSSING_RATIO, or a step of a count, it does not."""
    plan: Plan | None
    """The winner beyond it; None where nothing fits."""


@dataclass(frozen=True, kw_only=True)
class Response:
    """What one figure does."""

    figure: Parameter
    base: Plan
    points: tuple[Point, ...]
    """Ascending."""
    crossings: tuple[Crossing, ...]
    ends_s: tuple[float, float] | None
    """Iterations of the plan at the ends of what machines differ by."""

    def change(self, point: Point) -> float | None:
        """Time per token of the best plan there against now, as ranked."""
        if point.best is None:
            return None
        return _per_token(point.best) / _per_token(self.base) - 1.0

    @cached_property
    def elasticity(self) -> float | None:
        """Percent of time for a percent of the figure, between the nearest points, as planned."""
        near = [point for point in self.points if 0.8 < point.factor < 1.25 and point.best]
        if len(near) < 2 or near[0].factor == near[-1].factor:
            return None
        (low, first), (high, last) = ((p.factor, p.best) for p in (near[0], near[-1]))
        assert first is not None
        assert last is not None
        times = math.log(_per_token(last) / _per_token(first))
        return times / math.log(high / low)

    @property
    def span(self) -> float:
        """By what share of its time the plan differs between the ends of the range."""
        if self.ends_s is None:
            return 0.0
        low, high = sorted(self.ends_s)
        return high / low - 1.0

    @property
    def decides(self) -> bool:
        """Another layout wins within the range."""
        ends = self.figure.ends
        if ends is None:
            return False
        return any(ends[0] <= crossing.factor <= ends[1] for crossing in self.crossings)

    @property
    def matters(self) -> bool:
        """Time or the winner changes somewhere."""
        changes = [self.change(point) for point in self.points]
        return bool(self.crossings) or any(
            change is None or abs(change) > WORTH_FRACTION for change in changes
        )


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The answer: every figure's response."""

    case: Case
    plan: Plan
    """Of the question, or saved."""
    best: Plan
    """That a search finds; the same of a question."""
    responses: tuple[Response, ...]
    num_searches: int

    @property
    def is_proved(self) -> bool:
        """Every plan was proved best under the model."""
        plans = [point.best for one in self.responses for point in one.points]
        return self.best.is_optimal and all(plan is None or plan.is_optimal for plan in plans)

    @property
    def worth_measuring(self) -> tuple[Response, ...]:
        """Figures of the hardware that machines differ in, what moves time most first."""
        found = [one for one in self.responses if one.span > WORTH_FRACTION or one.decides]
        return tuple(sorted(found, key=lambda one: -one.span))


def _per_token(plan: Plan) -> float:
    """As plans are ranked: of a layout that little is known of, more than its own time."""
    return plan.ranked_s / plan.context.job.tokens_per_iteration


@dataclass(kw_only=True)
class _Asker:
    """Plans again, and counts."""

    case: Case
    deadline: Deadline
    keeps_margin: bool
    best: Plan
    """Of the question."""
    progress: Progress
    num_planned: int
    num_done: int = 0

    def at(self, figure: Parameter, factor: float) -> Plan | None:
        """The winner where the figure is so many times as large.

        The best plan where it takes as long as before with less of a figure: no other is faster.
        """
        if figure.is_worse(factor):
            kept = _moved(self.best, figure.scaled(self.best.context, factor))
            if kept and kept.estimate.iter_time_s == self.best.estimate.iter_time_s:
                return kept
        share = min(1.0, self.num_done / self.num_planned)
        self.progress(f"planning with {figure.title} x{factor:.2g}", share)
        self.num_done += 1
        scaled = self.case.with_each(lambda context: figure.scaled(context, factor))
        return first_plan(scaled, self.deadline, keeps_margin=self.keeps_margin)

    def priced(self, figure: Parameter, plan: Plan | None) -> Price:
        """A plan's time as plans are ranked, as it is, at other values; infinite where none is."""
        if plan is None:
            return lambda _factor: math.inf
        context = next(each for each in self.case.contexts if each.traits == plan.context.traits)
        weight = plan.ranked_s / plan.estimate.iter_time_s

        def seconds(factor: float) -> float:
            found = _moved(plan, figure.scaled(context, factor))
            return weight * found.estimate.iter_time_s if found else math.inf

        return seconds


def sensitivity(
    case: Case,
    *,
    keeps_margin: bool = False,
    deadline: Deadline | None = None,
    plan: Plan | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Sensitivity | None:
    """Scale every figure and plan again; ``plan`` stands in place of the best one for its time.

    Every winner is that of a whole search, so it is what `planner plan` puts first there. None
    where nothing fits. ``keeps_margin``: as of :func:`planner.answers.whatif.first_plan`.
    """
    deadline = deadline or Deadline()
    progress("planning", 0.0)
    deadline.plan_for(len(case.contexts))
    best = first_plan(case, deadline, keeps_margin=keeps_margin)
    if best is None:
        return None
    known = parameters(best.context)
    usual = len(known) * (len(FACTORS) + SEARCHES_OF_A_CROSSING)
    deadline.plan_for(usual * len(case.contexts))
    asker = _Asker(
        case=case,
        deadline=deadline,
        keeps_margin=keeps_margin,
        best=best,
        progress=progress,
        num_planned=usual,
    )
    responses = tuple(_response(figure, plan or best, asker) for figure in known)
    return Sensitivity(
        case=case,
        plan=plan or best,
        best=best,
        responses=responses,
        num_searches=asker.num_done + 1,
    )


def _response(figure: Parameter, plan: Plan, asker: _Asker) -> Response:
    points = []
    for factor in dict.fromkeys(map(figure.factor, FACTORS)):
        if factor != 1.0:
            kept = _kept(figure.scaled(plan.context, factor), plan.strategy)
            point = Point(
                factor=factor,
                best=asker.at(figure, factor),
                kept_s=kept.estimate.iter_time_s if kept else None,
            )
            points.append(point)
    return Response(
        figure=figure,
        base=asker.best,
        points=tuple(points),
        crossings=tuple(_crossings(figure, points, asker)),
        ends_s=_ends_s(figure, plan),
    )


def _kept(context: Context, strategy: Strategy) -> Plan | None:
    """A layout in another context; None where it is illegal or does not fit."""
    found = price(context, strategy)
    if not isinstance(found, Plan) or found.estimate.memory.verdict == "does not fit":
        return None
    return found


def _moved(plan: Plan, context: Context) -> Plan | None:
    """The plan in another context; None where it is illegal or fits worse: within the margin."""
    found = _kept(context, plan.strategy)
    if found is None or found.estimate.memory.verdict != plan.estimate.memory.verdict:
        return None
    return replace(plan, context=context, estimate=found.estimate)


def _ends_s(figure: Parameter, plan: Plan) -> tuple[float, float] | None:
    """Iterations of the plan at both ends of what machines differ by."""
    if figure.ends is None:
        return None
    low, high = (_kept(figure.scaled(plan.context, end), plan.strategy) for end in figure.ends)
    if low is None or high is None:
        return None
    return low.estimate.iter_time_s, high.estimate.iter_time_s


def _crossings(figure: Parameter, points: Sequence[Point], asker: _Asker) -> Iterator[Crossing]:
    """On either side the first place, going outwards, where another layout wins."""
    for side in (
        sorted((p for p in points if p.factor < 1.0), key=lambda p: -p.factor),
        sorted((p for p in points if p.factor > 1.0), key=lambda p: p.factor),
    ):
        inside = 1.0
        for point in side:
            if not _same(point.best, asker.best):
                yield _crossing(figure, inside, point, asker)
                break
            inside = point.factor


def _same(plan: Plan | None, best: Plan) -> bool:
    return plan is not None and layout_of(plan) == layout_of(best)


def _crossing(figure: Parameter, inside: float, outside: Point, asker: _Asker) -> Crossing:
    """The crossing between a value where the best layout wins and one where it does not.

    Looked for first on both sides of where the two plans that are known take as long, then by
    halves; of counts until no whole one is left in between.
    """
    own, other = asker.priced(figure, asker.best), asker.priced(figure, outside.best)
    near, far = crossing(
        inside, outside.factor, lambda factor: own(factor) <= other(factor), ratio=PROBE_RATIO
    )
    equal = math.sqrt(far * near)
    winners = {outside.factor: outside.best}

    def holds(factor: float) -> bool:
        winners[factor] = asker.at(figure, factor)
        return _same(winners[factor], asker.best)

    _, far = crossing(
        inside,
        outside.factor,
        holds,
        ratio=CROSSING_RATIO,
        possible=figure.factor,
        guesses=(equal * PROBE_RATIO, equal / PROBE_RATIO),
    )
    return Crossing(factor=far, plan=winners[far])


@dataclass(frozen=True, kw_only=True)
class PointRow(Row):
    """A figure at another value, planned again."""

    factor: float
    """Of the value now."""
    value: float
    """In the figure's unit."""
    time_per_token_change: float | None
    """Of the best plan there against the one now, as plans are ranked, by what is known of their
    mechanisms too; null where nothing fits.
    """
    best_iter_time_s: float | None
    plan_iter_time_s: float | None
    """Of the layout given, or of the best one now, kept; null where it is illegal or does not fit.
    """
    same_layout: bool
    """As the best one now."""
    strategy: LayoutRow | None
    """Of the best plan there."""

    @classmethod
    def of(cls, one: Response, point: Point) -> "PointRow":
        """The row of a point of a figure."""
        best = point.best
        return cls(
            factor=point.factor,
            value=point.factor * one.figure.value,
            time_per_token_change=one.change(point),
            best_iter_time_s=best.estimate.iter_time_s if best else None,
            plan_iter_time_s=point.kept_s,
            same_layout=best is not None and layout_of(best) == layout_of(one.base),
            strategy=layout_row(best.strategy) if best else None,
        )


@dataclass(frozen=True, kw_only=True)
class CrossingRow(Row):
    """Where another layout begins to win, nearest on either side."""

    factor: float
    """From which on another layout wins, within 1 percent or a step of a count."""
    value: float
    """In the figure's unit."""
    strategy: LayoutRow | None
    """Of the winner; null where nothing fits."""

    @classmethod
    def of(cls, one: Response, crossing: Crossing) -> "CrossingRow":
        """The row of a crossing of a figure."""
        plan = crossing.plan
        return cls(
            factor=crossing.factor,
            value=crossing.factor * one.figure.value,
            strategy=layout_row(plan.strategy) if plan else None,
        )


@dataclass(frozen=True, kw_only=True)
class FigureRow(Row):
    """What one figure does."""

    figure: str
    """Key under overrides of a cluster file, or an option's name."""
    title: str
    value: float
    """Now, in its unit."""
    unit: str
    is_hardware: bool
    points: list[PointRow]
    """Ascending."""
    elasticity: float | None
    """Percent of time per token for a percent of the figure, about the value now."""
    crossings: list[CrossingRow]
    range: list[float] | None
    """Between which machines lie, in the figure's unit."""
    range_time_fraction: float
    """By which the plan's time differs between its ends."""
    range_decides_layout: bool
    """Another layout wins within it."""

    @classmethod
    def of(cls, one: Response) -> "FigureRow":
        """The row of a figure."""
        figure = one.figure
        return cls(
            figure=figure.key,
            title=figure.title,
            value=figure.value,
            unit=figure.unit,
            is_hardware=figure.is_hardware,
            points=[PointRow.of(one, point) for point in one.points],
            elasticity=one.elasticity,
            crossings=[CrossingRow.of(one, crossing) for crossing in one.crossings],
            range=[end * figure.value for end in figure.ends] if figure.ends else None,
            range_time_fraction=one.span,
            range_decides_layout=one.decides,
        )


@dataclass(frozen=True, kw_only=True)
class SensitivityDocument(Row):
    """What time and the best layout do when a figure of hardware or job is another one."""

    inputs: InputsRow
    best: PlanRow
    """That a search finds."""
    given: PlanRow | None
    """Of the file that was asked about."""
    figures: list[FigureRow]
    worth_measuring: list[str]
    """Figures by what their range moves, most first."""
    next_command: str | None
    """Of the shell, that measures them; null where nothing is or torch cannot."""
    searches: int
    proved_optimal: bool
    """Every plan was proved best under the model."""

    @classmethod
    def of(
        cls, result: Sensitivity, notes: Sequence[Note], following: str
    ) -> "SensitivityDocument":
        """The whole answer; ``following`` is the next command."""
        return cls(
            inputs=InputsRow.of(result.case.contexts, result.case.narrowing, tuple(notes)),
            best=PlanRow.of(result.best),
            given=None if result.plan is result.best else PlanRow.of(result.plan),
            figures=[FigureRow.of(one) for one in result.responses],
            worth_measuring=[one.figure.key for one in result.worth_measuring],
            next_command=following or None,
            searches=result.num_searches,
            proved_optimal=result.is_proved,
        )
