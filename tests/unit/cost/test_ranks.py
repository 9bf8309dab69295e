"""Global ranks of stages and groups, as Megatron-Core numbers them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.cost.topology import group_of, groups_of, pairs_of, stage_ranks
from planner.plans.layout import requested, resolve
from planner.spec.strategy import Strategy


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(model="mixtral-8x7b", cluster="2xdgx-h100", global_batch=16, seq_len=2048)


@pytest.fixture
def strategy(context: Context) -> Strategy:
    """16 GPUs as tp 2 x dp 4 x pp 2; experts over 4, none of them split."""
    _, strategy = resolve(context, requested(tp=2, pp=2, ep=4, etp=1, global_batch=16))
    return strategy


def test_stages_lie_in_a_row_or_beside_one_another(strategy: Strategy) -> None:
    assert stage_ranks(strategy, 1) == tuple(range(8, 16))
    inner = replace(strategy, placement="tp-cp-ep-pp-dp")
    assert stage_ranks(inner, 1) == (2, 3, 6, 7, 10, 11, 14, 15)
    assert pairs_of(strategy, (0, 1))[3] == (3, 11)


def test_groups_are_those_of_megatron(strategy: Strategy) -> None:
    assert groups_of("tp", strategy, 1) == ((8, 9), (10, 11), (12, 13), (14, 15))
    assert groups_of("dp_shard_cp", strategy, 0) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups_of("ep", strategy, 0) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups_of("expert_dp_shard_cp", strategy, 0) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_with_stages_inside_data_parallelism_groups_stay_in_their_stage(strategy: Strategy) -> None:
    inner = replace(strategy, placement="tp-cp-ep-pp-dp")
    assert groups_of("tp", inner, 1) == ((2, 3), (6, 7), (10, 11), (14, 15))
    assert groups_of("dp_shard", inner, 1) == ((2, 6, 10, 14), (3, 7, 11, 15))
    assert groups_of("ep", inner, 1) == ((2, 3, 6, 7), (10, 11, 14, 15))


def test_replicas_lie_outside_the_shards(strategy: Strategy) -> None:
    hybrid = replace(strategy, dp_replicate=2)
    assert groups_of("dp_shard", hybrid, 0) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups_of("dp_replicate", hybrid, 0) == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize("axis", ["tp", "dp_shard", "dp_shard_cp", "ep", "expert_dp_shard_cp"])
def test_groups_cover_their_stage_and_have_the_priced_size(
    axis: str, strategy: Strategy, context: Context
) -> None:
    for stage in range(strategy.pp):
        groups = groups_of(axis, strategy, stage)
        assert sorted(sum(groups, ())) == list(stage_ranks(strategy, stage))
        priced = group_of(axis, strategy.columns(), context.cluster).size
        assert {len(group) for group in groups} == {int(priced[0])}
