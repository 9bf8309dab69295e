"""From a question on mixed machines to ranked ways to use them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.flops import model_flops_per_iteration
from planner.cost.iteration_range import class_of
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.plans.clock import Clock
from planner.plans.job import Held, Job, Terms
from planner.plans.plan import Answer, Plan
from planner.pools.pipelines import Pipeline, PoolContext, best_pipelines
from planner.pools.replicas import balanced, exchange_s, shares_of, trained_bytes
from planner.search.search import Progress
from planner.search.space.narrow import Narrowing
from planner.spec.cluster import AcceleratorSpec
from planner.spec.job import JobSpec
from planner.spec.pools import MixedCluster, Pool
from planner.spec.strategy import Strategy

LAYOUTS = 8
"""Of each pool, by which replicas over pools are put together."""
SHARE_STEPS = 8
"""A pool's share of the batch is searched to an eighth, rounded to what divides well."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one pool does in a plan."""

    pool: Pool
    context: Context
    """On whose nodes its figures are computed."""
    strategy: Strategy
    estimate: Estimate
    stages: range
    """Its stages of the pipeline."""
    sequences: int
    """Of the global batch."""
    busy_s: float
    """Per iteration, its busiest stage or replica."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Of its stages."""
        return self.strategy.layers_per_stage[self.stages.start : self.stages.stop]

    @property
    def num_gpus(self) -> int:
        """GPUs of the pool that work."""
        return self.strategy.num_gpus // self.strategy.pp * len(self.stages)

    @property
    def plan(self) -> Plan:
        """The layout as if all of it ran on the pool's nodes."""
        made = self.estimate
        return Plan(context=self.context, strategy=self.strategy, estimate=made, is_optimal=False)

    @property
    def peak_stage(self) -> int:
        """Of the pool's stages the one with the fullest GPUs."""
        return max(self.stages, key=self.estimate.memory.stage_peak_bytes.__getitem__)

    @property
    def peak_bytes(self) -> float:
        """Of the fullest GPU of the pool."""
        return self.estimate.memory.stage_peak_bytes[self.peak_stage]

    @property
    def usable_bytes(self) -> float:
        """HBM of its GPUs without the margin."""
        return self.estimate.memory.usable_bytes

    @property
    def hbm_bytes(self) -> float:
        """HBM of its GPUs."""
        return self.context.cluster.accelerator.hbm_bytes


@dataclass(frozen=True, kw_only=True)
class MixedPlan:
    """One way to use the pools."""

    kind: str
    """``pipeline``, ``replicas`` or ``one pool``."""
    parts: tuple[Part, ...]
    job: JobSpec
    iteration_s: float
    exchange_s: float = 0.0
    """Of it, gradients summed over pools."""
    is_optimal: bool

    @property
    def is_written(self) -> bool:
        """Whether some framework's files can say it: unequal batches of pools none can."""
        return self.kind != "replicas"

    @property
    def framework(self) -> str:
        """Name of the framework."""
        return self.context.traits.name

    @property
    def context(self) -> Context:
        """The question on the nodes of the first pool."""
        return self.parts[0].context

    @property
    def strategy(self) -> Strategy:
        """The layout of the first pool: of a pipeline, all of it."""
        return self.parts[0].strategy

    @property
    def num_gpus(self) -> int:
        """GPUs that work."""
        return sum(part.num_gpus for part in self.parts)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the batch over the iteration."""
        return self.job.tokens_per_iteration / self.iteration_s

    @property
    def peak_bytes(self) -> float:
        """Of the fullest GPU of all."""
        return max(part.peak_bytes for part in self.parts)

    @cached_property
    def mfu(self) -> float:
        """Model FLOPs over what the 16-bit peaks of all working GPUs would do in the time."""
        context = self.context
        flops = model_flops_per_iteration(context.model, self.job, context.traits).total
        peak = sum(part.num_gpus * _peak(part.context.cluster.accelerator) for part in self.parts)
        return flops / (self.iteration_s * peak)

    @property
    def range_s(self) -> tuple[float, float]:
        """Where 80 % of runs of each pool's regime lay; the widest of all pools."""
        low, high = 1.0, 1.0
        for part in self.parts:
            traits, accelerator = part.context.traits, part.context.cluster.accelerator.name
            off = traits.time_range(class_of(part.context, part.strategy), accelerator)
            ends = part.estimate.machine_ends_s
            low = min(low, off.low * ends[0] / part.estimate.iter_time_s)
            high = max(high, off.high * ends[1] / part.estimate.iter_time_s)
        return self.iteration_s * low, self.iteration_s * high


@dataclass(frozen=True, kw_only=True)
class MixedAnswer:
    """Ways to use the pools, and what was looked at."""

    cluster: MixedCluster
    contexts: tuple[Context, ...]
    plans: tuple[MixedPlan, ...]
    """By time; of each kind the best, of pipelines several."""
    unfit: tuple[str, ...]
    """Pools that hold no plan alone."""
    num_layouts: int
    is_complete: bool
    notes: tuple[str, ...]
    seconds: float

    @property
    def first(self) -> MixedPlan:
        """The fastest that files can say."""
        return next(plan for plan in self.plans if plan.is_written)

    @property
    def proved_optimal(self) -> bool:
        """Whether no pipeline over pools, and no plan of one pool, is better under the model."""
        best = [plan for plan in self.plans if plan.is_written]
        return self.is_complete and all(plan.is_optimal for plan in best[:1])


def _peak(accelerator: AcceleratorSpec) -> float:
    return peak_flops_per_s(accelerator, usual_precision(accelerator))


def pipeline_plan(found: Pipeline) -> MixedPlan:
    """A pipeline with what each pool does in it."""
    total = sum(each.pool.num_accelerators for each in found.pools)
    parts, first = list[Part](), 0
    for each, number in zip(found.pools, found.stages, strict=True):
        context = each.spanning(total)
        made = estimate(context, found.strategy)
        stages = range(first, first + number)
        busy = [sum(item.exposed_s for item in made.stage_time(stage).values()) for stage in stages]
        part = Part(
            pool=each.pool,
            context=context,
            strategy=found.strategy,
            estimate=made,
            stages=stages,
            sequences=context.job.global_batch,
            busy_s=min(max(busy), found.iteration_s),
        )
        parts.append(part)
        first += number
    return MixedPlan(
        kind="pipeline",
        parts=tuple(parts),
        job=found.pools[0].context.job,
        iteration_s=found.iteration_s,
        is_optimal=found.is_optimal,
    )


def one_pool_plan(pool: Pool, plan: Plan) -> MixedPlan:
    """A plan that leaves the other pools idle."""
    part = Part(
        pool=pool,
        context=plan.context,
        strategy=plan.strategy,
        estimate=plan.estimate,
        stages=range(plan.strategy.pp),
        sequences=plan.context.job.global_batch,
        busy_s=plan.estimate.iter_time_s,
    )
    return MixedPlan(
        kind="one pool",
        parts=(part,),
        job=plan.context.job,
        iteration_s=plan.estimate.iter_time_s,
        is_optimal=plan.is_optimal,
    )


def replicas_plan(
    mixed: MixedCluster, pools: Sequence[PoolContext], layouts: Sequence[Sequence[Strategy]]
) -> MixedPlan | None:
    """Replicas in every pool of the layouts given, each with its share of the batch."""
    if not all(layouts):
        return None
    shares = [shares_of(each.context, own) for each, own in zip(pools, layouts, strict=True)]
    numbers = balanced(shares)
    if numbers is None:
        return None
    parts = []
    for each, own, share, number in zip(pools, layouts, shares, numbers, strict=True):
        chosen = own[int(share.layout[number])]
        micro_batches = number // (chosen.dp * chosen.micro_batch)
        strategy = replace(chosen, num_micro_batches=micro_batches)
        context = replace(each.context, job=replace(each.context.job, global_batch=number))
        part = Part(
            pool=each.pool,
            context=context,
            strategy=strategy,
            estimate=estimate(context, strategy),
            stages=range(strategy.pp),
            sequences=number,
            busy_s=float(share.seconds[number]),
        )
        parts.append(part)
    gpus = [part.num_gpus for part in parts]
    between_s = exchange_s(trained_bytes(pools[0].context), mixed.between, gpus)
    return MixedPlan(
        kind="replicas",
        parts=tuple(parts),
        job=pools[0].context.job,
        iteration_s=max(part.busy_s for part in parts) + between_s,
        exchange_s=between_s,
        is_optimal=False,
    )


def proportional(times_s: Sequence[float], batch: int) -> tuple[int, ...]:
    """Shares of a batch in proportion to speed, to an eighth, as numbers that divide well."""
    speeds = [1.0 / seconds for seconds in times_s]
    shares = []
    for speed in speeds:
        share = max(batch * speed / sum(speeds), 1.0)
        step = 2 ** max(int(math.log2(share / SHARE_STEPS)), 0) if share >= SHARE_STEPS else 1
        shares.append(max(round(share / step) * step, 1))
    return tuple(shares)


Single = Callable[[int, int, int, Clock], Answer]
"""The best plans of a pool alone: its position, how many, the batch, the clock."""


def mixed_answer(
    mixed: MixedCluster,
    pools: Sequence[PoolContext],
    narrowing: Narrowing,
    single: Single,
    *,
    top: int,
    notes: Sequence[str],
    clock: Clock,
    progress: Progress,
) -> MixedAnswer:
    """Look for the best pipelines over pools, replicas over pools, and plans of one pool."""
    started = time.perf_counter()
    batch = pools[0].context.job.global_batch
    clock.plan_for(2 * len(pools) + 1)
    alone = []
    for place, each in enumerate(pools):
        progress(f"plans on {each.pool.name} alone", 0.1 + 0.2 * place / len(pools))
        alone.append(single(place, LAYOUTS, batch, clock))
    progress("pipelines over pools", 0.4)
    share_s = clock.share_s()
    deadline = np.inf if share_s is None else time.monotonic() + share_s
    found = best_pipelines(pools, mixed.between, narrowing, top=top, deadline=deadline)
    progress("replicas over pools", 0.8)
    plans = [pipeline_plan(one) for one in found.pipelines]
    replicas = _replicas(mixed, pools, single, alone, clock)
    plans += [replicas] if replicas else []
    plans += [
        one_pool_plan(each.pool, own.plans[0])
        for each, own in zip(pools, alone, strict=True)
        if own.plans
    ]
    return MixedAnswer(
        cluster=mixed,
        contexts=tuple(each.context for each in pools),
        plans=tuple(sorted(plans, key=lambda plan: plan.iteration_s)),
        unfit=tuple(
            each.pool.name for each, own in zip(pools, alone, strict=True) if not own.plans
        ),
        num_layouts=found.num_layouts,
        is_complete=found.is_complete and all(own.is_complete for own in alone),
        notes=tuple(notes),
        seconds=time.perf_counter() - started,
    )


def _replicas(
    mixed: MixedCluster,
    pools: Sequence[PoolContext],
    single: Single,
    alone: Sequence[Answer],
    clock: Clock,
) -> MixedPlan | None:
    """Replicas over pools of the layouts that are best for all of the batch and for a share."""
    if not all(own.plans for own in alone):
        return None
    batch = pools[0].context.job.global_batch
    times_s = [own.plans[0].estimate.iter_time_s for own in alone]
    layouts = []
    for place, (own, share) in enumerate(zip(alone, proportional(times_s, batch), strict=True)):
        at_share = single(place, LAYOUTS, share, clock)
        layouts.append([plan.strategy for plan in (*at_share.plans, *own.plans)])
    return replicas_plan(mixed, pools, layouts)


def mixed_job(cluster: MixedCluster, plan: MixedPlan, terms: Terms) -> Job:
    """The job of a plan on machines of several kinds, of so many tokens as its job has."""
    return Job(
        plan=plan.parts[0].plan,
        cluster=cluster.name,
        held=tuple(
            Held(node=part.pool.cluster.node, num_gpus=part.num_gpus) for part in plan.parts
        ),
        iteration_s=plan.iteration_s,
        mfu=plan.mfu,
        terms=terms,
    )
