from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.offload import (
    exposed_gradient_offload_s,
    host_optimizer_s,
    nvme_optimizer_s,
    parameter_fetch_s,
)
from planner.frameworks.registry import load_traits
from planner.plans.layout import requested, resolve
from planner.spec.cluster import ClusterSpec

STAGES = {"deepspeed": 2, "megatron": 1}


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


SHARED = replace(
    load_traits("deepspeed").offload,
    host_optimizer_params_per_s=4e9,
    host_optimizer_shares_node=True,
)


def test_a_host_s_optimizer_is_shared_by_the_ranks_of_a_node(cluster: ClusterSpec) -> None:
    # 8 ranks * 1e9 / 4e9 per second = 2 s; weights up, 2e9 / 50e9 = 0.04 s, hide in it.
    assert host_optimizer_s(np.array([1e9]), cluster, SHARED) == pytest.approx(2.0)
    slow = replace(cluster, node=replace(cluster.node, host_link_bytes_per_s=0.5e9))
    assert host_optimizer_s(np.array([1e9]), slow, SHARED) == pytest.approx(4.0)


def test_or_each_rank_has_its_own_threads(cluster: ClusterSpec) -> None:
    own = replace(SHARED, host_optimizer_shares_node=False)
    assert host_optimizer_s(np.array([1e9]), cluster, own) == pytest.approx(0.25)


@pytest.mark.parametrize(("framework", "factor"), [("deepspeed", 1 + 2 * 15), ("megatron", 1)])
def test_gradients_cross_the_link_as_often_as_the_framework_moves_them(
    framework: str, factor: int, context_of: Callable[..., Context]
) -> None:
    context = replace(context_of(), traits=load_traits(framework))
    one, many = (
        estimate(
            replace(context, job=replace(context.job, global_batch=8 * num)),
            resolve(
                replace(context, job=replace(context.job, global_batch=8 * num)),
                requested(
                    dp=8,
                    global_batch=8 * num,
                    offload="optimizer:host",
                    zero_stage=STAGES[framework],
                ),
            )[1],
        ).time["offload.gradients"]
        for num in (1, 16)
    )
    assert many.busy_s == pytest.approx(factor * one.busy_s)


def test_nvme_states_are_read_and_written_once_a_step(cluster: ClusterSpec) -> None:
    # 1e9 owned * 12 bytes * 8 ranks = 96e9 bytes: 96/40 + 96/20 = 7.2 s.
    assert nvme_optimizer_s(np.array([1e9]), cluster) == pytest.approx(7.2)


@pytest.mark.parametrize("missing", ["nvme_read_bytes_per_s", "nvme_write_bytes_per_s"])
def test_without_a_disk_rate_nvme_takes_forever(missing: str, cluster: ClusterSpec) -> None:
    diskless = replace(cluster, node=replace(cluster.node, **{missing: None}))
    assert np.isinf(nvme_optimizer_s(np.array([1.0]), diskless)).all()


def test_parameters_come_over_the_rank_s_own_link_or_from_the_shared_disks(
    cluster: ClusterSpec,
) -> None:
    # 25e9 / 50e9 = 0.5 s; from disk 8 ranks * 25e9 / 40e9 = 5 s.
    num_bytes = np.array([25e9, 25e9])
    assert parameter_fetch_s(num_bytes, np.array([0.0, 1.0]), cluster).tolist() == [0.5, 5.0]


def test_gradients_to_the_host_show_where_backward_is_shorter() -> None:
    shown = exposed_gradient_offload_s(np.array([3.0, 1.0]), np.array([2.0, 2.0]))
    assert shown.tolist() == [1.0, 0.0]
