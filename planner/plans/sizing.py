"""Sizing: the smallest cluster of a node that does a job in time and within a budget."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.errors import NothingFitsError
from planner.plans.clock import Clock
from planner.plans.objectives import JobLimits, Limit, amounts, gpu_hours, span_s
from planner.plans.plan import Answer, Plan
from planner.plans.scaling import fastest_on_all
from planner.plans.whynot import nothing_fits
from planner.search.ranking.pareto import non_dominated
from planner.search.search import Progress, SearchResult, search
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.cluster import ClusterSpec
from planner.spec.strategy import MOVED, Strategy

SAME_TIME = 1e-6
"""Relative difference up to which a count is priced alike in the large cluster and its own."""

NEXT_SIZES = 4
"""Times the fewest GPUs up to which the next sizes are shown at least."""

ClusterOf = Callable[[int], ClusterSpec]
"""The cluster of so many GPUs of the node that is sized."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A number of GPUs, its fastest plan, and what the job takes there."""

    context: Context
    """Its cluster may be larger than the plan: the one that was searched."""
    strategy: Strategy
    iteration_s: float
    is_optimal: bool

    @property
    def num_gpus(self) -> int:
        """GPUs of the plan."""
        return self.strategy.num_gpus

    @property
    def num_nodes(self) -> int:
        """Nodes of the cluster that hold them; part of a node counts as one."""
        return math.ceil(self.num_gpus / self.context.cluster.node.num_accelerators)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second on all GPUs together."""
        return self.context.job.tokens_per_iteration / self.iteration_s

    @property
    def total_s(self) -> float:
        """Seconds of the whole job."""
        return span_s(self.iteration_s, self.context.job)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the whole job."""
        return gpu_hours(float(self.num_gpus), self.total_s)

    @property
    def cost_usd(self) -> float | None:
        """Price of the whole job; None where hwdb has no price for the node."""
        return self.amounts["cost_usd"]

    @property
    def amounts(self) -> dict[str, float | None]:
        """What the whole job takes of money and energy; None where hwdb lacks a figure."""
        return amounts(self.gpu_hours, self.context.cluster)

    def missed(self, limits: JobLimits) -> tuple[Limit, ...]:
        """The limits this size does not keep."""
        return limits.missed(self.iteration_s, self.cost_usd, self.context.job)

    @cached_property
    def plan(self) -> Plan:
        """The plan with its estimate."""
        return Plan(
            context=self.context,
            strategy=self.strategy,
            estimate=estimate(self.context, self.strategy),
            is_optimal=self.is_optimal,
        )


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The smallest size that keeps the limits, and every useful size up to the largest."""

    contexts: tuple[Context, ...]
    """One per framework, on the largest cluster."""
    limits: JobLimits
    sizes: tuple[Size, ...]
    """Ascending in GPUs, each faster than all smaller ones."""
    chosen: Size | None
    """In a cluster of its own; None where no size keeps the limits."""
    nearest: tuple[Size, ...] = ()
    """Without a chosen one: sizes that keep the limits but for one kind of them; see
    ``nearest_sizes``."""
    enough: Size | None = None
    """Without a chosen one: the smallest beyond the largest cluster that keeps all limits."""
    resident: Size | None = None
    """The fewest GPUs that hold the job with nothing offloaded, where that are others."""
    searches: tuple[SearchResult, ...] = ()
    narrowing: Narrowing = EVERYTHING

    @property
    def is_complete(self) -> bool:
        """True when every time was proved best under the model."""
        sizes = (*self.sizes, *([self.chosen] if self.chosen else []))
        return all(each.is_complete for each in self.searches) and all(
            size.is_optimal for size in sizes
        )

    @property
    def seconds(self) -> float:
        """Search time, that in clusters of their own left out."""
        return sum(result.seconds for result in self.searches)


def useful_sizes(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Those that no other beats in GPUs and time, ascending in GPUs.

    A size that is left out is no faster than a smaller one, so it costs and draws more as well.
    """
    points = np.array([[size.num_gpus, size.iteration_s] for size in sizes], dtype=np.float64)
    kept = [sizes[row] for row in non_dominated(points.reshape(-1, 2)).tolist()]
    return tuple(sorted(kept, key=lambda size: size.num_gpus))


def nearest_sizes(sizes: Sequence[Size], limits: JobLimits) -> tuple[Size, ...]:
    """Of sizes none of which keeps all limits, those for which the least has to be given up.

    The fastest within the budget, and the cheapest of those in time; where none is either, the
    fastest and the cheapest of all.
    """
    missed = [(size, size.missed(limits)) for size in sizes]
    affordable = [size for size, what in missed if "budget" not in what]
    in_time = [size for size, what in missed if what == ("budget",)]
    if not affordable and not in_time:
        affordable = in_time = list(sizes)
    found = [
        *([min(affordable, key=lambda size: size.iteration_s)] if affordable else []),
        *([min(in_time, key=lambda size: size.cost_usd or 0.0)] if in_time else []),
    ]
    return tuple({size.num_gpus: size for size in found}.values())


def in_own_cluster(
    contexts: Sequence[Context],
    num_gpus: int,
    cluster_of: ClusterOf,
    narrowing: Narrowing = EVERYTHING,
    clock: Clock | None = None,
) -> Size | None:
    """The fastest plan on all of a cluster of so many GPUs; None where it has none."""
    cluster = cluster_of(num_gpus)
    plan, _, _ = fastest_on_all(
        [replace(context, cluster=cluster) for context in contexts], narrowing, clock
    )
    if plan is None:
        return None
    return Size(
        context=plan.context,
        strategy=plan.strategy,
        iteration_s=plan.estimate.iter_time_s,
        is_optimal=plan.is_optimal,
    )


def _searched(
    contexts: Sequence[Context], narrowing: Narrowing, clock: Clock, progress: Progress
) -> tuple[tuple[Size, ...], tuple[SearchResult, ...]]:
    """The useful sizes up to the contexts' cluster, over all frameworks."""
    clock.plan_for(len(contexts) + 1)
    results = tuple(
        search(context, top=1, narrowing=narrowing, time_limit_s=clock.share_s(), progress=progress)
        for context in contexts
    )
    sizes = [
        Size(
            context=context,
            strategy=found.strategy,
            iteration_s=found.iteration_s,
            is_optimal=found.is_optimal,
        )
        for context, result in zip(contexts, results, strict=True)
        for found in (*result.frontier, *result.plans)
    ]
    return useful_sizes(sizes), results


def _smallest(
    sizes: Sequence[Size], limits: JobLimits, own_size: Callable[[int], Size | None]
) -> Size | None:
    """The smallest of ``sizes`` that keeps the limits in a cluster of its own.

    The network of a small cluster may differ from the same part of a large one (slices of a
    torus). So what keeps the limits in the large cluster (else the nearest) is searched again in
    its own, ascending until one keeps them there; and where the times differ, descending as long
    as they are kept.
    """

    def own(row: int) -> Size | None:
        size = own_size(sizes[row].num_gpus)
        return None if size is None or size.missed(limits) else size

    meeting = [size for size in sizes if not size.missed(limits)]
    tried = meeting or nearest_sizes(sizes, limits)
    for row in sorted(sizes.index(size) for size in tried):
        chosen = own(row)
        if chosen is None:
            continue
        differs = abs(chosen.iteration_s / sizes[row].iteration_s - 1.0) > SAME_TIME
        while differs and row and (smaller := own(row - 1)):
            chosen, row = smaller, row - 1
        return chosen
    return None


def sizing(
    contexts: Sequence[Context],
    limits: JobLimits,
    cluster_of: ClusterOf,
    *,
    narrowing: Narrowing = EVERYTHING,
    larger: ClusterSpec | None = None,
    clock: Clock | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Sizing:
    """Find the smallest cluster that keeps the limits; the contexts' cluster is the largest.

    One search over the largest cluster gives the fastest plan of every number of GPUs. The
    global batch is the contexts', whatever the size. Where no size keeps the limits, one in a
    ``larger`` cluster is looked for.
    """
    clock = clock or Clock(None)

    def own_size(num_gpus: int) -> Size | None:
        clock.plan_for(2 * len(contexts))
        return in_own_cluster(contexts, num_gpus, cluster_of, narrowing, clock)

    sizes, results = _searched(contexts, narrowing, clock, progress)
    chosen = _smallest(sizes, limits, own_size)
    nearest: tuple[Size, ...] = ()
    enough = None
    if chosen is None and sizes:
        nearest = tuple(own_size(size.num_gpus) or size for size in nearest_sizes(sizes, limits))
        if larger and larger.num_accelerators > contexts[0].cluster.num_accelerators:
            wider = [replace(context, cluster=larger) for context in contexts]
            beyond, _ = _searched(wider, narrowing, clock, progress)
            enough = _smallest(beyond, limits, own_size)
    return Sizing(
        contexts=tuple(contexts),
        limits=limits,
        sizes=sizes,
        chosen=chosen,
        nearest=nearest,
        enough=enough,
        searches=results,
        narrowing=narrowing,
    )


def fewest(
    contexts: Sequence[Context],
    clusters: Iterable[ClusterSpec],
    asked: Callable[[Sequence[Context]], Sizing],
) -> Sizing:
    """The sizing on the first of growing clusters that has room for sizes beyond the smallest.

    Of the last one where none has.
    """
    result = None
    for cluster in clusters:
        result = asked([replace(context, cluster=cluster) for context in contexts])
        if result.sizes and result.sizes[0].num_gpus * NEXT_SIZES <= cluster.num_accelerators:
            break
    assert result is not None
    return result


def is_offloaded(size: Size) -> bool:
    """Whether a size's plan keeps anything in host memory or on disks."""
    strategy = size.strategy
    return strategy.offload != "none" or any(strategy.layers_under[name] for name in MOVED)


def unmet(result: Answer) -> Sizing:
    """The sizes of an answer none of whose plans keeps the limits, the nearest among them."""
    limits = result.aim.limits
    sizes = useful_sizes(
        [
            Size(
                context=plan.context,
                strategy=plan.strategy,
                iteration_s=plan.estimate.iter_time_s,
                is_optimal=plan.is_optimal,
            )
            for plan in result.frontier
        ]
    )
    return Sizing(
        contexts=result.contexts,
        limits=limits,
        sizes=sizes,
        chosen=None,
        nearest=nearest_sizes(sizes, limits),
        searches=result.searches,
    )


def nothing_at_any_size(result: Sizing) -> NothingFitsError:
    """Explain that nothing fits on the largest cluster, as `planner plan` does."""
    empty = Answer(contexts=result.contexts, plans=(), pareto=(), searches=result.searches)
    return nothing_fits(result.contexts, result.narrowing, empty)
