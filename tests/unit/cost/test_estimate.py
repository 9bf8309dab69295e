"""Ranges of an iteration: the class of runs a plan is in, and machines that differ."""

from dataclasses import replace

import pytest
from contexts import context_of

from planner.answers.layout import requested, resolve
from planner.cost.context import Context
from planner.cost.estimate import accuracy_regime, estimate, with_host_rate, with_products
from planner.spec.items import TimeRange
from planner.spec.strategy import Strategy
from planner.spec.training import FULL, Training

FLAT = {("", ""): TimeRange(accelerators=("b200-sxm", "h100-sxm"))}
LORA = Training(mode="lora", rank=8, targets=("q",))


def planned(
    model: str, cluster: str, framework: str = "deepspeed", **layout: object
) -> tuple[Context, Strategy]:
    """A plan whose range is that of machines alone."""
    context = context_of(model=model, cluster=cluster, framework=framework)
    traits = replace(context.traits, time_ranges=FLAT)
    return resolve(replace(context, traits=traits), requested(**layout))


@pytest.mark.parametrize(
    ("model", "offload", "training", "kind"),
    [
        ("llama3-8b", "none", FULL, "dense"),
        ("mixtral-8x7b", "none", FULL, "mixture"),
        ("mixtral-8x7b", "optimizer:host", FULL, "offload"),
        ("mixtral-8x7b", "optimizer:host", LORA, "frozen"),
    ],
)
def test_a_plan_is_of_the_first_kind_that_holds(
    model: str, offload: str, training: Training, kind: str
) -> None:
    context, strategy = planned(model, "1xdgx-h100", zero_stage=2)
    context = replace(context, traits=replace(context.traits, training=training))
    assert accuracy_regime(context, replace(strategy, offload=offload)) == (kind, "usual")


def test_ends_are_iterations_of_the_slowest_and_fastest_published_products() -> None:
    context, strategy = planned("llama3-8b", "1xdgx-b200", "megatron", zero_stage=1)
    gemm = context.cluster.accelerator.gemm
    found = estimate(context, strategy)
    for end, fraction in zip(found.machine_ends_s, (gemm.fastest, gemm.slowest), strict=True):
        own = estimate(with_products(context, fraction), strategy)
        assert end == pytest.approx(own.iter_time_s)
    assert found.iter_time_s_lower == found.machine_ends_s[0] < found.iter_time_s
    assert found.iter_time_s_upper == found.machine_ends_s[1] > found.iter_time_s
    assert found.regime.endswith("; machines differ")


def test_machines_that_nobody_found_to_differ_have_no_range() -> None:
    found = estimate(*planned("llama3-8b", "1xdgx-h100", "megatron", zero_stage=1))
    assert found.machine_ends_s == (found.iter_time_s, found.iter_time_s)
    assert found.iter_time_s_lower == found.iter_time_s_upper == found.iter_time_s
    assert "machines differ" not in found.regime


def test_ends_of_an_offloaded_optimizer_take_hosts_and_products_together() -> None:
    context, strategy = planned("llama3-8b", "1xdgx-b200", zero_stage=2, offload="optimizer:host")
    traits, gemm = context.traits.offload, context.cluster.accelerator.gemm
    fastest = with_host_rate(context, traits.host_optimizer_factors[1])
    own = estimate(with_products(fastest, gemm.fastest), strategy)
    assert estimate(context, strategy).machine_ends_s[0] == pytest.approx(own.iter_time_s)
