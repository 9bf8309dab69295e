"""Scaling: the best plan at every size, what it gains over the smallest, and what it loses to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from planner.answers.base import Deadline, Found, Plan
from planner.answers.row import Row
from planner.answers.rows import InputsRow, PlanRow
from planner.answers.whatif import best
from planner.cost.context import Context
from planner.cost.estimate import Estimate
from planner.errors import NothingFitsError
from planner.query.job import batch_at
from planner.query.resolve import Case
from planner.search.search import Progress, no_progress
from planner.spec.cluster import ClusterSpec

# Groups of time items by the beginnings of their names; the rest is OTHER.
LIMITS = {
    "bubble": ("pipeline.bubble",),
    "DP": ("data_parallel", "sharding", "tied_embedding"),
    "TP": ("tensor_parallel", "context_parallel"),
    "EP": ("expert_parallel", "unpaired_exchange"),
    "p2p": ("pipeline.p2p",),
    "recompute": ("recompute",),
    "compute": ("compute",),
}
OTHER = "other"
TOO_LATE = "nothing found within the time limit"
BITE_FRACTION = 0.05  # a limit bites from the size on at which it costs this share of GPU time


def limit_of(item: str) -> str:
    """The group of LIMITS that a time item belongs to."""
    named = (
        name
        for name, beginnings in LIMITS.items()
        if any(f"{item}.".startswith(f"{start}.") for start in beginnings)
    )
    return next(named, OTHER)


def shares(result: Estimate) -> dict[str, float]:
    """Exposed seconds by limit, as shares of the iteration; they sum to 1."""
    total = dict.fromkeys((*LIMITS, OTHER), 0.0)
    for name, item in result.time.items():
        total[limit_of(name)] += item.exposed_s / result.iter_time_s
    return total


def efficiency(throughput: float, base_throughput: float, scale: float) -> float:
    """Scaling efficiency ``P_scale / (P_base · scale)``.

    P is the throughput (tokens/s), ``scale`` how many times as many accelerators it takes.
    1 is linear; strong scaling keeps the batch, weak scaling the batch per accelerator.
    """
    return throughput / (base_throughput * scale)


def gpus_for_deadline(total_flops: float, flops_per_s: float, seconds: float) -> float:
    """Accelerators that finish a job in time: ``FLOPs / (FLOP/s per accelerator · seconds)``.

    FLOPs of a dense model are about ``6 · parameters · tokens``, attention and recomputation
    excluded; ``flops_per_s`` is what one accelerator achieves in training, so the result holds near
    the number of them at which that was found. Source: arXiv 2104.04473, section 5.1.
    """
    return total_flops / (flops_per_s * seconds)


def is_exhausted(plan: Plan) -> bool:
    """Every replica runs one micro-batch: more replicas would have nothing to do."""
    return plan.strategy.num_micro_batches == 1


class ScaleRow(Row):
    """One size of a scaling curve; without a plan only its batch and why there is none."""

    gpus: int
    global_batch: int
    why: str | None = None
    speed_up: float | None = None
    """Against the base."""
    efficiency: float | None = None
    """Against the base."""
    shares: dict[str, float] | None = None
    """Share of the iteration by limit; their sum is 1."""
    losses: dict[str, float] | None = None
    """Loss of efficiency by limit; their sum is 1 less the efficiency."""
    limit: str | None = None
    """The largest of them."""
    batch_exhausted: bool = False
    """Every replica runs one micro-batch."""
    plan: PlanRow | None = None

    @classmethod
    def of(cls, result: "Scaling", plan: Plan) -> "ScaleRow":
        """The row of a size's plan."""
        return cls(
            gpus=plan.num_gpus,
            global_batch=plan.context.job.global_batch,
            speed_up=result.speed_up(plan),
            efficiency=result.efficiency(plan),
            shares=shares(plan.estimate),
            losses=result.losses(plan),
            limit=result.limit(plan),
            batch_exhausted=is_exhausted(plan),
            plan=PlanRow.of(plan),
        )


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A scaling curve; the base is the first size at which anything fits."""

    plans: tuple[Plan, ...]  # of the sizes that have one, ascending, each on all its GPUs
    without: tuple[ScaleRow, ...]  # sizes that have none
    is_weak: bool
    case: Case
    finish_in_s: float | None = None  # what the whole job may take
    seconds: float = 0.0

    @property
    def late_at(self) -> tuple[int, ...]:
        """Sizes at which a faster plan may exist: a limit of time or of the solver struck."""
        late = [size.gpus for size in self.without if size.why == TOO_LATE]
        return tuple(
            sorted([*late, *(plan.num_gpus for plan in self.plans if not plan.is_optimal)])
        )

    @property
    def base(self) -> Plan:
        """The plan on the fewest GPUs."""
        return self.plans[0]

    def speed_up(self, plan: Plan) -> float:
        """Tokens per second over those of the base."""
        return plan.estimate.tokens_per_s / self.base.estimate.tokens_per_s

    def efficiency(self, plan: Plan) -> float:
        """Scaling efficiency against the base."""
        scale = plan.num_gpus / self.base.num_gpus
        return efficiency(plan.estimate.tokens_per_s, self.base.estimate.tokens_per_s, scale)

    def losses(self, plan: Plan) -> dict[str, float]:
        """Return the loss of efficiency by limit; they sum to 1 less the efficiency.

        ``(c_i - c_i,base) / Σ c_i`` with c the GPU seconds per token of an item. A negative loss
        is a gain on the base, such as less recomputation.
        """
        base, efficiency = shares(self.base.estimate), self.efficiency(plan)
        here = shares(plan.estimate)
        return {name: share - efficiency * base[name] for name, share in here.items()}

    def limit(self, plan: Plan) -> str | None:
        """The limit that takes most; None where none takes anything worth a name."""
        losses = self.losses(plan)
        name = max(losses, key=lambda each: losses[each])
        return name if losses[name] >= 0.005 else None  # smaller losses name no limit

    def bites(self) -> dict[str, list[tuple[int, float]]]:
        """Per limit that ever bites: the sizes where it does, and its loss there."""
        biting: dict[str, list[tuple[int, float]]] = {}
        for plan in self.plans:
            for name, loss in self.losses(plan).items():
                if loss >= BITE_FRACTION:
                    biting.setdefault(name, []).append((plan.num_gpus, loss))
        return biting

    def exhausted_from(self) -> int | None:
        """The fewest GPUs from which on the batch is exhausted at every size."""
        tail = takewhile(is_exhausted, reversed(self.plans))
        return min((plan.num_gpus for plan in tail), default=None)

    def finishes_in(self, seconds: float) -> Plan | None:
        """The plan on the fewest GPUs that ends the whole job in time."""
        in_time = (plan for plan in self.plans if 0.0 < (plan.total_s() or 0.0) <= seconds)
        return next(in_time, None)


def fastest_on_all(case: Case, deadline: Deadline | None = None) -> Found:
    """The fastest plan on all GPUs over the frameworks, where there is one."""
    found = best(case, deadline or Deadline(), uses_all=True)
    by_time = sorted(found.plans, key=lambda plan: plan.estimate.iter_time_s)
    return replace(found, plans=tuple(by_time[:1]))


def scaling(
    case: Case,
    clusters: Sequence[ClusterSpec],
    *,
    is_weak: bool,
    finish_in_s: float | None = None,
    deadline: Deadline | None = None,
    progress: Progress = no_progress,
) -> Scaling:
    """Search the best plan on each cluster (ascending); the batch asked is that of the first.

    Exact at every size, as `planner plan`; plans that leave GPUs idle are not considered.
    """
    plans, without, seconds = list[Plan](), list[ScaleRow](), 0.0
    deadline = deadline or Deadline()
    deadline.num_left = len(clusters) * len(case.contexts)
    base_gpus, base_batch = clusters[0].num_accelerators, case.context.job.global_batch
    for index, cluster in enumerate(clusters):
        num_gpus = cluster.num_accelerators
        progress(f"searching plans on {num_gpus:,} GPUs", index / len(clusters))
        batch = batch_at(num_gpus, base_gpus, base_batch, is_weak=is_weak)
        sized = [replace(each, cluster=cluster) for each in case.contexts]
        contexts = tuple(each.with_job(global_batch=batch) for each in sized)
        found = fastest_on_all(replace(case, contexts=contexts), deadline)
        seconds += sum(result.seconds for result in found.searches)
        plans += found.plans
        if not found.plans:
            is_legal = any(result.num_shapes for result in found.searches)
            why = "does not fit in memory" if is_legal else "no legal layout uses all of them"
            why = why if found.is_complete else TOO_LATE
            without.append(ScaleRow(gpus=num_gpus, global_batch=batch, why=why))
    return Scaling(
        case=case,
        plans=tuple(plans),
        without=tuple(without),
        is_weak=is_weak,
        finish_in_s=finish_in_s,
        seconds=seconds,
    )


def nothing_scales(context: Context, result: Scaling) -> NothingFitsError:
    """Say per size why it has no plan; `planner plan` on one of them tells more."""
    lines = [f"{size.gpus:,} GPUs: {size.why}" for size in result.without]
    head = f"nothing fits: {context.model.name} on {context.cluster.node.name} at any of the sizes"
    tail = "`planner plan` on one of these sizes says what is missing and what would fit"
    return NothingFitsError("\n".join((head, *lines, tail)))


class ScaleDocument(Row):
    """The best plan at every size, and what limits it."""

    scaling: Literal["strong", "weak"]
    inputs: InputsRow
    base_gpus: int
    """The smallest size at which anything fits."""
    sizes: list[ScaleRow]
    limit_struck_at_gpus: list[int]
    """Sizes at which a time limit, or one of the solver, struck."""
    batch_exhausted_from_gpus: int | None
    """Number of GPUs from which the batch is exhausted at every size."""
    seconds: float
