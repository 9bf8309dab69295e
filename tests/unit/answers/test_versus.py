"""How many times as fast one plan is as another, and how sure that is."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answers.base import Plan
from planner.answers.evidence import ratio_error
from planner.answers.layout import requested, resolve
from planner.answers.versus import speed, usd_per_token
from planner.cost.context import Context
from planner.cost.estimate import estimate

Contexts = Callable[..., Context]


def plan_of(context: Context, **layout: int) -> Plan:
    context, strategy = resolve(context, requested(**layout, global_batch=64))
    made = estimate(context, strategy)
    return Plan(context=context, strategy=strategy, estimate=made, is_optimal=False)


def test_layouts_of_one_job_are_known_as_published_pairs_are(context_of: Contexts) -> None:
    context = context_of(model="llama3-8b", cluster="1xdgx-h100", global_batch=64)
    first, second = plan_of(context, tp=2), plan_of(context, tp=2, micro_batch=2)
    found = speed(first, second)
    width = 1.0 + ratio_error(("micro-batch",)).widest
    assert found.value == pytest.approx(first.estimate.iter_time_s / second.estimate.iter_time_s)
    assert (found.lower, found.upper) == pytest.approx((found.value / width, found.value * width))
    back = speed(second, first)
    assert back.value * found.value == pytest.approx(1.0)
    assert back.lower * found.upper == pytest.approx(1.0)


def test_a_plan_beside_itself_has_no_error(context_of: Contexts) -> None:
    plan = plan_of(context_of(model="llama3-8b", cluster="1xdgx-h100", global_batch=64), tp=2)
    found = speed(plan, plan)
    assert (found.value, found.lower, found.upper) == (1.0, 1.0, 1.0)


def test_other_jobs_are_compared_by_tokens_and_err_independently(context_of: Contexts) -> None:
    context = context_of(model="llama3-8b", cluster="1xdgx-h100", global_batch=64)
    doubled = replace(context, job=replace(context.job, seq_len=2 * context.job.seq_len))
    first, second = plan_of(context, tp=2), plan_of(doubled, tp=2)
    found = speed(first, second)
    rates = [plan.estimate.tokens_per_s for plan in (first, second)]
    assert found.value == pytest.approx(rates[1] / rates[0])
    alone = first.estimate.iter_time_s_upper / first.estimate.iter_time_s
    assert alone < found.upper / found.value < alone * alone


def test_a_token_costs_its_share_of_the_nodes(context_of: Contexts) -> None:
    plan = plan_of(context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=64), tp=2)
    per_hour = plan.context.cluster.node.usd_per_hour
    assert per_hour
    found = usd_per_token(plan)
    assert found == pytest.approx(2 * per_hour / 3600.0 / plan.estimate.tokens_per_s)
