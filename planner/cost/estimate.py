"""The full, itemised estimate of one strategy: time and memory, every number with an address."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.context import Context
from planner.cost.flops import model_flops_per_iteration
from planner.cost.kernels import peak_flops_per_s
from planner.cost.memory_items import MemoryEstimate, memory_estimate
from planner.cost.subject import Subject, iteration_of, subjects_of
from planner.cost.time_items import time_items
from planner.spec.strategy import Strategy

NEGLIGIBLE_FRACTION = 1e-11
"""Items below this share of an iteration are rounding, not time."""


@dataclass(frozen=True, kw_only=True)
class TimeItem:
    """One item of iteration time, on the slowest stage."""

    busy_s: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Everything the model says about one strategy."""

    iter_time_s: float
    iter_time_s_lower: float
    """80 % of published runs of this regime lay between lower and upper."""
    iter_time_s_upper: float
    regime: str
    """The published runs that lower and upper are taken from."""
    iter_time_s_overlapped: float
    """Everything that can overlap does, at no cost to computation."""
    iter_time_s_serial: float
    """Nothing overlaps."""
    time: dict[str, TimeItem]
    """By dotted name; exposed seconds sum to iter_time_s."""
    slowest_stage: int
    memory: MemoryEstimate
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops: float
    mfu: float


def _with_overlap(context: Context, *, overlaps: bool) -> Context:
    """The context with all or no communication beside computation."""
    overlap = replace(
        context.traits.overlap,
        tensor_parallel_overlap="bulk" if overlaps else "none",
        overlaps_gradient_reduction=overlaps,
        overlaps_parameter_gather=overlaps,
        pipeline_p2p_overlap="all" if overlaps else "none",
        communication_multiprocessors=0.0 if overlaps else math.inf,
    )
    return replace(context, traits=replace(context.traits, overlap=overlap))


def estimate(context: Context, strategy: Strategy) -> Estimate:
    """Time and memory of one strategy, itemised; the same formulas the search uses."""
    return estimates(context, [strategy])[0]


def estimates(context: Context, strategies: Sequence[Strategy]) -> list[Estimate]:
    """Estimate many strategies, what they share computed once."""
    subjects = subjects_of(context, strategies)
    overlapped, serial = (
        subjects_of(_with_overlap(context, overlaps=overlaps), strategies)
        for overlaps in (True, False)
    )
    return [
        _estimate(subject, iteration_of(best), iteration_of(worst))
        for subject, best, worst in zip(subjects, overlapped, serial, strict=True)
    ]


def _estimate(subject: Subject, overlapped_s: float, serial_s: float) -> Estimate:
    context = subject.context
    iter_time = iteration_of(subject)
    items, slowest = time_items(subject)
    flops = model_flops_per_iteration(context.model, context.job, context.traits)
    peak = peak_flops_per_s(context.cluster.accelerator, context.job.precision)
    tokens_per_s = context.job.tokens_per_iteration / iter_time
    off = context.traits.time_range(context.model.kind, context.cluster.accelerator.name)
    negligible_s = NEGLIGIBLE_FRACTION * iter_time
    num_gpus = subject.strategy.num_gpus
    return Estimate(
        iter_time_s=iter_time,
        iter_time_s_lower=iter_time * off.low,
        iter_time_s_upper=iter_time * off.high,
        regime=off.regime,
        iter_time_s_overlapped=overlapped_s,
        iter_time_s_serial=serial_s,
        time={
            name: TimeItem(busy_s=float(item.busy_s[0]), exposed_s=float(item.exposed_s[0]))
            for name, item in items.items()
            if max(float(item.busy_s[0]), abs(float(item.exposed_s[0]))) > negligible_s
        },
        slowest_stage=slowest,
        memory=memory_estimate(subject),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / num_gpus,
        model_flops=flops,
        mfu=flops / (iter_time * num_gpus * peak),
    )
