"""Schedules priced from layer costs: bubbles, the head, the simulation, slices on every stage."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, with_traits

from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.pipeline import bubble_filled_s, layer_weight_gradient_s, makespan_s
from planner.cost.policies import layer_times
from planner.cost.stage_model import PricedStrategy, price
from planner.cost.stage_parts import stage_parameters
from planner.cost.step_terms import tied_embedding_s
from planner.cost.time_items import chunk_passes, chunk_times, simulated_makespan_s
from planner.cost.timeline import (
    ACTIVATIONS,
    OUTPUTS,
    TRANSIENT,
    WAIT,
    MemoryCurve,
    memory_curve,
    timeline,
)
from planner.schedules import dualpipe, zero_bubble
from planner.spec.strategy import Strategy

SCHEDULES = (
    ("1f1b", 1),
    ("1f1b", 2),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-interleaved", 2),
    ("zb-v", 2),
    ("dualpipe-v", 2),
    ("gpipe", 1),
)


def laid_out(
    context: Context, schedule: str, vpp: int, **layout: object
) -> tuple[Context, Strategy]:
    context = with_traits(context, support={"schedules": tuple(name for name, _ in SCHEDULES)})
    request = requested(pp=4, vpp=vpp, schedule=schedule, global_batch=16, **layout)
    return fill_in(context, request)


def subject(context: Context, schedule: str, vpp: int, **layout: object) -> PricedStrategy:
    return price(*laid_out(context, schedule, vpp, **layout))


@pytest.fixture
def context() -> Context:
    return context_of(model="llama3-8b", cluster="4xh100-sxm", global_batch=16, seq_len=2048)


def test_weight_gradients_are_part_of_backward(context: Context) -> None:
    _, strategy = laid_out(context, "zb-h1", 1)
    columns = strategy.columns()
    times = layer_times(stage_parameters(context, columns)).backward
    weight = layer_weight_gradient_s(context, columns)
    # Products with weights are most of a layer; their backward is half for inputs.
    assert 0.3 * times.whole_s < weight < 0.5 * times.whole_s


@pytest.mark.parametrize("waits", [True, False])
def test_equal_stages_have_each_schedules_own_bubble(context: Context, waits: bool) -> None:
    context = with_traits(context, overlap={"optimizer_waits_for_all_stages": waits})
    forward, backward = np.array([3.0]), np.array([7.0])
    layers, p = context.model.num_blocks, 4
    for schedule, vpp in SCHEDULES[2:7]:
        columns = laid_out(context, schedule, vpp)[1].columns()
        weight = layer_weight_gradient_s(context, columns)
        stage = [layers / p * value for value in (forward, backward - weight, weight)]
        one = zero_bubble.bubble_h_s(*stage, 1, in_step=waits)
        expected = {
            "zb-h1": one,
            "zb-h2": zero_bubble.bubble_h_s(*stage, 2, in_step=waits),
            "zb-interleaved": one / 2.0,
            "zb-v": zero_bubble.bubble_v_s(*stage, in_step=waits),
            # Eight stages of half the length on four devices.
            "dualpipe-v": dualpipe.bubble_s(*(t / 2.0 for t in stage), np.array(8.0)) / (p - 1),
        }[schedule]
        filled = bubble_filled_s(context, columns, forward, backward)
        slowest = layers / p * (forward + backward)
        total = makespan_s(columns, slowest, p * slowest, filled)
        assert total - 16 * slowest == pytest.approx((p - 1) * expected)


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_simulation_is_near_the_formula(context: Context, schedule: str, vpp: int) -> None:
    # Stages differ by embedding and head only, and the formula never flatters.
    one = subject(context, schedule, vpp)
    seconds = one.model.time_s(*one.split)
    slowest, total = seconds.max(axis=1), seconds.sum(axis=1)
    formula_s = float(makespan_s(one.columns, slowest, total, one.model.bubble_filled_s)[0])
    assert 0.85 * formula_s < simulated_makespan_s(one) <= 1.001 * formula_s
    assert (one.model.bubble_filled_s[0] == 0.0) == (schedule in ("1f1b", "gpipe"))
    # Its chunks hold the stages' work.
    times = chunk_times(one)
    work = sum(times.forward_s) + sum(times.backward_s) + sum(times.weight_s)
    links = one.strategy.pp * float(one.model.link_s[0])
    assert work == pytest.approx(float(total[0]) - links)


def test_v_shapes_put_the_head_beside_the_embedding(context: Context) -> None:
    stages = np.arange(4.0)[None, :]
    straight, folded = (subject(context, *which) for which in (("zb-h1", 1), ("zb-v", 2)))
    link = float(folded.model.link_s[0])
    ends = float((folded.model.first_s + folded.model.last_s)[0])
    assert folded.model.fixed_time_s(stages)[0] - link == pytest.approx([ends, 0, 0, 0])
    assert straight.model.fixed_time_s(stages)[0, 3] > straight.model.fixed_time_s(stages)[0, 1]
    peaks = estimate(*laid_out(context, "zb-v", 2)).memory
    assert peaks.stage == 0
    assert peaks.stage_peak_bytes[1:] == pytest.approx([peaks.stage_peak_bytes[1]] * 3)


def test_tied_embeddings_need_no_reduction_in_a_v() -> None:
    context = context_of(model="llama3-8b", cluster="4xh100-sxm", global_batch=16)
    context = replace(context, model=replace(context.model, tied_embeddings=True))
    straight, folded = (subject(context, *which) for which in (("zb-h1", 1), ("zb-v", 2)))
    assert tied_embedding_s(straight.parts)[0] > 0.0
    assert tied_embedding_s(folded.parts)[0] == 0.0
    assert folded.parts.last_params[0] < straight.parts.last_params[0]


def test_gpipe_holds_every_micro_batch(context: Context) -> None:
    one_f_one_b, gpipe = (
        estimate(*laid_out(context, name, 1)).memory.stage_peak_bytes for name in ("1f1b", "gpipe")
    )
    # 16 micro-batches instead of 4 on the first stage, instead of 1 on the last.
    per_micro_batch = (one_f_one_b[1] - one_f_one_b[2]) / 1.0
    assert gpipe[1] - one_f_one_b[1] == pytest.approx(13 * per_micro_batch)


def curves(one: PricedStrategy) -> list[MemoryCurve]:
    keeps = one.model.keeps_all_sent
    stages = zip(stage_ledgers(one), timeline(one).stages, strict=True)
    return [memory_curve(ledger, slices, keeps_sent=keeps) for ledger, slices in stages]


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_the_items_of_chunks_sum_to_their_stages_time_and_those_of_the_plan_to_its_own(
    context: Context, schedule: str, vpp: int
) -> None:
    one = subject(context, schedule, vpp, recompute="selective")
    items = estimate(one.context, one.strategy)
    assert sum(item.exposed_s for item in items.time.values()) == pytest.approx(items.iter_time_s)
    total = [0.0] * 4
    for each in chunk_passes(one):
        for seconds in (each.forward, each.backward, each.weight):
            assert min(seconds.values()) >= 0.0
            total[each.stage] += sum(seconds.values())
    assert total == pytest.approx(one.model.time_s(*one.split)[0].tolist())


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_slices_follow_each_other_and_sum_to_the_iteration(
    context: Context, schedule: str, vpp: int, waits: bool
) -> None:
    context = with_traits(context, overlap={"optimizer_waits_for_all_stages": waits})
    one = subject(context, schedule, vpp, recompute="selective")
    drawn = timeline(one)
    assert drawn.iteration_s == estimate(one.context, one.strategy).iter_time_s
    for slices in drawn.stages:
        ends = [slices[0].start_s, *(each.end_s for each in slices)]
        assert [each.start_s for each in slices] == pytest.approx(ends[:-1], abs=1e-9)
        length = slices[-1].end_s - slices[0].start_s
        assert length == pytest.approx(drawn.iteration_s, rel=1e-9)
        for each in slices:
            length = 0.0 if each.kind == WAIT else each.end_s - each.start_s
            assert sum(each.seconds.values()) == pytest.approx(length, rel=1e-9)


def test_every_micro_batch_runs_forward_and_backward_on_every_stage(context: Context) -> None:
    for slices in timeline(subject(context, "1f1b", 1)).stages:
        ran = [operation for each in slices for operation in each.slot]
        for kind in "FBW":
            assert sorted(o.micro_batch for o in ran if o.kind == kind) == list(range(16))


def test_the_tail_is_the_estimates(context: Context) -> None:
    one = subject(context, "1f1b", 1)
    items = estimate(one.context, one.strategy).time
    tail = {
        each.kind: each.end_s - each.start_s
        for slices in timeline(one).stages
        for each in slices
        if not each.slot and each.kind != WAIT
    }
    assert tail["step_overhead"] == pytest.approx(items["step_overhead"].exposed_s)
    assert "optimizer_step" in tail


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_the_highest_point_of_memory_is_the_peak_of_the_estimate(
    context: Context, schedule: str, vpp: int
) -> None:
    one = subject(context, schedule, vpp, recompute="selective")
    for engine in ("megatron", "torch"):
        each = price(with_traits(one.context, states={"pipeline_engine": engine}), one.strategy)
        peaks = each.model.peak_bytes(*each.split)[0].tolist()
        assert [ledger.peak_bytes for ledger in stage_ledgers(each)] == pytest.approx(peaks)
        assert [max(curve.total_bytes) for curve in curves(each)] == pytest.approx(peaks)


def test_the_first_of_four_1f1b_stages_fills_step_by_step(context: Context) -> None:
    curve = curves(subject(context, "1f1b", 1))[0]
    kept = curve.bytes_by_group[ACTIVATIONS]
    # Warm-up: one more of four micro-batches with every forward, nothing while it waits.
    assert [value / kept[0] for value in kept[:5]] == pytest.approx([1.0, 2.0, 3.0, 4.0, 4.0])
    assert kept[-1] == 0.0
    assert curve.bytes_by_group[TRANSIENT][:4] == (0.0,) * 4
    assert len(curve.times_s) == len(kept) + 1


def test_outputs_that_a_pipeline_keeps_gather_until_the_last_backward(context: Context) -> None:
    context = with_traits(context, states={"pipeline_engine": "torch"})
    for curve in curves(subject(context, "1f1b", 1)):
        kept = curve.bytes_by_group[OUTPUTS]
        full = kept.index(max(kept))
        assert list(kept[: full + 1]) == sorted(kept[: full + 1])
        until = max(place for place, value in enumerate(kept) if value)
        assert set(kept[full : until + 1]) == {max(kept)}
        assert kept[0] < max(kept)
        assert kept[-1] == 0.0
