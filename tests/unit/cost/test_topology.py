"""Groups of ranks on nodes of 8: tp innermost, then cp, then dp, then pp."""

from dataclasses import replace
from typing import Any

import pytest
from contexts import columns_of, context_of

from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.topology import group_of, groups_of, pairs_of, stage_ranks
from planner.spec.strategy import Strategy, StrategyColumns

DEGREES = {"tp": 4, "cp": 2, "dp": 8, "pp": 2, "ep": 4}


def placed(axis: str, strategy: StrategyColumns, context: Context) -> tuple[int, int, int]:
    group = group_of(axis, strategy, context.cluster)
    return int(group.size[0]), int(group.local[0]), int(group.num_domains[0])


# tp 4, cp 2, dp 8: 64 ranks of a stage, etp 1.
WHOLE_EXPERTS = DEGREES | {"ep": 16, "etp": 1}


@pytest.mark.parametrize(
    ("cluster", "degrees", "axis", "group"),
    [
        ("16xdgx-h100", DEGREES, "tp", (4, 4, 1)),  # stride 1: 4 of 8
        ("16xdgx-h100", DEGREES, "cp", (2, 2, 1)),  # stride 4: 8 // 4 = 2 fit
        ("16xdgx-h100", DEGREES, "dp_shard", (8, 1, 8)),  # stride 8: one per node
        ("16xdgx-h100", DEGREES, "dp_shard_cp", (16, 2, 8)),  # stride 4: 2 per node
        ("16xdgx-h100", DEGREES, "ep", (4, 2, 2)),  # over the ranks of cp and dp, stride etp = 4
        ("16xdgx-h100", DEGREES, "expert_dp_shard_cp", (4, 1, 4)),  # 64 / (4 · 4) = 4, stride 16
        ("16xdgx-h100", DEGREES, "pp", (2, 1, 2)),  # outermost, stride 64
        # Whole experts: ep 16 takes two nodes of neighbours, replicas are 16 apart.
        ("16xdgx-h100", WHOLE_EXPERTS, "etp", (1, 1, 1)),
        ("16xdgx-h100", WHOLE_EXPERTS, "ep", (16, 8, 2)),
        ("16xdgx-h100", WHOLE_EXPERTS, "expert_dp_shard_cp", (4, 1, 4)),
        # tp 2: stride 2, 4 replicas per node, 16 replicas touch 4 nodes.
        ("4xdgx-h100", {"tp": 2, "dp": 16}, "dp_shard", (16, 4, 4)),
        # NVL72: tp 8 and dp 8 are 64 ranks of one NVLink domain of 72.
        ("18xgb200-tray", {"tp": 8, "dp": 8}, "dp_shard", (8, 8, 1)),
    ],
)
def test_a_group_has_its_size_its_members_in_a_domain_and_its_domains(
    cluster: str, degrees: dict[str, int], axis: str, group: tuple[int, int, int]
) -> None:
    assert placed(axis, columns_of(**degrees), context_of(cluster=cluster)) == group


def test_groups_of_columns_are_placed_row_by_row_on_no_more_ranks_than_there_are() -> None:
    machines = context_of().cluster
    scale_up = replace(machines.node.scale_up, num_accelerators=64)
    wide = replace(machines, node=replace(machines.node, scale_up=scale_up))
    assert group_of("dp_shard", columns_of(dp=16), wide).local == 8
    columns, cluster = columns_of(tp=[1, 2, 8], dp=8), context_of(cluster="8xdgx-h100").cluster
    group = group_of("dp_shard", columns, cluster)
    assert group.local.tolist() == [8, 4, 1]
    assert group.num_domains.tolist() == [1, 2, 8]
    assert group.size.tolist() == [8, 8, 8]


def test_members_are_counted_inside_every_level() -> None:
    # Frontier: packages of 2, nodes of 8, groups of 1024. tp 2 and dp 1024, stride 2.
    cluster = context_of(cluster="frontier").cluster
    group = group_of("dp_shard", columns_of(tp=2, dp=1024), cluster)
    assert [inside.tolist() for inside in group.members] == [[1], [4], [512], [1024]]
    assert (group.size, group.local, group.num_domains) == (1024, 4, 256)
    tensor = group_of("tp", columns_of(tp=2, dp=1024), cluster)
    assert [inside.tolist() for inside in tensor.members] == [[2], [2], [2], [2]]
    # A part of a group is its nearest members.
    whole = group_of("dp_shard", columns_of(dp=2048), cluster)
    inside = whole.part(whole.local)
    assert [members.tolist() for members in inside.members] == [[2], [8], [8], [8]]


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
    assert placed(axis, columns_of(**degrees), context_of(cluster=cluster))[1] == local


@pytest.fixture
def context() -> Context:
    return context_of(model="mixtral-8x7b", cluster="2xdgx-h100", global_batch=16, seq_len=2048)


@pytest.fixture
def strategy(context: Context) -> Strategy:
    """16 GPUs as tp 2 x dp 4 x pp 2; experts over 4, none of them split."""
    _, strategy = fill_in(context, requested(tp=2, pp=2, ep=4, etp=1, global_batch=16))
    return strategy


def test_stages_lie_in_a_row_or_beside_one_another(strategy: Strategy) -> None:
    assert stage_ranks(strategy, 1) == tuple(range(8, 16))
    inner = replace(strategy, placement="tp-cp-ep-pp-dp")
    assert stage_ranks(inner, 1) == (2, 3, 6, 7, 10, 11, 14, 15)
    assert pairs_of(strategy, (0, 1))[3] == (3, 11)


INNER, HYBRID = {"placement": "tp-cp-ep-pp-dp"}, {"dp_replicate": 2}


@pytest.mark.parametrize(
    ("changes", "axis", "stage", "groups"),
    [
        ({}, "tp", 1, ((8, 9), (10, 11), (12, 13), (14, 15))),
        ({}, "dp_shard_cp", 0, ((0, 2, 4, 6), (1, 3, 5, 7))),
        ({}, "ep", 0, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ({}, "expert_dp_shard_cp", 0, ((0, 4), (1, 5), (2, 6), (3, 7))),
        # Stages inside data parallelism: groups stay in their stage.
        (INNER, "tp", 1, ((2, 3), (6, 7), (10, 11), (14, 15))),
        (INNER, "dp_shard", 1, ((2, 6, 10, 14), (3, 7, 11, 15))),
        (INNER, "ep", 1, ((2, 3, 6, 7), (10, 11, 14, 15))),
        # Replicas lie outside the shards.
        (HYBRID, "dp_shard", 0, ((0, 2), (1, 3), (4, 6), (5, 7))),
        (HYBRID, "dp_replicate", 0, ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_groups_are_those_of_megatron(
    strategy: Strategy,
    changes: dict[str, Any],
    axis: str,
    stage: int,
    groups: tuple[tuple[int, ...], ...],
) -> None:
    assert groups_of(axis, replace(strategy, **changes), stage) == groups


@pytest.mark.parametrize("axis", ["tp", "dp_shard", "dp_shard_cp", "ep", "expert_dp_shard_cp"])
def test_groups_cover_their_stage_and_have_the_priced_size(
    axis: str, strategy: Strategy, context: Context
) -> None:
    for stage in range(strategy.pp):
        groups = groups_of(axis, strategy, stage)
        assert sorted(sum(groups, ())) == list(stage_ranks(strategy, stage))
        priced = group_of(axis, strategy.columns(), context.cluster).size
        assert {len(group) for group in groups} == {int(priced[0])}
