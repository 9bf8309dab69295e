"""Scaling curves: efficiency as defined, losses that sum to it, limits where they bite."""

from dataclasses import replace

import pytest
from contexts import context_of, with_traits

from planner.answers.plan import answer
from planner.answers.scale import (
    BITE_FRACTION,
    Scaling,
    gpus_for_deadline,
    limit_of,
    nothing_scales,
    scaling,
    shares,
)
from planner.catalog.clusters import load_cluster_of
from planner.cost.context import Context
from planner.errors import NothingFitsError
from planner.query.resolve import Case

SIZES = (8, 16, 64, 256)
DAY_S = 86400.0


def curve(context: Context, sizes: tuple[int, ...] = SIZES, *, is_weak: bool = False) -> Scaling:
    clusters = [load_cluster_of("dgx-h100", size) for size in sizes]
    return scaling(Case(contexts=(context,)), clusters, is_weak=is_weak)


@pytest.fixture(scope="module")
def strong() -> Scaling:
    return curve(context_of(model="llama3-8b", global_batch=64, seq_len=4096))


@pytest.fixture(scope="module")
def weak() -> Scaling:
    return curve(context_of(model="llama3-8b", global_batch=16, seq_len=4096), is_weak=True)


def test_gpt3_in_thirty_days_takes_some_760_gpus() -> None:
    # 6 x 175e9 x 300e9 FLOPs at 160 TFLOP/s per GPU
    assert gpus_for_deadline(6 * 175e9 * 300e9, 160e12, 30 * DAY_S) == pytest.approx(760, rel=0.001)


def test_gpt3_with_everything_recomputed_takes_1024_gpus_34_days() -> None:
    # arXiv 2104.04473, section 5.1: 8 per parameter and token, 140 TFLOP/s, 34 days
    flops = 8 * 175e9 * 300e9
    assert gpus_for_deadline(flops, 140e12, 34 * DAY_S) == pytest.approx(1024, rel=0.01)


def test_each_size_holds_the_plan_of_the_search_on_so_many_gpus(strong: Scaling) -> None:
    assert [plan.num_gpus for plan in strong.plans] == list(SIZES)
    for plan in strong.plans:
        best = answer([plan.context], top=1).plans[0]
        assert plan.num_gpus == best.num_gpus == plan.context.cluster.num_accelerators
        assert plan.estimate.iter_time_s == pytest.approx(best.estimate.iter_time_s, rel=1e-9)


def test_weak_scaling_keeps_the_batch_per_gpu(weak: Scaling) -> None:
    for plan in weak.plans:
        ratio = weak.base.estimate.iter_time_s / plan.estimate.iter_time_s
        assert plan.context.job.global_batch == 2 * plan.num_gpus
        assert weak.efficiency(plan) == pytest.approx(ratio)


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_losses_sum_to_what_the_efficiency_lacks(kind: str, request: pytest.FixtureRequest) -> None:
    found: Scaling = request.getfixturevalue(kind)
    for plan in found.plans:
        assert sum(shares(plan.estimate).values()) == pytest.approx(1.0)
        assert sum(found.losses(plan).values()) == pytest.approx(1.0 - found.efficiency(plan))
    assert found.limit(found.base) is None


def test_a_limit_bites_where_it_takes_so_much(strong: Scaling) -> None:
    bites = strong.bites()
    assert bites
    for name, sizes in bites.items():
        biting = dict(sizes)
        for plan in strong.plans:
            loss = strong.losses(plan)[name]
            assert (loss >= BITE_FRACTION) == (plan.num_gpus in biting)
            assert biting.get(plan.num_gpus, loss) == loss


def without_cp(context: Context) -> Context:
    """GPUs beyond the batch have no use then."""
    return with_traits(context, support={"features": ("tp", "pp", "vpp", "ep")})


def test_the_batch_is_exhausted_where_every_replica_runs_one_micro_batch() -> None:
    found = curve(without_cp(context_of(model="llama3-8b", global_batch=8, seq_len=4096)))
    start = found.exhausted_from()
    assert start is not None
    for plan in found.plans:
        if plan.num_gpus >= start:
            assert plan.strategy.num_micro_batches == 1


def test_sizes_without_a_plan_say_why() -> None:
    few = curve(without_cp(context_of(model="llama3-8b", global_batch=1, seq_len=4096)), (8, 4096))
    assert [plan.num_gpus for plan in few.plans] == [8]
    assert [size.why for size in few.without] == ["no legal layout uses all of them"]
    big = curve(context_of(model="llama3.1-405b", global_batch=64, seq_len=4096), (8, 1024))
    assert [size.why for size in big.without] == ["does not fit in memory"]
    assert big.base.num_gpus == 1024
    assert big.efficiency(big.base) == 1.0


def test_nothing_at_any_size_is_an_error_that_names_them() -> None:
    context = context_of(model="llama3.1-405b", global_batch=64)
    found = curve(context, (2, 4))
    error = nothing_scales(context, found)
    assert isinstance(error, NothingFitsError)
    assert "2 GPUs: does not fit" in str(error)


def test_the_fewest_gpus_that_meet_a_deadline() -> None:
    context = context_of(model="llama3-8b", global_batch=64, seq_len=4096)
    found = curve(replace(context, job=replace(context.job, total_tokens=10**10)))
    times = {plan.num_gpus: plan.total_s() or 0.0 for plan in found.plans}
    plan = found.finishes_in(1.01 * times[64])
    assert plan.strategy.num_gpus == 64
    assert found.finishes_in(0.5 * min(times.values())) is None


@pytest.mark.parametrize(
    ("item", "limit"),
    [
        ("pipeline.bubble", "bubble"),
        ("data_parallel", "DP"),
        ("sharding.gather_and_reduce", "DP"),
        ("context_parallel", "TP"),
        ("recompute.tensor_parallel", "recompute"),
        ("compute.gemm", "compute"),
        ("optimizer_step", "other"),
    ],
)
def test_items_by_limit(item: str, limit: str) -> None:
    assert limit_of(item) == limit
