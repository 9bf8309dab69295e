"""Probable causes of the difference between a run and its estimate: one rule each, with numbers.

A rule that prices the layout anew says what that would take; it proves nothing, and rules may
explain the same seconds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from planner.compare.log import SLOW_FACTOR, Measured
from planner.cost.estimate import Estimate, estimate
from planner.cost.launches import slower_host
from planner.query.layout import Layout
from planner.spec.strategy import with_policy_on_all_layers
from planner.units import format_seconds

APART = 0.05  # of the prediction: published runs differ by less, too (docs/accuracy.md)
CLOSES = 0.5  # of the difference, what a cause has to explain to be named
MOST_FACTOR = 3.0  # a network or host slower than priced by more is not the cause
# Items of time on links.
NETWORK = (
    "tensor_parallel",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
    "unpaired_exchange",
    "sharding",
    "pipeline.p2p",
    "tied_embedding",
)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run and its price."""

    measured: Measured
    layout: Layout
    made: Estimate

    @property
    def gap_s(self) -> float:
        """Measured less predicted."""
        return self.measured.iter_time_s - self.made.iter_time_s

    @property
    def is_slower(self) -> bool:
        """The run takes longer than its price, by more than noise."""
        return self.gap_s > APART * self.made.iter_time_s

    def price_s(self, **changes: Any) -> float:  # noqa: ANN401 - of any part of a context
        """The price in a context with changes."""
        return estimate(replace(self.layout.context, **changes), self.layout.strategy).iter_time_s


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One probable cause."""

    name: str  # a word for programs
    message: str
    explains_s: float | None = None  # of the difference; None where it is none of that


def causes_of(case: MeasuredRun) -> tuple[Cause, ...]:
    """Return the causes the rules find; those that explain most of the difference first."""
    rules = [beyond_peak, recomputation]
    if case.is_slower:
        rules += [no_overlap, network, imbalance, host_bound]
    found = [cause for rule in rules for cause in rule(case)]
    return tuple(sorted(found, key=lambda cause: -(cause.explains_s or 0.0)))


def steps_causes(measured: Measured) -> Iterator[Cause]:
    """Yield what the steps alone say."""
    steps_s, usual_s = measured.steps_s, measured.iter_time_s
    first = [one for one in measured.left_out_s if one > SLOW_FACTOR * usual_s]
    steps = f"{measured.num_left_out} steps" if measured.num_left_out > 1 else "step"
    slow = [one for one in steps_s if one > SLOW_FACTOR * usual_s]
    cost = measured.mean_s / usual_s - 1.0  # by which slow steps raise the mean
    third, drift = len(steps_s) // 3, 0.0
    # Of fewer steps a single slow one would be a drift.
    if third >= 3:
        drift = median(steps_s[-third:]) / median(steps_s[:third]) - 1.0
    causes = {
        "first_steps": first,
        "stragglers": slow and cost >= 0.02,
        "uneven": measured.spread > 0.10 and len(steps_s) >= 5,
        "drift": drift >= 0.03,
    }
    words = {
        "first_steps": f"up to {max(first, default=0.0) / usual_s:.1f} times the median in the "
        f"first {steps}, not counted",
        "stragglers": f"{len(slow)} of {len(steps_s)} steps took more than {SLOW_FACTOR:g} times "
        f"the median, the worst {max(steps_s) / usual_s:.1f} times: the mean is {100 * cost:.0f} % "
        "above the median (checkpoints, evaluation, input or a slow node)",
        "uneven": f"eight of ten steps spread over {100 * measured.spread:.0f} % of the median: "
        "lengths or routing differ from step to step, or a node or the network is shared",
        "drift": f"steps grew {100 * drift:.0f} % slower from the first third to the last "
        "(heat, memory in fragments, input)",
    }
    yield from (Cause(name=name, message=words[name]) for name, holds in causes.items() if holds)


def no_overlap(case: MeasuredRun) -> Iterator[Cause]:
    """The estimate without any overlap closes CLOSES of the difference."""
    serial_s = case.made.iter_time_s_serial
    more_s = serial_s - case.made.iter_time_s
    if more_s >= CLOSES * case.gap_s:
        share = min(more_s / case.gap_s, 9.99)
        yield Cause(
            name="overlap",
            message=f"were no communication hidden behind computation, an iteration would take "
            f"{format_seconds(serial_s)}: {100 * share:.0f} % of the difference",
            explains_s=min(more_s, case.gap_s),
        )


def network(case: MeasuredRun) -> Iterator[Cause]:
    """A network slower by at most MOST_FACTOR explains the difference."""
    items = case.made.time
    busy_s = sum(items[name].busy_s for name in NETWORK if name in items)
    factor = 1.0 + case.gap_s / busy_s if busy_s > 0.0 else math.inf
    if factor <= MOST_FACTOR:
        yield Cause(
            name="network",
            message=f"links are busy {format_seconds(busy_s)} of an iteration: at 1/{factor:.1f} "
            "of their rate they would explain all of the difference; measure them with nccl-tests",
            explains_s=case.gap_s,
        )


def host_bound(case: MeasuredRun) -> Iterator[Cause]:
    """Launches of kernels that take up to MOST_FACTOR times as long explain the difference."""
    traits = case.layout.context.traits
    kernels = traits.kernels
    factor = _crossing(
        lambda slower: case.price_s(traits=replace(traits, kernels=slower_host(kernels, slower))),
        (1.0, 1.5, 2.0, MOST_FACTOR),
        case,
    )
    if factor is not None:
        yield Cause(
            name="host",
            message=f"were the host {factor:.1f} times slower at launching kernels (priced "
            f"{kernels.launch_s * 1e6:.0f} us each), that would explain it: a busy or slow host, a "
            "profiler, or eager code; CUDA graphs or larger micro-batches take it away",
            explains_s=case.gap_s,
        )


def imbalance(case: MeasuredRun) -> Iterator[Cause]:
    """Of a mixture: at most twice the mean on the busiest rank of experts closes the difference."""
    job, steps = case.layout.context.job, [step / 10 for step in range(11)]
    fraction = _crossing(
        lambda more: case.price_s(job=replace(job, imbalance_fraction=more)),
        steps if case.layout.context.model.moe else (),
        case,
    )
    if fraction is not None:
        yield Cause(
            name="imbalance",
            message=f"{100 * fraction:.0f} % more tokens than the mean on the busiest rank of "
            f"experts would explain it (priced with {100 * job.imbalance_fraction:.0f} %)",
            explains_s=case.gap_s,
        )


def _crossing(
    at: Callable[[float], float], values: Sequence[float], case: MeasuredRun
) -> float | None:
    """The value at which the price is what was measured; None where no value makes it as slow."""
    priced = [(value, at(value)) for value in values]
    for (low, before), (high, after) in pairwise(priced):
        if before <= case.measured.iter_time_s <= after and after > before:
            return low + (high - low) * (case.measured.iter_time_s - before) / (after - before)
    return None


def recomputation(case: MeasuredRun) -> Iterator[Cause]:
    """With all or no layers recomputed the price is within APART, or closes CLOSES."""
    strategy = case.layout.strategy
    if not case.is_slower and case.gap_s > -APART * case.made.iter_time_s:
        return
    other = with_policy_on_all_layers(strategy, "full" if case.is_slower else "none")
    if other == strategy or (case.is_slower and strategy.recompute == "full"):
        return
    other_s = estimate(case.layout.context, other).iter_time_s
    closed_s = other_s - case.made.iter_time_s
    if abs(case.gap_s - closed_s) <= (1.0 - CLOSES) * abs(case.gap_s):
        what = "all layers recomputed" if case.is_slower else "nothing recomputed"
        yield Cause(
            name="recomputation",
            message=f"with {what} the price is {format_seconds(other_s)}: the run may do that",
            explains_s=abs(closed_s),
        )


def beyond_peak(case: MeasuredRun) -> Iterator[Cause]:
    """The run does more FLOPs than the accelerators can: log and layout are not of one run."""
    mfu = case.made.mfu * case.made.iter_time_s / case.measured.iter_time_s
    if mfu > 1.0:
        yield Cause(
            name="beyond_peak",
            message=f"{100 * mfu:.0f} % of the peak is more than there is: the log is of another "
            "batch, model or number of GPUs than the layout",
        )
