"""The smallest size that does a job: against a search at every size, and the walk between."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from planner.catalog.clusters import load_cluster_of
from planner.cost.context import Context
from planner.errors import NothingFitsError
from planner.plans.objectives import JobLimits
from planner.plans.scaling import fastest_on_all
from planner.plans.sizing import (
    Size,
    Sizing,
    in_own_cluster,
    nearest_sizes,
    nothing_at_any_size,
    sizing,
    useful_sizes,
)

Contexts = Callable[..., Context]
DAY_S = 86400.0
TOKENS = 10**11
CLUSTER_OF = partial(load_cluster_of, "dgx-h100")
ANY_TIME = JobLimits(total_tokens=TOKENS, deadline_s=1e12)


@pytest.fixture(scope="module")
def context(context_of: Contexts) -> Context:
    found = context_of(model="llama3-8b", cluster="16xdgx-h100", global_batch=48, seq_len=4096)
    return replace(found, job=replace(found.job, total_tokens=TOKENS))


@pytest.fixture(scope="module")
def all_sizes(context: Context) -> tuple[Size, ...]:
    return sizing([context], ANY_TIME, CLUSTER_OF).sizes


def size_for(context: Context, all_sizes: tuple[Size, ...], row: int, factor: float) -> Sizing:
    """The sizing with a deadline at ``factor`` times what the size in this row takes."""
    limits = replace(ANY_TIME, deadline_s=factor * all_sizes[row].total_s)
    return sizing([context], limits, CLUSTER_OF)


def test_sizes_are_faster_than_all_smaller_ones(all_sizes: tuple[Size, ...]) -> None:
    assert len(all_sizes) > 5
    for small, large in pairwise(all_sizes):
        assert small.num_gpus < large.num_gpus
        assert small.iteration_s > large.iteration_s


@pytest.mark.parametrize("row", [-1, -3, -5])
def test_no_smaller_cluster_keeps_the_deadline(
    row: int, context: Context, all_sizes: tuple[Size, ...]
) -> None:
    found = size_for(context, all_sizes, row, 1.02)
    chosen = found.chosen
    assert chosen is not None
    assert chosen.total_s <= (found.limits.deadline_s or 0.0)
    for gpus in range(8, chosen.num_gpus, 8):
        plan, _, _ = fastest_on_all([replace(context, cluster=CLUSTER_OF(gpus))])
        assert plan is None or not found.limits.meets(plan)


def test_the_plan_is_that_of_a_cluster_of_its_own(
    context: Context, all_sizes: tuple[Size, ...]
) -> None:
    chosen = size_for(context, all_sizes, -2, 1.001).chosen
    assert chosen is not None
    assert chosen.context.cluster.num_accelerators == chosen.num_gpus
    assert chosen.num_nodes == chosen.num_gpus // 8
    plan, _, _ = fastest_on_all([chosen.context])
    assert plan is not None
    assert chosen.iteration_s == pytest.approx(plan.estimate.iter_time_s, rel=1e-9)
    assert chosen.plan.cost_usd() == pytest.approx(chosen.cost_usd)
    assert chosen.plan.gpu_hours() == pytest.approx(chosen.gpu_hours)


def test_a_rate_is_a_deadline_by_another_name(
    context: Context, all_sizes: tuple[Size, ...]
) -> None:
    wanted = all_sizes[-3]
    limits = JobLimits(total_tokens=TOKENS, min_tokens_per_s=0.999 * wanted.tokens_per_s)
    chosen = sizing([context], limits, CLUSTER_OF).chosen
    assert chosen is not None
    assert chosen.num_gpus <= wanted.num_gpus
    assert chosen.tokens_per_s >= 0.999 * wanted.tokens_per_s


def test_a_deadline_nobody_keeps_names_the_fastest(
    context: Context, all_sizes: tuple[Size, ...]
) -> None:
    found = size_for(context, all_sizes, -1, 0.9)
    assert found.chosen is None
    assert [size.num_gpus for size in found.nearest] == [all_sizes[-1].num_gpus]


def test_a_larger_cluster_that_does_it_is_named(
    context: Context, all_sizes: tuple[Size, ...]
) -> None:
    limits = replace(ANY_TIME, deadline_s=0.9 * all_sizes[-1].total_s)
    found = sizing([context], limits, CLUSTER_OF, larger=CLUSTER_OF(1024))
    assert found.enough is not None
    assert found.enough.num_gpus > 128
    assert not found.enough.missed(limits)
    same = sizing([context], limits, CLUSTER_OF, larger=context.cluster)
    assert same.enough is None


def fake(context: Context, gpus: int, iteration_s: float, dear: float = 1.0) -> Size:
    """A size of given GPUs, time and price factor; its layout is data-parallel only."""
    node = context.cluster.node
    node = replace(node, usd_per_hour=dear * (node.usd_per_hour or 0.0))
    plan, _, _ = fastest_on_all([replace(context, cluster=CLUSTER_OF(8))])
    assert plan is not None
    one = plan.strategy
    strategy = replace(one, dp=gpus // (one.tp * one.pp * one.cp))
    assert strategy.num_gpus == gpus
    return Size(
        context=replace(context, cluster=replace(context.cluster, node=node)),
        strategy=strategy,
        iteration_s=iteration_s,
        is_optimal=True,
    )


def test_what_is_no_faster_than_a_smaller_size_is_left_out(context: Context) -> None:
    sizes = [fake(context, 16, 5.0), fake(context, 8, 5.0), fake(context, 24, 4.0)]
    assert [size.num_gpus for size in useful_sizes(sizes)] == [8, 24]
    assert useful_sizes([]) == ()


def test_the_nearest_give_up_one_kind_of_limit(context: Context) -> None:
    slow, fast = fake(context, 8, 8.0), fake(context, 64, 2.0)
    assert slow.cost_usd is not None
    assert fast.cost_usd is not None
    limits = replace(ANY_TIME, deadline_s=1.1 * fast.total_s, budget_usd=1.1 * slow.cost_usd)
    assert nearest_sizes([slow, fast], limits) == (slow, fast)
    without = replace(limits, deadline_s=0.9 * fast.total_s)
    assert nearest_sizes([slow, fast], without) == (slow,)
    neither = replace(without, budget_usd=0.9 * slow.cost_usd)
    assert nearest_sizes([slow, fast], neither) == (fast, slow)


def test_a_size_that_is_slower_in_its_own_cluster_is_walked_past(
    context: Context, all_sizes: tuple[Size, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, next_one = all_sizes[-4], all_sizes[-3]

    def own(contexts: list[Context], num_gpus: int, *_: object) -> Size | None:
        size = in_own_cluster(contexts, num_gpus, CLUSTER_OF)
        slow = size is not None and num_gpus == wanted.num_gpus
        return replace(size, iteration_s=1.1 * size.iteration_s) if size and slow else size

    monkeypatch.setattr("planner.plans.sizing.in_own_cluster", own)
    chosen = size_for(context, all_sizes, -4, 1.001).chosen
    assert chosen is not None
    assert chosen.num_gpus == next_one.num_gpus


def test_a_smaller_size_that_is_faster_in_its_own_cluster_is_found(
    context: Context, all_sizes: tuple[Size, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(contexts: list[Context], num_gpus: int, *_: object) -> Size | None:
        size = in_own_cluster(contexts, num_gpus, CLUSTER_OF)
        faster = 0.1 if num_gpus == all_sizes[-5].num_gpus else 0.99
        return size and replace(size, iteration_s=faster * size.iteration_s)

    monkeypatch.setattr("planner.plans.sizing.in_own_cluster", own)
    chosen = size_for(context, all_sizes, -4, 1.001).chosen
    assert chosen is not None
    assert chosen.num_gpus == all_sizes[-5].num_gpus


@pytest.mark.parametrize("node", ["dgx-h100", "superpod-h100", "gb200-tray"])
def test_switched_networks_price_a_part_as_a_cluster_of_its_own(
    node: str, context: Context
) -> None:
    cluster_of = partial(load_cluster_of, node)
    whole = replace(context, cluster=cluster_of(512))
    for size in sizing([whole], ANY_TIME, cluster_of).sizes:
        if size.num_gpus >= whole.cluster.node.num_accelerators:
            own = in_own_cluster([whole], size.num_gpus, cluster_of)
            assert own is not None
            assert own.iteration_s == pytest.approx(size.iteration_s, rel=1e-6)


def test_a_slice_of_a_torus_is_priced_as_it_stands(context: Context) -> None:
    cluster_of = partial(load_cluster_of, "tpu-v5e-pod")
    whole = replace(context, cluster=cluster_of(256))
    sizes = sizing([whole], ANY_TIME, cluster_of).sizes
    size = next(size for size in sizes if size.num_gpus == 32)
    own = in_own_cluster([whole], 32, cluster_of)
    assert own is not None
    assert own.iteration_s < size.iteration_s
    limits = replace(ANY_TIME, deadline_s=0.5 * (own.total_s + size.total_s))
    chosen = sizing([whole], limits, cluster_of).chosen
    assert chosen is not None
    assert chosen.num_gpus == 32


def test_where_nothing_fits_the_error_says_what_would(context_of: Contexts) -> None:
    context = context_of(model="llama3.1-405b", cluster="1xdgx-h100", global_batch=64)
    result = sizing([context], ANY_TIME, CLUSTER_OF)
    assert result.sizes == ()
    assert result.chosen is None
    error = nothing_at_any_size(result)
    assert isinstance(error, NothingFitsError)
    assert "of HBM per GPU" in str(error)
