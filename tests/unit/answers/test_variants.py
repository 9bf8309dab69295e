"""Variants of a layout, what layers under different policies gain, what offload is spared."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answers.base import Answer, Plan
from planner.answers.plan import answer, answered
from planner.answers.variants import Variant, mixed_policy_gain, resident_variant, variants
from planner.cost.context import Context
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.units import GIB

PARTS = ["tp=1", "pp=2", "cp=1", "zero_stage=1", "micro_batch=1"]
TIGHT_GIB = 3.5


def narrowed(*allow: str) -> Narrowing:
    return read_narrowing(fix=PARTS, forbid=["offload"], allow=allow)


@pytest.fixture(scope="module")
def best_of(
    context_of: Callable[..., Context], small_model: Callable[..., object]
) -> Callable[[float], Plan]:
    """The first plan of a small question on GPUs of so many GiB."""

    def best(hbm_gib: float) -> Plan:
        model = small_model(num_layers=8, max_seq_len=4096)
        context = context_of(model=model, hbm_bytes=hbm_gib * GIB, seq_len=4096, global_batch=32)
        return answer([context], top=1, narrowing=narrowed()).plans[0]

    return best


def time_s(knob: Variant) -> float:
    return knob.plan.estimate.iter_time_s


def test_variants_are_of_one_layout_fastest_first(best_of: Callable[[float], Plan]) -> None:
    plan = best_of(6.0)
    knobs = variants(plan, narrowed())
    assert len(knobs) > 3
    assert [time_s(knob) for knob in knobs] == sorted(time_s(knob) for knob in knobs)
    for knob in knobs:
        own, other = plan.strategy, knob.plan.strategy
        assert other != own
        assert all(getattr(own, name) == getattr(other, name) for name in LAYOUT)
        assert knob.time_change == pytest.approx(time_s(knob) / plan.estimate.iter_time_s - 1.0)
        assert knob.num_changed == len(knob.words.split(", "))
        assert ("vpp" in knob.words) == (own.vpp != other.vpp)
        assert ("recomput" in knob.words) == (own.recompute != other.recompute)


def test_what_is_fixed_is_no_knob(best_of: Callable[[float], Plan]) -> None:
    plan = best_of(6.0)
    fixed = replace(narrowed(), values={**narrowed().values, "vpp": (plan.strategy.vpp,)})
    words = [knob.words for knob in variants(plan, fixed)]
    assert words
    assert not any("vpp" in text or "micro-batch" in text for text in words)


def test_different_policies_gain_over_every_variant(best_of: Callable[[float], Plan]) -> None:
    plan = best_of(TIGHT_GIB)
    gain = mixed_policy_gain(plan, narrowed())
    assert gain is not None
    assert gain.plan.strategy.mixes_policies
    said = min([plan.estimate.iter_time_s, *map(time_s, variants(plan, narrowed()))])
    assert gain.time_change == pytest.approx(time_s(gain) / said - 1.0)
    assert gain.time_change < 0.0


def test_nothing_to_gain_is_not_said(best_of: Callable[[float], Plan]) -> None:
    plan = best_of(TIGHT_GIB)
    assert mixed_policy_gain(best_of(6.0), narrowed()) is None
    assert mixed_policy_gain(plan, narrowed("mixed-layers")) is None
    support = replace(plan.context.traits.support, policy_scope="layers")
    context = replace(plan.context, traits=replace(plan.context.traits, support=support))
    assert mixed_policy_gain(replace(plan, context=context), narrowed()) is None


def asked(*, forbid: list[str] | None = None, fix: list[str] | None = None, **own: str) -> Answer:
    words = {"framework": "accelerate", "profile": "current", "train": "qlora", **own}
    read = Query.of("llama3.1-8b", "1xrtx4090", fix=fix, forbid=forbid, **words)
    return answered(resolve(read), 1)


def test_a_loss_in_chunks_does_without_weights_on_the_host() -> None:
    found = asked()
    assert found.plans[0].strategy.offload != "none"
    kept = resident_variant(found)
    assert kept is not None
    assert "traits.kernels.loss=liger" in kept.words
    assert kept.plan.strategy.offload == "none"
    assert kept.plan.estimate.memory.verdict == "fits"
    assert kept.plan.context.traits.kernels.loss == "liger"


def test_plans_that_offload_nothing_need_no_switch() -> None:
    assert resident_variant(asked(forbid=["offload"], profile="fused")) is None


def test_offload_that_was_asked_for_stays() -> None:
    found = asked(fix=["offload=optimizer+parameters:host"])
    assert resident_variant(found) is None


def test_a_switch_and_a_smaller_optimizer_may_both_be_needed() -> None:
    read = Query.of("llama3.2-1b", "1xrtx4090", framework="accelerate", profile="current")
    kept = resident_variant(answered(resolve(read), 1))
    assert kept is not None
    assert {"traits.kernels.loss=liger", "adam-8bit"} <= {*kept.words.split()}
