"""Groups of ranks on nodes of 8: tp innermost, then cp, then dp, then pp."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of

from planner.answers.layout import requested, resolve
from planner.cost.context import Context
from planner.cost.topology import group_of, groups_of, pairs_of, stage_ranks
from planner.spec.strategy import Strategy, StrategyColumns

DEGREES = {"tp": 4, "cp": 2, "dp": 8, "pp": 2, "ep": 4}


def placed(axis: str, strategy: StrategyColumns, context: Context) -> tuple[int, int, int]:
    group = group_of(axis, strategy, context.cluster)
    return int(group.size[0]), int(group.local[0]), int(group.num_domains[0])


@pytest.mark.parametrize(
    ("axis", "size", "local", "domains"),
    [
        ("tp", 4, 4, 1),  # stride 1: 4 of 8
        ("cp", 2, 2, 1),  # stride 4: 8 // 4 = 2 fit
        ("dp_shard", 8, 1, 8),  # stride 8: one per node
        ("dp_shard_cp", 16, 2, 8),  # stride 4: 2 per node
        ("ep", 4, 2, 2),  # over the ranks of cp and dp, stride etp = 4
        ("expert_dp_shard_cp", 4, 1, 4),  # 64 / (4 · 4) = 4, stride 16
        ("pp", 2, 1, 2),  # outermost, stride 64
    ],
)
def test_groups_of_128_ranks(axis: str, size: int, local: int, domains: int) -> None:
    context = context_of(cluster="16xdgx-h100")
    assert placed(axis, columns_of(**DEGREES), context) == (size, local, domains)


def test_whole_experts_lie_on_the_ranks_of_tensor_parallelism_too() -> None:
    # tp 4, cp 2, dp 8: 64 ranks, etp 1. ep 16 takes two nodes of neighbours, replicas are 16 apart.
    context, columns = context_of(cluster="16xdgx-h100"), columns_of(**DEGREES | {"ep": 16}, etp=1)
    assert placed("etp", columns, context) == (1, 1, 1)
    assert placed("ep", columns, context) == (16, 8, 2)
    assert placed("expert_dp_shard_cp", columns, context) == (4, 1, 4)
    assert int(columns.expert_dp[0]) == 4


def test_data_parallel_neighbours_share_a_node_when_tp_is_small() -> None:
    # tp 2: stride 2, 4 replicas per node, 16 replicas touch 4 nodes.
    assert placed("dp_shard", columns_of(tp=2, dp=16), context_of(cluster="4xdgx-h100")) == (
        16,
        4,
        4,
    )


def test_a_domain_wider_than_a_node_holds_more_ranks() -> None:
    # NVL72: tp 8 and dp 8 are 64 ranks of one NVLink domain of 72.
    context = context_of(cluster="18xgb200-tray")
    assert context.cluster.node.scale_up.num_accelerators == 72
    assert placed("dp_shard", columns_of(tp=8, dp=8), context) == (8, 8, 1)


def test_no_more_ranks_are_local_than_the_cluster_has() -> None:
    machines = context_of().cluster
    scale_up = replace(machines.node.scale_up, num_accelerators=64)
    wide = replace(machines, node=replace(machines.node, scale_up=scale_up))
    assert group_of("dp_shard", columns_of(dp=16), wide).local == 8


def test_groups_of_columns_are_placed_row_by_row() -> None:
    group = group_of(
        "dp_shard", columns_of(tp=[1, 2, 8], dp=8), context_of(cluster="8xdgx-h100").cluster
    )
    assert group.local.tolist() == [8, 4, 1]
    assert group.num_domains.tolist() == [1, 2, 8]
    assert group.size.tolist() == np.full(3, 8).tolist()


def test_members_are_counted_inside_every_level() -> None:
    # Frontier: packages of 2, nodes of 8, groups of 1024. tp 2 and dp 1024, stride 2.
    cluster = context_of(cluster="frontier").cluster
    group = group_of("dp_shard", columns_of(tp=2, dp=1024), cluster)
    assert [inside.tolist() for inside in group.members] == [[1], [4], [512], [1024]]
    assert (group.size, group.local, group.num_domains) == (1024, 4, 256)
    tensor = group_of("tp", columns_of(tp=2, dp=1024), cluster)
    assert [inside.tolist() for inside in tensor.members] == [[2], [2], [2], [2]]


@pytest.mark.parametrize(
    ("axis", "usual", "pp_inside"),
    [
        ("tp", 2, 2),
        ("dp_shard", 4, 1),  # stride 2 or, with pp between, 8
        ("pp", 1, 4),  # stride 32 or, beside tp, 2
    ],
)
def test_the_placement_decides_which_axis_shares_a_node(
    axis: str, usual: int, pp_inside: int
) -> None:
    cluster = context_of(cluster="16xdgx-h100").cluster
    both = columns_of(tp=2, dp=16, pp=4, placement=[0, 1])
    assert group_of(axis, both, cluster).local.tolist() == [usual, pp_inside]


def test_a_part_of_a_group_is_its_nearest_members() -> None:
    cluster = context_of(cluster="frontier").cluster
    group = group_of("dp_shard", columns_of(dp=2048), cluster)
    inside = group.part(group.local)
    assert [members.tolist() for members in inside.members] == [[2], [8], [8], [8]]


@pytest.mark.parametrize(
    ("tp", "dp", "tp_spans", "dp_spans"),
    [
        (4, 16, [4, 1, 1], [1, 4, 4]),  # whole dimensions
        (8, 8, [4, 2, 1], [1, 2, 4]),  # tp takes half of the second one
        (2, 32, [2, 1, 1], [2, 4, 4]),
    ],
)
def test_groups_on_a_torus_fill_dimension_after_dimension(
    tp: int, dp: int, tp_spans: list[int], dp_spans: list[int]
) -> None:
    cluster = context_of(cluster="16xtpu-v4-host").cluster
    assert cluster.domain.dims == (4, 4, 4)
    columns = columns_of(tp=tp, dp=dp)
    assert [int(span[0]) for span in group_of("tp", columns, cluster).spans] == tp_spans
    assert [int(span[0]) for span in group_of("dp_shard", columns, cluster).spans] == dp_spans


@pytest.mark.parametrize(
    ("cluster", "axis", "degrees", "local"),
    [
        ("6xdgx-h100", "tp", {"tp": 5, "dp": 8}, 1),  # the fourth group is one GPU of a node, four
        ("6xdgx-h100", "tp", {"tp": 6, "dp": 8}, 2),  # of the next; of six, two and four
        ("1xdgx-h100", "tp", {"tp": 5}, 5),
        ("3xdgx-h100", "dp_shard", {"dp": 12, "pp": 2}, 4),  # 8 and 4, then 4 and 8
        ("3xdgx-h100", "dp_shard", {"dp": 24}, 8),
        ("3xdgx-h100", "dp_shard", {"tp": 3, "dp": 8}, 2),  # 24 ranks are whole nodes
    ],
)
def test_a_group_that_lies_across_nodes_has_its_smallest_piece_in_one(
    cluster: str, axis: str, degrees: dict[str, int], local: int
) -> None:
    found = placed(axis, columns_of(**degrees), context_of(cluster=cluster))
    assert found[1] == local


@pytest.fixture
def context() -> Context:
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
