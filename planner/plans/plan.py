"""From a question to ranked plans: run the search per framework, estimate every plan found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.answers.bisection import smallest
from planner.answers.deadline import Deadline
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimates
from planner.notes import Note
from planner.plans.pareto import merged
from planner.query.objectives import (
    FASTEST,
    OBJECTIVES,
    Aim,
    amounts,
    gpu_hours,
    objective,
    span_s,
)
from planner.search.headroom import headroom_frontier, most_headroom_gib, with_headroom
from planner.search.ranking.goals import Goal
from planner.search.ranking.handicaps import used
from planner.search.search import Found, Progress, SearchResult, search
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import Strategy

BESIDE_S = 1.0
"""Of a search beside the plans, such as for their knobs, where a limit of time struck."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One ranked plan: where it runs, how it is cut up, what that costs."""

    context: Context
    strategy: Strategy
    estimate: Estimate
    is_optimal: bool
    weighed_s: float | None = None
    """By which a search ranked it, where one did: its time with the handicaps of what it uses."""

    @property
    def framework(self) -> str:
        """Name of the framework."""
        return self.context.traits.name

    @property
    def num_gpus(self) -> int:
        """GPUs it runs on."""
        return self.strategy.num_gpus

    @property
    def ranked_s(self) -> float:
        """What it is ranked by: its weighed time where a search found it, else its time."""
        return self.estimate.iter_time_s if self.weighed_s is None else self.weighed_s

    def penalties(self) -> dict[str, float]:
        """By mechanism it uses, the factor of time that evidence for it has to make up for."""
        return used(self.context, self.strategy)

    @property
    def num_nodes(self) -> int:
        """Nodes that hold it; part of a node counts as one."""
        return math.ceil(self.num_gpus / self.context.cluster.node.num_accelerators)

    @property
    def headroom_bytes(self) -> float:
        """Usable HBM less the modelled peak."""
        return self.estimate.memory.usable_bytes - self.estimate.memory.peak_bytes

    @property
    def free_bytes(self) -> float:
        """HBM less the modelled peak, the margin included."""
        return self.estimate.memory.hbm_bytes - self.estimate.memory.peak_bytes

    def num_iterations(self) -> float | None:
        """Optimizer steps of the whole job; None without a token budget."""
        job = self.context.job
        return job.total_tokens / job.tokens_per_iteration if job.total_tokens else None

    def total_s(self) -> float | None:
        """Seconds of the whole job; None without a token budget."""
        steps = self.num_iterations()
        return None if steps is None else steps * self.estimate.iter_time_s

    def span_s(self) -> float:
        """Seconds of the whole job, or of 1,000 iterations without a token budget."""
        return span_s(self.estimate.iter_time_s, self.context.job)

    def gpu_hours(self) -> float:
        """GPU-hours of the same span."""
        return gpu_hours(float(self.strategy.num_gpus), self.span_s())

    def amounts(self) -> dict[str, float | None]:
        """Money and energy of the same span; None where hwdb lacks a figure."""
        return amounts(self.gpu_hours(), self.context.cluster)

    def cost_usd(self) -> float | None:
        """Price of the same span; None where hwdb has no price for the node."""
        return self.amounts()["cost_usd"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything a report needs: the best plans, the frontiers, search figures."""

    contexts: tuple[Context, ...]
    plans: tuple[Plan, ...]
    """Best first; all keep the limits, no two have one layout. Of several frameworks the best of
    each come first; by time those of a framework are on as many GPUs as its best."""
    pareto: tuple[Plan, ...]
    """What nothing dominates in ``aim.pareto``, where it was asked for, limits or not."""
    searches: tuple[SearchResult, ...]
    notes: tuple[Note, ...] = ()
    """Defaults that were assumed."""
    aim: Aim = FASTEST
    narrowing: Narrowing = EVERYTHING
    frontier: tuple[Plan, ...] = ()
    """What nothing dominates in time and GPUs, ascending in GPUs, where it was asked for."""
    ladder: tuple[Plan, ...] = ()
    """The best on at most a half, a quarter, ... of the first plan's GPUs, and on the fewest."""
    fastest: Plan | None = None
    """The fastest under the model as it stands, where the first plan is another one."""
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
    def beside_s(self) -> float | None:
        """Seconds for each search beside the plans; no limit where none struck."""
        return None if self.is_complete else BESIDE_S

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
    deadline: Deadline
    progress: Progress

    def best(
        self,
        context: Context,
        headroom_gib: int,
        *,
        top: int,
        with_frontier: bool = False,
        with_ladder: bool = False,
    ) -> SearchResult:
        """The best plans of one framework that leave so much memory."""
        job, node = context.job, context.cluster.node
        goal = Goal(
            order=OBJECTIVES[self.aim.objective].order,
            longest_s=lambda gpus: self.aim.limits.longest_on(gpus, job, node),
        )
        return search(
            with_headroom(context, headroom_gib) if headroom_gib else context,
            top=top,
            narrowing=self.narrowing,
            with_frontier=with_frontier,
            time_limit_s=self.deadline.share_s(),
            goal=goal,
            progress=self.progress,
            one_per_layout=True,
            with_ladder=with_ladder,
            with_fastest=with_ladder,
        )

    def most_headroom(self, contexts: Sequence[Context], searches: list[SearchResult]) -> int:
        """Largest headroom in whole GiB at which a plan keeps the limits, by bisection.

        Exact: less memory admits no plan that more does not. 0 where none does without any.
        Adds the searches it makes to ``searches``.
        """
        most = max(most_headroom_gib(context) for context in contexts) + 1

        def is_too_much(headroom_gib: int) -> bool:
            self.progress(f"plans with {headroom_gib} GiB of headroom", 0.0)
            self.deadline.plan_for(most.bit_length() * len(contexts))
            return not self.any(contexts, headroom_gib, searches)

        return smallest(0, most, is_too_much)[0]

    def any(
        self, contexts: Sequence[Context], headroom_gib: int, searches: list[SearchResult]
    ) -> bool:
        """Whether some framework has a plan that keeps the limits and leaves so much memory."""
        for context in contexts:
            searches.append(self.best(context, headroom_gib, top=1))
            if searches[-1].plans:
                return True
        return False

    def line(self, context: Context) -> SearchResult:
        """The frontier of one framework, over headroom too where that is traded off."""
        if "headroom_bytes" in self.aim.pareto:
            return headroom_frontier(
                context,
                narrowing=self.narrowing,
                time_limit_s=self.deadline.share_s(),
                progress=self.progress,
            )
        return search(
            context,
            top=0,
            narrowing=self.narrowing,
            time_limit_s=self.deadline.share_s(),
            progress=self.progress,
        )


def plans_of(context: Context, found: Sequence[Found], *, is_complete: bool = True) -> list[Plan]:
    """What a search found, as plans; proved best only where it was complete."""
    if not found:
        return []
    made_estimates = estimates(context, [one.strategy for one in found])
    return [
        Plan(
            context=context,
            strategy=one.strategy,
            estimate=made,
            is_optimal=one.is_optimal and is_complete,
            weighed_s=one.weighed_s,
        )
        for one, made in zip(found, made_estimates, strict=True)
    ]


def _ranked(plans: Sequence[Plan], aim: Aim, top: int) -> tuple[Plan, ...]:
    """The best plans over all frameworks that keep the limits, the best of each first."""
    plans = [plan for plan in plans if aim.limits.meets(plan)]
    by_time = OBJECTIVES[aim.objective].order in ("at_most", "fastest")

    def key(plan: Plan) -> tuple[float, float]:
        return (0.0 if by_time else objective(plan, aim.objective), plan.ranked_s)

    plans = sorted(plans, key=key)
    names = [plan.framework for plan in plans]
    leading = [names.index(name) == place for place, name in enumerate(names)]
    order = sorted(range(len(plans)), key=lambda place: not leading[place])
    return tuple(plans[place] for place in order[:top])


def _fastest(plans: Sequence[Plan], best: Plan | None) -> Plan | None:
    """The fastest plan under the model, no mechanism weighed; None where it is the best one."""
    if best is None:
        return None
    fastest = min(plans, key=lambda plan: plan.estimate.iter_time_s, default=best)
    return fastest if fastest.estimate.iter_time_s < best.estimate.iter_time_s else None


def answer(
    contexts: Sequence[Context],
    *,
    top: int,
    notes: Sequence[Note] = (),
    narrowing: Narrowing = EVERYTHING,
    aim: Aim = FASTEST,
    deadline: Deadline | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Answer:
    """Search every context (one per framework) and rank the plans across them."""
    deadline = deadline or Deadline()
    asked = _Asked(top=top, aim=aim, narrowing=narrowing, deadline=deadline, progress=progress)
    by_headroom = aim.objective == "headroom_bytes"
    searches: list[SearchResult] = []
    headroom_gib = asked.most_headroom(contexts, searches) if by_headroom else 0
    in_two = bool(aim.pareto) and (by_headroom or "headroom_bytes" in aim.pareto)
    by_time = aim.objective == "iteration_s"
    deadline.plan_for(len(contexts) * (1 + in_two))
    plans: list[Plan] = []
    points: list[Plan] = []
    rungs: list[Plan] = []
    faster: list[Plan] = []
    for context in contexts:
        best = asked.best(
            context,
            headroom_gib,
            top=top,
            with_frontier=bool(aim.pareto) and not in_two,
            with_ladder=by_time,
        )
        line = asked.line(context) if in_two else best
        searches += [best, line] if in_two else [best]
        plans += plans_of(context, best.plans)
        points += plans_of(context, line.frontier)
        rungs += plans_of(context, best.ladder)
        faster += plans_of(context, [best.fastest] if best.fastest else [])
    chosen = _ranked(plans, aim, top)
    if not chosen and not aim.limits.is_empty and not aim.pareto:
        for context in contexts:
            searches.append(asked.line(context))
            points += plans_of(context, searches[-1].frontier)
    first = chosen[0] if chosen and by_time else None
    return Answer(
        contexts=tuple(contexts),
        plans=chosen,
        pareto=merged(points, aim.pareto) if aim.pareto else (),
        searches=tuple(searches),
        notes=tuple(notes),
        aim=aim,
        narrowing=narrowing,
        frontier=merged(points, ("iteration_s", "gpus")) if points else (),
        headroom_gib=headroom_gib if by_headroom else None,
        ladder=_rungs(rungs, first),
        fastest=_fastest(faster, first),
    )


def _rungs(plans: Sequence[Plan], best: Plan | None) -> tuple[Plan, ...]:
    """Of several frameworks' ladders the best plan of every number of GPUs, most GPUs first."""
    if best is None:
        return ()
    below = [plan for plan in plans if plan.strategy.num_gpus < best.strategy.num_gpus]
    by_gpus: dict[int, Plan] = {}
    for plan in sorted(below, key=lambda plan: plan.ranked_s):
        by_gpus.setdefault(plan.strategy.num_gpus, plan)
    return tuple(by_gpus[count] for count in sorted(by_gpus, reverse=True))
