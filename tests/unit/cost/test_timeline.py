"""The slices of an iteration: they fill it on every stage, and hold no more than the estimate."""

import pytest
from contexts import context_of, with_traits

from planner.answers.layout import requested, resolve
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.stage_model import PricedStrategy, price
from planner.cost.time_items import chunk_passes
from planner.cost.timeline import (
    ACTIVATIONS,
    OUTPUTS,
    TRANSIENT,
    WAIT,
    MemoryCurve,
    memory_curve,
    timeline,
)

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


def subject(context: Context, schedule: str, vpp: int, **layout: object) -> PricedStrategy:
    context = with_traits(context, support={"schedules": tuple(name for name, _ in SCHEDULES)})
    words = {"pp": 4, "global_batch": 16, "recompute": "selective", **layout}
    return price(*resolve(context, requested(vpp=vpp, schedule=schedule, **words)))


@pytest.fixture
def context() -> Context:
    return context_of(model="llama3-8b", cluster="4xh100-sxm", global_batch=16, seq_len=2048)


def curves(one: PricedStrategy) -> list[MemoryCurve]:
    keeps = one.model.keeps_all_sent
    stages = zip(stage_ledgers(one), timeline(one).stages, strict=True)
    return [memory_curve(ledger, slices, keeps_sent=keeps) for ledger, slices in stages]


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_the_items_of_chunks_sum_to_their_stages_time(
    context: Context, schedule: str, vpp: int
) -> None:
    one = subject(context, schedule, vpp)
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
    one = subject(context, schedule, vpp)
    drawn = timeline(one)
    assert drawn.iteration_s == estimate(one.context, one.strategy).iter_time_s
    for slices in drawn.stages:
        ends = [slices[0].start_s, *(each.end_s for each in slices)]
        assert [each.start_s for each in slices] == pytest.approx(ends[:-1], abs=1e-9)
        length = slices[-1].end_s - slices[0].start_s
        assert length == pytest.approx(drawn.iteration_s, rel=1e-9)
        for each in slices:
            inside = sum(each.seconds.values())
            assert inside == pytest.approx(
                0.0 if each.kind == WAIT else each.end_s - each.start_s, rel=1e-9
            )


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
    one = subject(context, schedule, vpp)
    for keeps in ("no", "all"):
        each = price(with_traits(one.context, states={"keeps_stage_outputs": keeps}), one.strategy)
        peaks = each.model.peak_bytes(*each.split)[0].tolist()
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
    context = with_traits(context, states={"keeps_stage_outputs": "all"})
    for curve in curves(subject(context, "1f1b", 1)):
        kept = curve.bytes_by_group[OUTPUTS]
        full = kept.index(max(kept))
        assert list(kept[: full + 1]) == sorted(kept[: full + 1])
        until = max(place for place, value in enumerate(kept) if value)
        assert set(kept[full : until + 1]) == {max(kept)}
        assert kept[0] < max(kept)
        assert kept[-1] == 0.0
