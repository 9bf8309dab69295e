from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.context import Context
from planner.cost.offload import (
    HOST_ADAM_PARAMS_PER_S,
    host_optimizer_s,
    nvme_optimizer_s,
    parameter_fetch_s,
)
from planner.spec.cluster import ClusterSpec


@pytest.fixture
def cluster(context_of: Callable[..., Context]) -> ClusterSpec:
    """8 GPUs per node, 50 GB/s to each, NVMe at 40 GB/s read and 20 GB/s write."""
    machines = context_of().cluster
    return replace(
        machines,
        node=replace(
            machines.node,
            host_link_bytes_per_s=50e9,
            nvme_read_bytes_per_s=40e9,
            nvme_write_bytes_per_s=20e9,
        ),
    )


def test_host_adam_is_shared_by_the_ranks_of_a_node(cluster: ClusterSpec) -> None:
    # 1e9 owned: gradients 2 bytes down and weights 2 bytes up: 4e9 / 50e9 = 0.08 s;
    # 8 ranks * 1e9 / 4.3e9 per second = 1.8605 s.
    seconds = host_optimizer_s(np.array([1e9]), 2.0, cluster)
    assert seconds == pytest.approx(0.08 + 8e9 / 4.3e9)
    assert HOST_ADAM_PARAMS_PER_S == 4.3e9


def test_nvme_states_are_read_and_written_once_a_step(cluster: ClusterSpec) -> None:
    # 1e9 owned * 12 bytes * 8 ranks = 96e9 bytes: 96/40 + 96/20 = 7.2 s.
    assert nvme_optimizer_s(np.array([1e9]), cluster) == pytest.approx(7.2)


@pytest.mark.parametrize("missing", ["nvme_read_bytes_per_s", "nvme_write_bytes_per_s"])
def test_without_a_disk_rate_nvme_takes_forever(missing: str, cluster: ClusterSpec) -> None:
    diskless = replace(cluster, node=replace(cluster.node, **{missing: None}))
    assert np.isinf(nvme_optimizer_s(np.array([1.0]), diskless)).all()


def test_parameters_are_fetched_over_the_rank_s_own_link(cluster: ClusterSpec) -> None:
    assert parameter_fetch_s(np.array([25e9]), cluster) == pytest.approx(0.5)
