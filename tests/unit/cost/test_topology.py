"""Groups of ranks on nodes of 8: tp innermost, then cp, then dp, then pp."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.context import Context
from planner.cost.topology import group_of
from planner.spec.strategy import StrategyColumns

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
        ("ep", 4, 1, 4),  # inside dp, stride 8
        ("expert_dp_shard", 2, 1, 2),  # dp / ep = 2, stride 32
        ("pp", 2, 1, 2),  # outermost, stride 64
    ],
)
def test_groups_of_128_ranks(
    axis: str,
    size: int,
    local: int,
    domains: int,
    context_of: Callable[..., Context],
    columns_of: Callable[..., StrategyColumns],
) -> None:
    context = context_of(cluster="16xdgx-h100")
    assert placed(axis, columns_of(**DEGREES), context) == (size, local, domains)


def test_data_parallel_neighbours_share_a_node_when_tp_is_small(
    context_of: Callable[..., Context], columns_of: Callable[..., StrategyColumns]
) -> None:
    # tp 2: stride 2, 4 replicas per node, 16 replicas touch 4 nodes.
    assert placed("dp_shard", columns_of(tp=2, dp=16), context_of(cluster="4xdgx-h100")) == (
        16,
        4,
        4,
    )


def test_a_domain_wider_than_a_node_holds_more_ranks(
    context_of: Callable[..., Context], columns_of: Callable[..., StrategyColumns]
) -> None:
    # NVL72: tp 8 and dp 8 are 64 ranks of one NVLink domain of 72.
    context = context_of(cluster="18xgb200-tray")
    assert context.cluster.node.scale_up.num_accelerators == 72
    assert placed("dp_shard", columns_of(tp=8, dp=8), context) == (8, 8, 1)


def test_no_more_ranks_are_local_than_the_cluster_has(
    context_of: Callable[..., Context], columns_of: Callable[..., StrategyColumns]
) -> None:
    machines = context_of().cluster
    scale_up = replace(machines.node.scale_up, num_accelerators=64)
    wide = replace(machines, node=replace(machines.node, scale_up=scale_up))
    assert group_of("dp_shard", columns_of(dp=16), wide).local == 8


def test_groups_of_columns_are_placed_row_by_row(
    context_of: Callable[..., Context], columns_of: Callable[..., StrategyColumns]
) -> None:
    group = group_of(
        "dp_shard", columns_of(tp=[1, 2, 8], dp=8), context_of(cluster="8xdgx-h100").cluster
    )
    assert group.local.tolist() == [8, 4, 1]
    assert group.num_domains.tolist() == [1, 2, 8]
    assert group.size.tolist() == np.full(3, 8).tolist()
