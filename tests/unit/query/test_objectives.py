"""Objectives by hand, and the limits of a job."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from contexts import context_of

from planner.answers.base import Plan
from planner.answers.plan import answer
from planner.errors import InputError
from planner.query.objectives import (
    NUM_SAMPLE_ITERATIONS,
    OBJECTIVES,
    Aim,
    JobLimits,
    cost_usd,
    energy_kwh,
    gpu_hours,
    job_time_s,
    objective_matrix,
)
from planner.query.options import OPTIONS
from planner.search.ranking.goals import non_dominated
from planner.spec.job import JobSpec
from planner.units import GIB

JOB = JobSpec(global_batch=512, seq_len=8192, total_tokens=2**40)
"""2**22 tokens per iteration: 2**18 iterations."""


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    context = context_of(model="llama3-8b", cluster="4xdgx-h100", global_batch=64, seq_len=4096)
    context = replace(context, job=replace(context.job, total_tokens=10**10))
    found = answer([context], top=3, aim=Aim(pareto=("iteration_s", "gpus"))).pareto
    assert found
    return found


def test_a_job_by_hand() -> None:
    # 2**40 tokens are 2**18 iterations of 2**22; 1,024 GPUs for two hours are 2,048 GPU-hours
    assert job_time_s(10.0, JOB) == 2**18 * 10.0
    assert job_time_s(10.0, replace(JOB, total_tokens=None)) == NUM_SAMPLE_ITERATIONS * 10.0
    assert gpu_hours(1024.0, 7200.0) == 2048.0


def test_cost_and_energy_by_hand() -> None:
    cluster = context_of().cluster
    assert cluster.node.usd_per_hour == 25.6
    assert cluster.accelerator.tdp_w == 700.0
    assert cost_usd(1000.0, cluster.node) == pytest.approx(3200.0)
    assert energy_kwh(1000.0, cluster.accelerator) == pytest.approx(700.0)
    assert cost_usd(1000.0, replace(cluster.node, usd_per_hour=None)) is None


def test_no_price_is_refused_with_its_key(plans: tuple[Plan, ...]) -> None:
    plan = plans[0]
    cluster = plan.context.cluster
    cluster = replace(cluster, node=replace(cluster.node, usd_per_hour=None))
    free = replace(plan, context=replace(plan.context, cluster=cluster))
    with pytest.raises(InputError, match=r"^dgx-h100::price.usd_per_hour: no price"):
        OBJECTIVES["cost_usd"].value(free)


def test_objectives_of_a_plan_are_its_own_figures(plans: tuple[Plan, ...]) -> None:
    for plan in plans:
        assert OBJECTIVES["iteration_s"].value(plan) == plan.estimate.iter_time_s
        assert OBJECTIVES["gpus"].value(plan) == plan.strategy.num_gpus
        assert OBJECTIVES["cost_usd"].value(plan) == plan.cost_usd()
        assert OBJECTIVES["energy_kwh"].value(plan) == pytest.approx(0.7 * plan.gpu_hours())
        memory = plan.estimate.memory
        left = memory.usable_bytes - max(memory.stage_peak_bytes)
        whole = OBJECTIVES["headroom_bytes"].value(plan)
        assert whole - 1.0 <= left < whole + GIB


def test_the_option_offers_every_objective() -> None:
    assert all(f" {one.word}" in OPTIONS["objective"].help for one in OBJECTIVES.values())


def test_the_matrix_is_minimised_in_all_columns(plans: tuple[Plan, ...]) -> None:
    matrix = objective_matrix(plans)
    assert matrix.shape == (len(plans), len(OBJECTIVES))
    assert matrix[:, -1].tolist() == [-OBJECTIVES["headroom_bytes"].value(plan) for plan in plans]
    kept = non_dominated(objective_matrix(plans, ["gpus", "iteration_s"]))
    assert kept.tolist() == list(range(len(plans)))
    assert objective_matrix([]).shape == (0, len(OBJECTIVES))


def test_the_longest_iteration_by_hand() -> None:
    # 2**40 tokens in 2**20 s are 2**20 tokens/s: 4 s for 2**22 tokens
    deadline = JobLimits(total_tokens=2**40, deadline_s=2.0**20)
    rate = JobLimits(total_tokens=2**40, min_tokens_per_s=2.0**21)
    both = replace(deadline, min_tokens_per_s=2.0**21)
    assert deadline.longest_iteration_s(JOB) == 4.0
    assert rate.longest_iteration_s(JOB) == both.longest_iteration_s(JOB) == 2.0
    assert JobLimits(total_tokens=1).longest_iteration_s(JOB) == math.inf


def test_each_limit_is_missed_by_its_own() -> None:
    def missed(limits: JobLimits, iter_time_s: float, cost_usd: float | None) -> tuple[str, ...]:
        priced: Any = SimpleNamespace(
            context=SimpleNamespace(job=JOB),
            estimate=SimpleNamespace(iter_time_s=iter_time_s),
            cost_usd=lambda: cost_usd,
        )
        return limits.missed_by(priced)

    limits = JobLimits(
        total_tokens=2**40, deadline_s=2.0**20, min_tokens_per_s=2.0**21, budget_usd=100.0
    )
    assert missed(limits, 2.0, 100.0) == ()
    assert missed(limits, 2.1, 100.0) == ("rate",)
    assert missed(limits, 4.1, 100.1) == ("deadline", "rate", "budget")
    assert missed(limits, 2.0, None) == ("budget",)
    assert missed(JobLimits(total_tokens=1), 1e9, None) == ()


def test_a_plan_meets_its_own_time_and_cost_and_nothing_less(plans: tuple[Plan, ...]) -> None:
    for plan in plans:
        time_s, cost = plan.total_s(), plan.cost_usd()
        assert time_s is not None
        assert cost is not None
        own = JobLimits(total_tokens=10**10, deadline_s=time_s * (1 + 1e-9), budget_usd=cost)
        assert not own.missed_by(plan)
        assert replace(own, deadline_s=0.999 * time_s).missed_by(plan)
        assert replace(own, budget_usd=0.999 * cost).missed_by(plan)
