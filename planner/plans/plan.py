"""From a question to ranked plans: run the search per framework, estimate every plan found."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.search.rank import USEFUL_GAIN_FRACTION
from planner.search.search import Found, Progress, SearchResult, search
from planner.spec.strategy import Strategy


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
        seconds = self.total_s() or 1000.0 * self.estimate.iter_time_s
        return seconds * self.strategy.num_gpus / 3600.0

    def cost_usd(self) -> float | None:
        """Price of the same span; None where hwdb has no price for the node."""
        node = self.context.cluster.node
        if node.usd_per_hour is None:
            return None
        return self.gpu_hours() / node.num_accelerators * node.usd_per_hour


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything a report needs: plans for the whole cluster, the frontier, search figures."""

    contexts: tuple[Context, ...]
    plans: tuple[Plan, ...]
    pareto: tuple[Plan, ...]
    searches: tuple[SearchResult, ...]
    notes: tuple[str, ...] = ()
    """Defaults that were assumed."""

    @property
    def proved_optimal(self) -> bool:
        """True when every plan shown was proved best under the model."""
        return all(result.proved_optimal for result in self.searches)

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


def _plans(context: Context, found: Sequence[Found]) -> list[Plan]:
    return [
        Plan(
            context=context,
            strategy=one.strategy,
            estimate=estimate(context, one.strategy),
            is_optimal=one.is_optimal,
        )
        for one in found
    ]


def _merge_frontier(plans: list[Plan]) -> list[Plan]:
    """Keep, by ascending GPUs, the plans usefully faster than every smaller one."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.strategy.num_gpus, p.estimate.iter_time_s)):
        gate = kept[-1].estimate.iter_time_s * (1 - USEFUL_GAIN_FRACTION) if kept else float("inf")
        if plan.estimate.iter_time_s < gate:
            kept.append(plan)
    return kept


def answer(
    contexts: Sequence[Context],
    *,
    top: int,
    notes: Sequence[str] = (),
    progress: Progress = lambda _message, _fraction: None,
) -> Answer:
    """Search every context (one per framework) and rank the plans across them."""
    plans: list[Plan] = []
    pareto: list[Plan] = []
    searches: list[SearchResult] = []
    for context in contexts:
        result = search(context, top=top, progress=progress)
        searches.append(result)
        plans += _plans(context, result.plans)
        pareto += _plans(context, result.frontier)
    most_gpus = max((plan.strategy.num_gpus for plan in plans), default=0)
    plans = [plan for plan in plans if plan.strategy.num_gpus == most_gpus]
    plans.sort(key=lambda plan: plan.estimate.iter_time_s)
    return Answer(
        contexts=tuple(contexts),
        plans=tuple(plans[:top]),
        pareto=tuple(_merge_frontier(pareto)),
        searches=tuple(searches),
        notes=tuple(notes),
    )
