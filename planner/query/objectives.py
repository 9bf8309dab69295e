"""Objectives of plans (time, GPUs, money, energy, headroom) and the limits of a job.

Functions of numbers or columns take and return the same shape. Cost and energy are those of the
whole job, or of NUM_SAMPLE_ITERATIONS iterations where its tokens are not given.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from planner.errors import InputError
from planner.spec.cluster import AcceleratorSpec, ClusterSpec, NodeSpec
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy
from planner.units import GIB, HOUR_S, Array, format_energy

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.cost.estimate import Estimate
    from planner.search.ranking.goals import Order

NUM_SAMPLE_ITERATIONS = 1000.0
ENERGY_INCLUDES = (
    "accelerators at their rated board power (TDP) all the time; without hosts, network, storage, "
    "cooling and power conversion"
)
COST_INCLUDES = (
    "nodes at their hourly price all the time; without storage, traffic, idle time and restarts"
)
Column = TypeVar("Column", float, Array)
Limit = Literal["deadline", "rate", "budget"]


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A layout with its time and memory, and what the job takes on it."""

    context: "Context"
    strategy: Strategy
    estimate: "Estimate"

    def total_s(self) -> float | None:
        """Seconds of the whole job; None without a token budget."""
        return self.span_s() if self.context.job.total_tokens else None

    def span_s(self) -> float:
        """Seconds of the whole job, or of 1,000 iterations without a token budget."""
        return job_time_s(self.estimate.iter_time_s, self.context.job)

    def gpu_hours(self) -> float:
        """GPU-hours of the same span."""
        return gpu_hours(float(self.strategy.num_gpus), self.span_s())

    def amounts(self) -> dict[str, float | None]:
        """Money and energy of the same span; None where hwdb lacks a figure."""
        hours, cluster = self.gpu_hours(), self.context.cluster
        return {name: amount.of_hours(hours, cluster) for name, amount in AMOUNTS.items()}

    def cost_usd(self) -> float | None:
        """Price of the same span; None where hwdb has no price for the node."""
        return self.amounts()["cost_usd"]


def job_time_s(iteration_s: Column, job: JobSpec) -> Column:
    """Seconds of the job: ``iteration_s · total_tokens / tokens_per_iteration``.

    A last step that is not full counts in part. Excludes start-up, checkpoints, evaluation,
    failures and restarts. Without a token budget the span is NUM_SAMPLE_ITERATIONS iterations.
    """
    whole = job.total_tokens and job.total_tokens / job.tokens_per_iteration
    return (whole or NUM_SAMPLE_ITERATIONS) * iteration_s


def gpu_hours(num_gpus: Column, seconds: Column) -> Column:
    """GPU-hours: ``num_gpus · seconds / 3600``; GPUs of the plan, none that stand idle."""
    return num_gpus * seconds / HOUR_S


def cost_usd(hours: Column, node: NodeSpec) -> Column | None:
    """USD: ``gpu_hours / GPUs per node · price of a node-hour``; None where hwdb has no price.

    Prices are on-demand list prices with their source (``planner show hardware NODE``); see
    COST_INCLUDES for what is left out.
    """
    if node.usd_per_hour is None:
        return None
    return hours / node.num_accelerators * node.usd_per_hour


def energy_kwh(hours: Column, accelerator: AcceleratorSpec) -> Column | None:
    """kWh: ``gpu_hours · tdp_w / 1000``, an upper bound for the accelerators alone.

    Power is the board's rated power of hwdb (``tdp_w``; of a few TPUs the published mean), which
    training does not always draw; see ENERGY_INCLUDES for what is left out. None where the
    accelerator has no such figure.
    """
    return None if accelerator.tdp_w is None else hours * accelerator.tdp_w / 1000.0


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Quantity computed from GPU-hours."""

    of_hours: Callable[[float, ClusterSpec], float | None]  # None: hwdb lacks a figure
    part: Callable[[ClusterSpec], NodeSpec | AcceleratorSpec]  # in whose file that figure is
    key: str  # there
    lacking: str  # what to do about it where it is missing
    column: str
    is_always_shown: bool = False  # in tables of plans, not only where it is traded off
    text: Callable[[float], str] | None = None  # with its unit; None: a count
    includes: str
    basis: Callable[[ClusterSpec], str]  # what stands behind it, in a sentence

    def of(self, plan: Priced) -> float:
        """The amount that a plan takes; InputError where hwdb lacks a figure."""
        cluster = plan.context.cluster
        value = self.of_hours(plan.gpu_hours(), cluster)
        if value is None:
            raise InputError.single(self.part(cluster).name, self.key, self.lacking)
        return value


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One thing that plans are ranked by or that a frontier trades off."""

    word: str  # how a user names it
    title: str  # in the title of a frontier
    plans: str  # what its best plans are; of the first one's GPUs, or of the headroom they leave
    beaten: str  # by what plans may exist that were not proved worse, by a gap
    order: "Order"  # how the search ranks
    value: Callable[[Priced], float]  # raises InputError where hwdb lacks a figure
    sign: float = 1.0  # -1 where more is better
    needs_limit: bool = False  # without one the answer is known before a search
    amount: Amount | None = None


_COST = Amount(
    of_hours=lambda hours, cluster: cost_usd(hours, cluster.node),
    part=attrgetter("node"),
    key="price.usd_per_hour",
    lacking="no price, so no cost; give one in the node's file, or as usd_per_hour under "
    "overrides of a cluster file",
    column="USD",
    is_always_shown=True,
    includes=COST_INCLUDES,
    basis=lambda cluster: (
        f"USD: no price of {cluster.node.name} is known."
        if cluster.node.usd_per_hour is None
        else f"USD: {COST_INCLUDES}; {cluster.node.usd_per_hour:g} per node-hour "
        f"({cluster.node.price_note})."
    ),
)
_ENERGY = Amount(
    of_hours=lambda hours, cluster: energy_kwh(hours, cluster.accelerator),
    part=attrgetter("accelerator"),
    key="tdp_w",
    lacking="no power figure, so no energy; give one in the accelerator's file, or as tdp_w under "
    "overrides of a cluster file",
    column="energy",
    text=format_energy,
    includes=ENERGY_INCLUDES,
    basis=lambda cluster: (
        f"energy: no power figure of {cluster.accelerator.name} is known (tdp_w)."
        if cluster.accelerator.tdp_w is None
        else f"energy: {ENERGY_INCLUDES}; {cluster.accelerator.tdp_w:g} W each."
    ),
)
# By the name in files. Amounts are GPU seconds times a constant of the cluster and the job;
# headroom is what is left of the usable HBM, the margin taken off, on the stage that is fullest at
# its peak, in whole GiB, and the fastest plans that leave the most of it are found by bisection.
OBJECTIVES: Mapping[str, Objective] = {
    "iteration_s": Objective(
        word="time",
        title="time",
        plans="Best layouts on {gpus}",
        beaten="a plan up to {gap} faster may exist",
        order="at_most",
        value=lambda plan: plan.estimate.iter_time_s,
    ),
    "gpus": Objective(
        word="gpus",
        title="GPUs",
        plans="Plans on the fewest GPUs",
        beaten="plans on fewer GPUs, or up to {gap} faster, may exist",
        order="fewest_gpus",
        value=lambda plan: float(plan.strategy.num_gpus),
        needs_limit=True,
    ),
    "cost_usd": Objective(
        word="cost",
        title="cost",
        plans="Cheapest plans",
        beaten="a plan up to {gap} cheaper may exist",
        order="gpu_seconds",
        value=_COST.of,
        amount=_COST,
    ),
    "energy_kwh": Objective(
        word="energy",
        title="energy",
        plans="Plans of least energy",
        beaten="a plan up to {gap} less may exist",
        order="gpu_seconds",
        value=_ENERGY.of,
        amount=_ENERGY,
    ),
    "headroom_bytes": Objective(
        word="headroom",
        title="headroom (whole GiB)",
        plans="Fastest plans that leave {headroom_gib} GiB of HBM, the most that can be left",
        beaten="better plans may exist",
        order="fastest",
        # Rounding may leave a little less than whole ones.
        value=lambda plan: GIB * math.floor(plan.estimate.memory.headroom_bytes / GIB + 1e-6),
        sign=-1.0,
    ),
}
WORDS = {one.word: name for name, one in OBJECTIVES.items()}
AMOUNTS = {name: one.amount for name, one in OBJECTIVES.items() if one.amount}


def objective_matrix(plans: Sequence[Priced], names: Sequence[str] = tuple(OBJECTIVES)) -> Array:
    """Plans x objectives, all to be minimised (headroom negated), for ``non_dominated``."""
    traded = [OBJECTIVES[name] for name in names]
    values = [one.sign * one.value(plan) for plan in plans for one in traded]
    shape = (len(plans), len(names))
    matrix: Array = np.reshape(np.array(values, dtype=np.float64), shape)
    return matrix


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """Limits of a job: its tokens within a time, at a rate, for an amount of money."""

    total_tokens: int | None = None
    """Needed for a deadline and a budget."""
    deadline_s: float | None = None
    """Limit on the seconds from the first to the last iteration."""
    min_tokens_per_s: float | None = None
    budget_usd: float | None = None

    def longest_iteration_s(self, job: JobSpec) -> float:
        """Longest iteration that keeps deadline and rate; infinite where neither is given.

        ``tokens_per_iteration · min(deadline_s / total_tokens, 1 / min_tokens_per_s)``, in s.
        """
        return min(self._longest_s(job).values())

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
        spans = np.full(len(num_gpus), job_time_s(1.0, job))
        cost = cost_usd(gpu_hours(num_gpus, spans), node)
        affordable = 0.0 if cost is None else self.budget_usd / cost
        kept: Array = np.minimum(longest, affordable)
        return kept

    def missed_by(self, plan: Priced) -> tuple[Limit, ...]:
        """The limits a plan does not keep; a budget is not kept where there is no price."""
        job, cost = plan.context.job, plan.cost_usd()
        iteration_s, budget = plan.estimate.iter_time_s, self.budget_usd
        missed = {name: iteration_s > most_s for name, most_s in self._longest_s(job).items()}
        missed["budget"] = budget is not None and (cost is None or cost > budget)
        return tuple(name for name, is_missed in missed.items() if is_missed)

    def _longest_s(self, job: JobSpec) -> dict[Limit, float]:
        """Longest iteration that keeps deadline and rate, each by itself."""
        found: dict[Limit, float] = {"deadline": math.inf, "rate": math.inf}
        if self.deadline_s is not None and self.total_tokens is not None:
            found["deadline"] = job.tokens_per_iteration * (self.deadline_s / self.total_tokens)
        if self.min_tokens_per_s is not None:
            found["rate"] = job.tokens_per_iteration / self.min_tokens_per_s
        return found


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Objective of the best plans, limits on them, and what the second table trades off."""

    objective: str = "iteration_s"
    limits: JobLimits = JobLimits()
    pareto: tuple[str, ...] = ()  # empty: a ladder of GPU counts instead


FASTEST = Aim()  # the fastest plans
