"""Switches that keep on the device what a plan moves to the host."""

from planner.cli import ask
from planner.cli.collector import Collector
from planner.plans.on_device import kept_on_device
from planner.plans.plan import Answer


def asked(*, forbid: list[str] | None = None, fix: list[str] | None = None, **own: str) -> Answer:
    words = {"framework": "accelerate", "profile": "current", "train": "qlora", **own}
    read = ask.read(
        "llama3.1-8b", "1xrtx4090", collector=Collector(), fix=fix, forbid=forbid, **words
    )
    return read.answered(1)


def test_a_loss_in_chunks_does_without_weights_on_the_host() -> None:
    found = asked()
    assert found.plans[0].strategy.offload != "none"
    kept = kept_on_device(found)
    assert kept is not None
    change, plan = kept
    assert "traits.kernels.loss=liger" in change.options
    assert plan.strategy.offload == "none"
    assert plan.estimate.memory.verdict == "fits"
    assert plan.weighed_s is None
    assert plan.context.traits.kernels.loss == "liger"


def test_plans_that_offload_nothing_need_no_switch() -> None:
    assert kept_on_device(asked(forbid=["offload"], profile="fused")) is None


def test_offload_that_was_asked_for_stays() -> None:
    found = asked(fix=["offload=optimizer+parameters:host"])
    assert kept_on_device(found) is None


def test_a_switch_and_a_smaller_optimizer_may_both_be_needed() -> None:
    read = ask.read(
        "llama3.2-1b", "1xrtx4090", collector=Collector(), framework="accelerate", profile="current"
    )
    kept = kept_on_device(read.answered(1))
    assert kept is not None
    assert {"traits.kernels.loss=liger", "adam-8bit"} <= {*kept[0].options}
