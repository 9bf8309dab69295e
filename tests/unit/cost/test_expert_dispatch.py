import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.cost.collectives import collective_s
from planner.cost.topology import Group

CLUSTER = load_cluster("8xdgx-h100")
GROUP = Group(members=(np.array([8]), np.array([64])))


def remote_s(num_bytes: float, copies: float) -> float:
    seconds = collective_s("all_to_all", np.array([num_bytes]), GROUP, CLUSTER, copies)
    return float(seconds[0]) - CLUSTER.fabric.latency_s


def test_deduplicated_dispatch_sends_one_copy_per_domain_it_reaches() -> None:
    # 8 copies to 8 domains reach 8 (1 - (7/8)^8) = 5.25 of them on average.
    share = 8 * (1 - (7 / 8) ** 8) / 8
    assert remote_s(1e9, 8.0) == pytest.approx(share * remote_s(1e9, 1.0))


def test_without_deduplication_every_copy_crosses() -> None:
    # 7/8 of the buffer leaves the domain through one port.
    fabric = CLUSTER.fabric
    port = fabric.bytes_per_s * fabric.efficiency_fraction
    assert remote_s(1e9, 1.0) == pytest.approx(7 / 8 * 1e9 / port)
