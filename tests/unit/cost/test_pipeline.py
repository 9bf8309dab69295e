"""Schedules priced from layer costs: what they fill, where they put the head, the simulation."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, with_traits

from planner.answers.layout import requested, resolve
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.pipeline import bubble_filled_s, layer_weight_gradient_s, makespan_s
from planner.cost.policies import layer_times
from planner.cost.stage_model import PricedStrategy, price, stage_model
from planner.cost.stage_parts import stage_parameters
from planner.cost.step_terms import tied_embedding_s
from planner.cost.time_items import chunk_times, simulated_makespan_s
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


def any_schedule(context: Context) -> Context:
    return with_traits(context, support={"schedules": tuple(name for name, _ in SCHEDULES)})


def laid_out(context: Context, schedule: str, vpp: int, pp: int = 4) -> tuple[Context, Strategy]:
    request = requested(pp=pp, vpp=vpp, schedule=schedule, global_batch=16)
    return resolve(any_schedule(context), request)


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


def test_1f1b_and_gpipe_fill_nothing(context: Context) -> None:
    for schedule, vpp in (("1f1b", 2), ("gpipe", 1)):
        columns = laid_out(context, schedule, vpp)[1].columns()
        assert stage_model(context, columns).bubble_filled_s.tolist() == [0.0]


def subject(context: Context, schedule: str, vpp: int) -> PricedStrategy:
    return price(*laid_out(context, schedule, vpp))


def formula_s(subject: PricedStrategy) -> float:
    model, columns = subject.model, subject.columns
    seconds = model.time_s(*subject.split)
    slowest, total = seconds.max(axis=1), seconds.sum(axis=1)
    return float(makespan_s(columns, slowest, total, model.bubble_filled_s)[0])


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_simulation_is_near_the_formula(context: Context, schedule: str, vpp: int) -> None:
    # Stages differ by embedding and head only, and the formula never flatters.
    one = subject(context, schedule, vpp)
    simulated = simulated_makespan_s(one)
    assert 0.85 * formula_s(one) < simulated <= 1.001 * formula_s(one)


def test_simulated_chunks_hold_the_stages_work(context: Context) -> None:
    for schedule, vpp in SCHEDULES:
        one = subject(context, schedule, vpp)
        times = chunk_times(one)
        work = sum(times.forward_s) + sum(times.backward_s) + sum(times.weight_s)
        links = one.strategy.pp * float(one.model.link_s[0])
        assert work == pytest.approx(float(one.model.time_s(*one.split).sum()) - links)


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


def test_ledgers_add_up_to_the_peaks_under_every_schedule(context: Context) -> None:
    for schedule, vpp in SCHEDULES:
        one = subject(context, schedule, vpp)
        peaks = [ledger.peak_bytes for ledger in stage_ledgers(one)]
        assert peaks == pytest.approx(one.model.peak_bytes(*one.split)[0].tolist())
        items = estimate(one.context, one.strategy)
        total = sum(item.exposed_s for item in items.time.values())
        assert total == pytest.approx(items.iter_time_s)


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
