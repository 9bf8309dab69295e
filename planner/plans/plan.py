"""From a question to ranked plans: run the search per framework, estimate every plan found."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimates
from planner.plans.clock import Clock
from planner.plans.objectives import (
    FASTEST,
    Aim,
    Objective,
    cost_usd,
    energy_kwh,
    gpu_hours,
    objective,
    span_s,
)
from planner.plans.pareto import merged
from planner.search.headroom import headroom_frontier, most_headroom_gib, with_headroom
from planner.search.ranking.goals import Goal, Order
from planner.search.search import Found, Progress, SearchResult, search
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import Strategy

ORDERS: dict[Objective, Order] = {
    "iteration_s": "most_gpus",
    "gpus": "fewest_gpus",
    "cost_usd": "gpu_seconds",
    "energy_kwh": "gpu_seconds",
    "headroom_bytes": "fastest",
}
"""Cost and energy are GPU seconds times a constant of the cluster and the job."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One ranked plan: where it runs, how it is cut up, what that costs."""

    context: Context
    strategy: Strategy
    estimate: Estimate
    is_optimal: bool

    @property
    def framework(self) -> str:
        """Name of the framework."""
        return self.context.traits.name

    @property
    def headroom_bytes(self) -> float:
        """Usable HBM less the modelled peak."""
        return self.estimate.memory.usable_bytes - self.estimate.memory.peak_bytes

    def num_iterations(self) -> float | None:
        """Optimizer steps of the whole job; None without a token budget."""
        job = self.context.job
        return job.total_tokens / job.tokens_per_iteration if job.total_tokens else None

    def total_s(self) -> float | None:
        """Seconds of the whole job; None without a token budget."""
        steps = self.num_iterations()
        return None if steps is None else steps * self.estimate.iter_time_s

    def gpu_hours(self) -> float:
        """GPU-hours of the whole job, or of 1,000 iterations without a token budget."""
        seconds = span_s(self.estimate.iter_time_s, self.context.job)
        return gpu_hours(float(self.strategy.num_gpus), seconds)

    def cost_usd(self) -> float | None:
        """Price of the same span; None where hwdb has no price for the node."""
        return cost_usd(self.gpu_hours(), self.context.cluster.node)

    def energy_kwh(self) -> float | None:
        """Energy of the accelerators for it; None where hwdb has no power figure."""
        accelerator = self.context.cluster.accelerator
        return None if accelerator.tdp_w is None else energy_kwh(self.gpu_hours(), accelerator)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything a report needs: the best plans, the frontiers, search figures."""

    contexts: tuple[Context, ...]
    plans: tuple[Plan, ...]
    """Best first; all keep the limits. By time all are on the most GPUs on which one does."""
    pareto: tuple[Plan, ...]
    """What nothing dominates in ``aim.pareto``, limits or not."""
    searches: tuple[SearchResult, ...]
    notes: tuple[str, ...] = ()
    """Defaults that were assumed."""
    aim: Aim = FASTEST
    narrowing: Narrowing = EVERYTHING
    frontier: tuple[Plan, ...] = ()
    """What nothing dominates in time and GPUs, ascending in GPUs."""
    headroom_gib: int | None = None
    """Where that was the aim: what every plan leaves."""

    @property
    def proved_optimal(self) -> bool:
        """True when every plan shown was proved best under the model."""
        return all(result.proved_optimal for result in self.searches)

    @property
    def gap(self) -> float:
        """Share of its time by which the best plan may be off the optimum at most."""
        gaps = [result.gap for result in self.searches]
        if self.plans:
            best_s = self.plans[0].estimate.iter_time_s
            empty = [r for r in self.searches if not (r.plans or r.is_complete)]
            gaps += [max(0.0, 1.0 - result.bound_s / best_s) for result in empty]
        return max(gaps, default=0.0)

    @property
    def is_complete(self) -> bool:
        """No time limit struck."""
        return all(result.is_complete for result in self.searches)

    @property
    def seconds(self) -> float:
        """Search time over all frameworks."""
        return sum(result.seconds for result in self.searches)

    def dropped(self) -> dict[str, int]:
        """Branches dropped by each rule, over all frameworks, most first."""
        total: dict[str, int] = {}
        for result in self.searches:
            for name, count in result.dropped.items():
                total[name] = total.get(name, 0) + count
        return dict(sorted(total.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is the same for every search of an answer."""

    top: int
    aim: Aim
    narrowing: Narrowing
    clock: Clock
    progress: Progress

    def best(
        self, context: Context, headroom_gib: int, *, top: int, with_frontier: bool
    ) -> SearchResult:
        """The best plans of one framework that leave so much memory."""
        job, node = context.job, context.cluster.node
        goal = Goal(
            order=ORDERS[self.aim.objective],
            longest_s=lambda gpus: self.aim.limits.longest_on(gpus, job, node),
        )
        return search(
            with_headroom(context, headroom_gib) if headroom_gib else context,
            top=top,
            narrowing=self.narrowing,
            with_frontier=with_frontier,
            time_limit_s=self.clock.share_s(),
            goal=goal,
            progress=self.progress,
        )

    def most_headroom(self, contexts: Sequence[Context], searches: list[SearchResult]) -> int:
        """Largest headroom in whole GiB at which a plan keeps the limits, by bisection.

        Exact: less memory admits no plan that more does not. 0 where none does without any.
        Adds the searches it makes to ``searches``.
        """
        low, high = 0, max(most_headroom_gib(context) for context in contexts) + 1
        while high - low > 1:
            middle = (low + high) // 2
            self.progress(f"plans with {middle} GiB of headroom", 0.0)
            self.clock.plan_for(high.bit_length() * len(contexts))
            low, high = (middle, high) if self.any(contexts, middle, searches) else (low, middle)
        return low

    def any(
        self, contexts: Sequence[Context], headroom_gib: int, searches: list[SearchResult]
    ) -> bool:
        """Whether some framework has a plan that keeps the limits and leaves so much memory."""
        for context in contexts:
            searches.append(self.best(context, headroom_gib, top=1, with_frontier=False))
            if searches[-1].plans:
                return True
        return False

    def line(self, context: Context) -> SearchResult:
        """The frontier of one framework, over headroom too where that is traded off."""
        if "headroom_bytes" in self.aim.pareto:
            return headroom_frontier(
                context,
                narrowing=self.narrowing,
                time_limit_s=self.clock.share_s(),
                progress=self.progress,
            )
        return search(
            context,
            top=0,
            narrowing=self.narrowing,
            time_limit_s=self.clock.share_s(),
            progress=self.progress,
        )


def _plans(context: Context, found: Sequence[Found]) -> list[Plan]:
    if not found:
        return []
    made_estimates = estimates(context, [one.strategy for one in found])
    return [
        Plan(context=context, strategy=one.strategy, estimate=made, is_optimal=one.is_optimal)
        for one, made in zip(found, made_estimates, strict=True)
    ]


def _ranked(plans: Sequence[Plan], aim: Aim, top: int) -> tuple[Plan, ...]:
    """The best plans over all frameworks that keep the limits."""
    plans = [plan for plan in plans if aim.limits.meets(plan)]
    if aim.objective == "iteration_s":
        most_gpus = max((plan.strategy.num_gpus for plan in plans), default=0)
        plans = [plan for plan in plans if plan.strategy.num_gpus == most_gpus]
    by_time = aim.objective in ("iteration_s", "headroom_bytes")
    name: Objective = "iteration_s" if by_time else aim.objective
    return tuple(sorted(plans, key=lambda p: (objective(p, name), p.estimate.iter_time_s))[:top])


def ranked_plans(
    contexts: Sequence[Context], narrowings: Sequence[Narrowing], *, top: int, aim: Aim
) -> tuple[Plan, ...]:
    """The best plans of each space, ranked together; without a frontier, and without proof."""
    plans: list[Plan] = []
    for narrowing in narrowings:
        asked = _Asked(
            top=top,
            aim=aim,
            narrowing=narrowing,
            clock=Clock(None),
            progress=lambda _message, _fraction: None,
        )
        for context in contexts:
            found = asked.best(context, 0, top=top, with_frontier=False)
            plans += _plans(context, found.plans)
    return _ranked(plans, aim, top * len(narrowings))


def answer(
    contexts: Sequence[Context],
    *,
    top: int,
    notes: Sequence[str] = (),
    narrowing: Narrowing = EVERYTHING,
    aim: Aim = FASTEST,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Answer:
    """Search every context (one per framework) and rank the plans across them."""
    clock = Clock(time_limit_s)
    asked = _Asked(top=top, aim=aim, narrowing=narrowing, clock=clock, progress=progress)
    by_headroom = aim.objective == "headroom_bytes"
    searches: list[SearchResult] = []
    headroom_gib = asked.most_headroom(contexts, searches) if by_headroom else 0
    is_one = not by_headroom and "headroom_bytes" not in aim.pareto
    clock.plan_for(len(contexts) * (1 if is_one else 2))
    plans: list[Plan] = []
    points: list[Plan] = []
    for context in contexts:
        best = asked.best(context, headroom_gib, top=top, with_frontier=is_one)
        line = best if is_one else asked.line(context)
        searches += [best] if is_one else [best, line]
        plans += _plans(context, best.plans)
        points += _plans(context, line.frontier)
    return Answer(
        contexts=tuple(contexts),
        plans=_ranked(plans, aim, top),
        pareto=merged(points, aim.pareto),
        searches=tuple(searches),
        notes=tuple(notes),
        aim=aim,
        narrowing=narrowing,
        frontier=merged(points, FASTEST.pareto),
        headroom_gib=headroom_gib if by_headroom else None,
    )
