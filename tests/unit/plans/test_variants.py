"""Knobs of a layout: what is turned and gained, and what layers under different policies would."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.plans.plan import Plan, answer
from planner.plans.variants import Knob, mixed_gain, variants
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


def time_s(knob: Knob) -> float:
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
        assert knob.num_turned == len(knob.words.split(", "))
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
    gain = mixed_gain(plan, narrowed())
    assert gain is not None
    assert gain.plan.strategy.mixes_policies
    said = min([plan.estimate.iter_time_s, *map(time_s, variants(plan, narrowed()))])
    assert gain.time_change == pytest.approx(time_s(gain) / said - 1.0)
    assert gain.time_change < 0.0


def test_nothing_to_gain_is_not_said(best_of: Callable[[float], Plan]) -> None:
    plan = best_of(TIGHT_GIB)
    assert mixed_gain(best_of(6.0), narrowed()) is None
    assert mixed_gain(plan, narrowed("mixed-layers")) is None
    support = replace(plan.context.traits.support, policy_scope="layers")
    context = replace(plan.context, traits=replace(plan.context.traits, support=support))
    assert mixed_gain(replace(plan, context=context), narrowed()) is None
