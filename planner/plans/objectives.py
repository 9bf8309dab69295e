"""What a plan is judged by: time, GPUs, money, energy, headroom; and the limits of a job.

Functions of numbers or columns take and return the same shape. Cost and energy are those of the
whole job, or of NUM_SAMPLE_ITERATIONS iterations where its tokens are not given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np

from planner.errors import InputError
from planner.spec.cluster import AcceleratorSpec, ClusterSpec, NodeSpec
from planner.spec.job import JobSpec
from planner.units import HOUR_S, Array

if TYPE_CHECKING:
    from planner.plans.plan import Plan

Objective = Literal["iteration_s", "gpus", "cost_usd", "energy_kwh", "headroom_bytes"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
WORDS: dict[str, Objective] = dict(
    zip(("time", "gpus", "cost", "energy", "headroom"), OBJECTIVES, strict=True)
)
"""How a user names them."""
NUM_SAMPLE_ITERATIONS = 1000.0
W_PER_KW = 1000.0
ENERGY_INCLUDES = (
    "accelerators at their rated board power (TDP) all the time; without hosts, network, storage, "
    "cooling and power conversion"
)
COST_INCLUDES = (
    "nodes at their hourly price all the time; without storage, traffic, idle time and restarts"
)
Column = TypeVar("Column", float, Array)
Limit = Literal["deadline", "rate", "budget"]


def span_s(iteration_s: Column, job: JobSpec) -> Column:
    """Seconds of the job: ``iteration_s · total_tokens / tokens_per_iteration``.

    A last step that is not full counts in part. Excludes start-up, checkpoints, evaluation,
    failures and restarts. Without a token budget the span is NUM_SAMPLE_ITERATIONS iterations.
    """
    steps = NUM_SAMPLE_ITERATIONS
    if job.total_tokens:
        steps = job.total_tokens / job.tokens_per_iteration
    return steps * iteration_s


def gpu_hours(num_gpus: Column, seconds: Column) -> Column:
    """GPU-hours: ``num_gpus · seconds / 3600``; GPUs of the plan, none that stand idle."""
    return num_gpus * seconds / HOUR_S


def cost_usd(hours: Column, node: NodeSpec) -> Column | None:
    """USD: ``gpu_hours / GPUs per node · price of a node-hour``; None where hwdb has no price.

    Prices are on-demand list prices with their source (``planner hardware NODE``); see
    COST_INCLUDES for what is left out.
    """
    if node.usd_per_hour is None:
        return None
    return hours / node.num_accelerators * node.usd_per_hour


def energy_kwh(hours: Column, accelerator: AcceleratorSpec) -> Column:
    """kWh: ``gpu_hours · tdp_w / 1000``, an upper bound for the accelerators alone.

    Power is the board's rated power of hwdb (``tdp_w``; of a few TPUs the published mean), which
    training does not always draw; see ENERGY_INCLUDES for what is left out. Raises InputError
    where the accelerator has no such figure.
    """
    if accelerator.tdp_w is None:
        message = (
            "no power figure, so no energy; give one in the accelerator's file, or as tdp_w under "
            "overrides of a cluster file"
        )
        raise InputError.single(accelerator.name, "tdp_w", message)
    return hours * accelerator.tdp_w / W_PER_KW


def objective(plan: "Plan", name: Objective) -> float:
    """One objective of a plan, in the unit of its name.

    ``headroom_bytes`` is what is left of the usable HBM, the margin taken off, on the stage that
    is fullest at its peak. Raises InputError where hwdb lacks the price or the power.
    """
    if name == "iteration_s":
        return plan.estimate.iter_time_s
    if name == "gpus":
        return float(plan.strategy.num_gpus)
    if name == "headroom_bytes":
        return plan.headroom_bytes
    cluster = plan.context.cluster
    if name == "energy_kwh":
        return energy_kwh(plan.gpu_hours(), cluster.accelerator)
    cost = plan.cost_usd()
    if cost is None:
        raise _no_price(cluster.node)
    return cost


def check_known(cluster: ClusterSpec, names: Sequence[Objective]) -> None:
    """Raise InputError where hwdb lacks the price or the power that an objective needs."""
    if "energy_kwh" in names:
        energy_kwh(1.0, cluster.accelerator)
    if "cost_usd" in names and cluster.node.usd_per_hour is None:
        raise _no_price(cluster.node)


def _no_price(node: NodeSpec) -> InputError:
    message = (
        "no price, so no cost; give one in the node's file, or as usd_per_hour under "
        "overrides of a cluster file"
    )
    return InputError.single(node.name, "price.usd_per_hour", message)


def objective_matrix(plans: Sequence["Plan"], names: Sequence[Objective] = OBJECTIVES) -> Array:
    """Plans x objectives, all to be minimised (headroom negated), for ``non_dominated``."""
    signs = [-1.0 if name == "headroom_bytes" else 1.0 for name in names]
    rows = [[objective(plan, name) for name in names] for plan in plans]
    matrix: Array = np.array(rows, dtype=np.float64).reshape(len(plans), len(names)) * signs
    return matrix


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """What a job must keep: its tokens within a time, at a rate, for an amount of money."""

    total_tokens: int | None = None
    """Needed for a deadline and a budget."""
    deadline_s: float | None = None
    """From the first to the last iteration."""
    min_tokens_per_s: float | None = None
    budget_usd: float | None = None

    def longest_iteration_s(self, job: JobSpec) -> float:
        """Longest iteration that keeps deadline and rate; infinite where neither is given.

        ``tokens_per_iteration · min(deadline_s / total_tokens, 1 / min_tokens_per_s)``, in s.
        """
        return min(self._by_deadline_s(job), self._by_rate_s(job))

    @property
    def is_empty(self) -> bool:
        """No limit is given."""
        return (self.deadline_s, self.min_tokens_per_s, self.budget_usd) == (None, None, None)

    def longest_on(self, num_gpus: Array, job: JobSpec, node: NodeSpec) -> Array:
        """Longest iteration (s) that keeps all limits, for numbers of GPUs.

        Of the budget ``budget_usd / cost of one second of an iteration``; 0 where it is given and
        there is no price.
        """
        longest = np.full(len(num_gpus), self.longest_iteration_s(job))
        if self.budget_usd is None:
            return longest
        spans = np.full(len(num_gpus), span_s(1.0, job))
        cost = cost_usd(gpu_hours(num_gpus, spans), node)
        return (
            np.zeros(len(num_gpus)) if cost is None else np.minimum(longest, self.budget_usd / cost)
        )

    def missed(self, iteration_s: float, cost_usd: float | None, job: JobSpec) -> tuple[Limit, ...]:
        """The limits that an iteration time (s) and a cost of the job (USD) do not keep.

        A budget is not kept where there is no price.
        """
        budget = math.inf if self.budget_usd is None else self.budget_usd
        cost = cost_usd if cost_usd is not None else 0.0 if self.budget_usd is None else math.inf
        missed: dict[Limit, bool] = {
            "deadline": iteration_s > self._by_deadline_s(job),
            "rate": iteration_s > self._by_rate_s(job),
            "budget": cost > budget,
        }
        return tuple(name for name, is_missed in missed.items() if is_missed)

    def missed_by(self, plan: "Plan") -> tuple[Limit, ...]:
        """The limits a plan does not keep."""
        return self.missed(plan.estimate.iter_time_s, plan.cost_usd(), plan.context.job)

    def meets(self, plan: "Plan") -> bool:
        """Whether a plan keeps all limits."""
        return not self.missed_by(plan)

    def _by_deadline_s(self, job: JobSpec) -> float:
        if self.deadline_s is None or self.total_tokens is None:
            return math.inf
        return job.tokens_per_iteration * (self.deadline_s / self.total_tokens)

    def _by_rate_s(self, job: JobSpec) -> float:
        if self.min_tokens_per_s is None:
            return math.inf
        return job.tokens_per_iteration / self.min_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What the best plans are, which limits they keep, and what the second table trades off."""

    objective: Objective = "iteration_s"
    limits: JobLimits = JobLimits()
    pareto: tuple[Objective, ...] = ()
    """Empty: a ladder of GPU counts instead."""


FASTEST = Aim()
"""The fastest plans."""
