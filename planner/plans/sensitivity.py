"""What time and the best layout do when a figure is another one, found by planning again."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.plans.clock import Clock
from planner.plans.figures import Figure, figures
from planner.plans.plan import Plan
from planner.search.search import Progress, search
from planner.search.space.legality import violations
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import Strategy

FACTORS = (0.5, 0.9, 1.1, 2.0)
"""Of a figure's value, at which is planned again."""
CROSSING_RATIO = 1.01
"""A crossing lies between values that differ by less."""
WORTH_FRACTION = 0.002
"""Of time; figures that move less have no effect."""
SEARCHES_OF_A_CROSSING = 3
"""About, as most lie where prices say."""

PROBE_RATIO = 1.004
"""On either side of where two plans are priced the same is planned again."""

Layout = tuple[object, ...]
Price = Callable[[float], float]
"""Factor of a figure to seconds."""


def layout_of(plan: Plan) -> Layout:
    """What makes it another layout: framework, degrees, ZeRO stage, what is offloaded."""
    strategy = plan.strategy
    degrees = tuple(strategy.degrees.items())
    return plan.framework, strategy.num_gpus, degrees, strategy.zero_stage, strategy.offload


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A question that can be planned again for other contexts."""

    narrowing: Narrowing = EVERYTHING
    keeps_margin: bool = False
    """Plans inside the margin of memory are never taken; else where there are no others."""
    clock: Clock

    def best(self, contexts: Sequence[Context]) -> Plan | None:
        """The plan that ``planner plan`` puts first, by time; None where nothing fits."""
        found = self._best(contexts)
        if found or self.keeps_margin or not any(each.margin_fraction for each in contexts):
            return found
        return self._best([replace(context, margin_fraction=0.0) for context in contexts])

    def _best(self, contexts: Sequence[Context]) -> Plan | None:
        plans = [
            Plan(
                context=context,
                strategy=found.strategy,
                estimate=estimate(context, found.strategy),
                is_optimal=found.is_optimal and result.is_complete,
                weighed_s=found.weighed_s,
            )
            for context in contexts
            for result in [
                search(
                    context,
                    top=1,
                    narrowing=self.narrowing,
                    with_frontier=False,
                    one_per_layout=True,
                    time_limit_s=self.clock.share_s(),
                )
            ]
            for found in result.plans
        ]
        return min(
            plans, key=lambda plan: plan.weighed_s or plan.estimate.iter_time_s, default=None
        )


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

    figure: Figure
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
    ranked_s = plan.weighed_s or plan.estimate.iter_time_s
    return ranked_s / plan.context.job.tokens_per_iteration


@dataclass(kw_only=True)
class _Asker:
    """Plans again, and counts."""

    planner: Planner
    contexts: tuple[Context, ...]
    best: Plan
    """Of the question."""
    progress: Progress
    num_planned: int
    num_done: int = 0

    def at(self, figure: Figure, factor: float) -> Plan | None:
        """The winner where the figure is so many times as large.

        The best plan where it takes as long as before with less of a figure: no other is faster.
        """
        if figure.is_worse(factor):
            kept = _moved(self.best, figure.turned(self.best.context, factor))
            if kept and kept.estimate.iter_time_s == self.best.estimate.iter_time_s:
                return kept
        share = min(1.0, self.num_done / self.num_planned)
        self.progress(f"planning with {figure.title} x{factor:.2g}", share)
        self.num_done += 1
        return self.planner.best([figure.turned(each, factor) for each in self.contexts])

    def priced(self, figure: Figure, plan: Plan | None) -> Price:
        """A plan's time as plans are ranked, as it is, at other values; infinite where none is."""
        if plan is None:
            return lambda _factor: math.inf
        context = next(each for each in self.contexts if each.traits == plan.context.traits)
        weight = (plan.weighed_s or plan.estimate.iter_time_s) / plan.estimate.iter_time_s

        def price(factor: float) -> float:
            found = _moved(plan, figure.turned(context, factor))
            return weight * found.estimate.iter_time_s if found else math.inf

        return price


def sensitivity(
    contexts: Sequence[Context],
    planner: Planner,
    *,
    plan: Plan | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Sensitivity | None:
    """Turn every figure and plan again; ``plan`` stands in place of the best one for its time.

    Every winner is that of a whole search, so it is what `planner plan` puts first there. None
    where nothing fits.
    """
    progress("planning", 0.0)
    planner.clock.plan_for(len(contexts))
    best = planner.best(contexts)
    if best is None:
        return None
    known = list(figures(best.context))
    usual = len(known) * (len(FACTORS) + SEARCHES_OF_A_CROSSING)
    planner.clock.plan_for(usual * len(contexts))
    asker = _Asker(
        planner=planner,
        contexts=tuple(contexts),
        best=best,
        progress=progress,
        num_planned=usual,
    )
    responses = tuple(_response(figure, plan or best, best, asker) for figure in known)
    return Sensitivity(
        plan=plan or best, best=best, responses=responses, num_searches=asker.num_done + 1
    )


def _response(figure: Figure, plan: Plan, best: Plan, asker: _Asker) -> Response:
    points = []
    for factor in dict.fromkeys(map(figure.factor, FACTORS)):
        if factor == 1.0:
            continue
        there = figure.turned(plan.context, factor)
        found = asker.at(figure, factor)
        points.append(Point(factor=factor, best=found, kept_s=kept_s(there, plan.strategy)))
    return Response(
        figure=figure,
        base=best,
        points=tuple(points),
        crossings=tuple(_crossings(figure, points, best, asker)),
        ends_s=_ends_s(figure, plan),
    )


def kept_s(context: Context, strategy: Strategy) -> float | None:
    """Iteration of a layout in another context; None where it is illegal or does not fit."""
    found = _kept(context, strategy)
    return found.iter_time_s if found else None


def _kept(context: Context, strategy: Strategy) -> Estimate | None:
    if any(violations(context, strategy)):
        return None
    found = estimate(context, strategy)
    return found if found.memory.verdict != "does not fit" else None


def _moved(plan: Plan, context: Context) -> Plan | None:
    """The plan in another context; None where it is illegal or fits worse: within the margin."""
    found = _kept(context, plan.strategy)
    if found is None or found.memory.verdict != plan.estimate.memory.verdict:
        return None
    return replace(plan, context=context, estimate=found)


def _ends_s(figure: Figure, plan: Plan) -> tuple[float, float] | None:
    if figure.ends is None:
        return None
    low, high = (kept_s(figure.turned(plan.context, end), plan.strategy) for end in figure.ends)
    return None if low is None or high is None else (low, high)


def _crossings(
    figure: Figure, points: Sequence[Point], best: Plan, asker: _Asker
) -> Iterator[Crossing]:
    """On either side the first place, going outwards, where another layout wins."""
    for side in (
        sorted((p for p in points if p.factor < 1.0), key=lambda p: -p.factor),
        sorted((p for p in points if p.factor > 1.0), key=lambda p: p.factor),
    ):
        inside = 1.0
        for point in side:
            if _same(point.best, best):
                inside = point.factor
                continue
            yield _crossing(figure, inside, point, best, asker)
            break


def _same(plan: Plan | None, best: Plan) -> bool:
    return plan is not None and layout_of(plan) == layout_of(best)


def _crossing(figure: Figure, inside: float, outside: Point, best: Plan, asker: _Asker) -> Crossing:
    """The crossing between a value where the best layout wins and one where it does not.

    Looked for first on both sides of where the two plans that are known are equal, then by halves;
    of counts until no whole one is left in between.
    """
    near, far, winner = inside, outside.factor, outside.best
    equal = _equal((near, far), asker.priced(figure, best), asker.priced(figure, winner))
    probes = [figure.factor(equal * step) for step in (PROBE_RATIO, 1.0 / PROBE_RATIO)]
    while max(far / near, near / far) > CROSSING_RATIO:
        is_probe = bool(probes)
        middle = probes.pop() if is_probe else figure.factor(math.sqrt(far * near))
        if not min(near, far) < middle < max(near, far):
            if is_probe:
                continue
            break
        found = asker.at(figure, middle)
        if _same(found, best):
            near = middle
        else:
            far, winner = middle, found
    return Crossing(factor=far, plan=winner)


def _equal(ends: tuple[float, float], best: Price, other: Price) -> float:
    """About where the best plan stops to be no slower than the other, or to fit."""
    near, far = ends
    while max(far / near, near / far) > PROBE_RATIO:
        middle = math.sqrt(far * near)
        if best(middle) <= other(middle):
            near = middle
        else:
            far = middle
    return math.sqrt(far * near)
