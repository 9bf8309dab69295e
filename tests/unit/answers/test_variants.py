"""Variants of a layout, what offload is spared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of, small_model

from planner.answers.base import Answer, Plan
from planner.answers.layout import fill_in, requested
from planner.answers.plan import answer, answer_or_raise
from planner.answers.variants import PricedChange, Variant, resident_variant, savings, variants
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.units import GIB

PARTS = ["tp=1", "pp=2", "cp=1", "zero_stage=1", "micro_batch=1"]


def narrowed() -> Narrowing:
    return read_narrowing(fix=PARTS, forbid=["offload"])


@pytest.fixture(scope="module")
def best_of() -> Callable[[float], Plan]:

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


def asked(**own: Any) -> Answer:
    words = {"framework": "accelerate", "profile": "current", "train": "qlora", **own}
    read = Query.of("llama3.1-8b", "1xrtx4090", **words)
    return answer_or_raise(resolve(read), 1)


def test_a_switch_comes_before_weights_on_the_host() -> None:
    found = asked()
    first = found.plans[0]
    assert (first.strategy.offload, first.context.traits.kernels.loss) == ("none", "liger")
    assert first.estimate.memory.verdict == "fits"
    without = asked(settings=["loss=eager"]).plans[0]
    assert without.strategy.offload != "none"
    assert first.ranked_s <= without.ranked_s
    assert "with --set loss=linear; without: " in found.notes[-1].text


def test_a_switch_comes_before_further_axes() -> None:
    read = Query.of(
        "qwen2.5-32b", "2xdgx-h100", framework="accelerate", global_batch=16, seq_len=32768
    )
    first = answer_or_raise(resolve(read), 1).plans[0]
    assert (first.strategy.tp, first.strategy.cp) == (1, 1)


@pytest.mark.parametrize(
    "options", [{"forbid": ["offload"]}, {"fix": ["offload=optimizer+parameters:host"]}]
)
def test_no_smaller_optimizer_is_named_where_offload_is_stated(
    options: dict[str, list[str]],
) -> None:
    assert resident_variant(asked(**options)) is None


def test_a_switch_and_a_smaller_optimizer_may_both_be_needed() -> None:
    read = Query.of("llama3.2-1b", "1xrtx4090", framework="accelerate", profile="current")
    kept = resident_variant(answer_or_raise(resolve(read), 1))
    assert kept.words == "--optimizer adam-8bit"
    assert kept.plan.context.traits.kernels.loss == "liger"


H, TOKENS, VOCAB = 1024, 1024, 32000
"""The small model of the fixtures: 4 layers, ffn 4H, 16 heads, one sequence per micro-batch."""
FRAGMENTATION = 1.05


def savings_of(context: Context, **request: object) -> list[PricedChange]:
    context, strategy = fill_in(context, requested(**request))  # type: ignore[arg-type]
    return savings(context, strategy, estimate(context, strategy))


def by_change(found: list[PricedChange]) -> dict[str, PricedChange]:
    assert len({one.change for one in found}) == len(found)
    return {one.change: one for one in found}


def saved_bytes(one: PricedChange) -> float:
    assert one.saved_bytes is not None
    return one.saved_bytes


def test_full_recomputation_saves_all_but_the_inputs_by_hand() -> None:
    # 32h bytes and 4 per head a token in each of 4 layers become 2h; the loss stays the peak.
    one = by_change(savings_of(context_of(), dp=1))["recompute full in all layers"]
    expected = 4 * TOKENS * (30 * H + 4 * 16) * FRAGMENTATION
    assert one.saved_bytes == pytest.approx(expected)
    assert one.time_factor is not None
    assert 1.1 < one.time_factor < 1.4


def test_refused_changes_carry_the_rule_and_no_numbers() -> None:
    found = by_change(
        savings_of(context_of(framework="deepspeed", profile="megatron"), dp=4, pp=2, zero_stage=1)
    )
    for stage in (2, 3):
        one = found[f"ZeRO stage {stage}"]
        assert one.refused == "zero_stage_offered"
        assert f"ZeRO {stage} with pp 2" in one.why
        assert (one.peak_bytes, one.saved_bytes, one.time_factor) == (None, None, None)


def test_more_stages_keep_the_recomputed_layers_per_stage() -> None:
    context = context_of(model="llama3.1-70b", cluster="4xdgx-h100", global_batch=64)
    recompute = {"recompute": "full", "recompute_layers": 4}
    found = by_change(savings_of(context, tp=8, pp=1, **recompute))["pp 2"]
    direct, strategy = fill_in(context, requested(tp=8, pp=2, **recompute))
    assert found.peak_bytes == estimate(direct, strategy).memory.peak_bytes


def test_legal_changes_come_first_and_the_largest_saving_at_the_top() -> None:
    found = savings_of(context_of(), dp=8)
    legal = [one for one in found if one.refused is None]
    assert len(legal) >= 4
    assert [one.refused is None for one in found] == sorted(
        (one.refused is None for one in found), reverse=True
    )
    sizes = [saved_bytes(one) for one in legal]
    assert sizes == sorted(sizes, reverse=True)


def test_a_saving_is_the_difference_of_two_estimates() -> None:
    context, strategy = fill_in(context_of(), requested(dp=8, micro_batch=2))
    before = estimate(context, strategy)
    one = by_change(savings(context, strategy, before))["micro-batch 1"]
    after = estimate(context, replace(strategy, micro_batch=1, num_micro_batches=2))
    assert one.peak_bytes == after.memory.peak_bytes
    assert one.saved_bytes == before.memory.peak_bytes - after.memory.peak_bytes > 0
    # The batch is the same: seconds per token compare as seconds per iteration.
    assert one.time_factor == pytest.approx(after.iter_time_s / before.iter_time_s)


def test_changes_that_have_no_meaning_here_are_left_out() -> None:
    found = by_change(savings_of(context_of(), dp=8))
    assert "sequence parallelism" not in found
    assert "no interleaving" not in found
    assert "shard over all of dp" not in found
    assert not [name for name in found if name.startswith(("micro-batch", "ep "))]
