"""Borders between pools, and gradients that cross them, by hand."""

import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.pools.pipelines import fills_pools
from planner.pools.replicas import exchange_s
from planner.pools.staged import border_shares
from planner.spec.cluster import LevelSpec
from planner.spec.pools import Pool


@pytest.mark.parametrize(
    ("stages", "vpp", "shares"),
    [
        ((2, 2), 1, [0, 0.5, 0.5, 0]),
        ((1, 3), 1, [1, 0.5, 0, 0]),
        ((1, 1), 1, [1, 1]),
        ((1, 1, 1), 1, [1, 1, 1]),
        ((2, 2), 2, [0.5, 0.5, 0.5, 0.5]),
        ((1, 2), 3, [1, 0.5, 0.5]),
    ],
)
def test_a_stage_waits_for_other_pools_as_often_as_it_has_neighbours_there(
    stages: tuple[int, ...], vpp: int, shares: list[float]
) -> None:
    assert border_shares(stages, vpp).tolist() == shares


def test_gradients_cross_the_ports_of_the_smallest_pool() -> None:
    between = LevelSpec(
        name="b", num_accelerators=24, bytes_per_s=10e9, latency_s=1e-3, efficiency_fraction=0.5
    )
    assert exchange_s(80e9, between, [16, 8]) == pytest.approx(80e9 / (8 * 5e9) + 2e-3)
    three = 2 * 2 / 3 * 80e9 / (8 * 5e9) + 4e-3
    assert exchange_s(80e9, between, [16, 8, 8]) == pytest.approx(three)


def test_stages_fill_every_pool_as_far_as_whole_stages_and_nodes_do() -> None:
    pools = [
        Pool(name="a", cluster=load_cluster("2xdgx-h100")),
        Pool(name="b", cluster=load_cluster("3xdgx-a100-640")),
    ]
    rows = [(8, 1, 1, 5), (8, 1, 2, 2), (8, 1, 3, 1), (4, 1, 1, 10), (4, 1, 1, 9), (6, 1, 1, 6)]
    tp, cp, dp, pp = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    legal = fills_pools(pools).is_legal(None, columns)  # type: ignore[arg-type]
    assert legal.tolist() == [True, True, False, True, False, False]
