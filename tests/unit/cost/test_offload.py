from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contexts import context_of, with_traits

from planner.answers.layout import fill_in, requested
from planner.catalog.clusters import load_cluster
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.offload import (
    exposed_gradient_offload_s,
    host_bytes_per_s,
    host_optimizer_s,
    host_step_s,
    nvme_optimizer_s,
    parameter_fetch_s,
    state_transfer_s,
)
from planner.frameworks.registry import load_traits
from planner.layers.parameters import count_parameters
from planner.spec.cluster import ClusterSpec


@pytest.fixture
def cluster() -> ClusterSpec:
    """8 GPUs per node, 50 GB/s to each, NVMe at 40 GB/s read and 20 GB/s write.

    64 cores of 10 GB/s and memory of 448 GB/s.
    """
    node = replace(
        context_of().cluster.node,
        host_link_bytes_per_s=50e9,
        nvme_read_bytes_per_s=40e9,
        nvme_write_bytes_per_s=20e9,
        host_cores=64,
        host_core_bytes_per_s=10e9,
        host_memory_bytes_per_s=448e9,
    )
    return replace(context_of().cluster, node=node)


TRAITS = replace(
    load_traits("deepspeed").offload,
    host_step_bytes=28.0,
    host_threads="share",
    host_bandwidth_fraction=0.5,
    host_step_beside="nothing",
)


def test_memory_of_the_host_or_one_thread_bounds_the_step(cluster: ClusterSpec) -> None:
    # 8 cores * 10 GB/s = 80; half of 448 GB/s over 8 ranks = 28 GB/s: 1e9 parameters a second.
    assert host_bytes_per_s(cluster, TRAITS) == pytest.approx(28e9)
    assert host_step_s(np.array([2e9]), cluster, TRAITS) == pytest.approx(2.0)
    one = replace(TRAITS, host_threads="one")
    assert host_bytes_per_s(cluster, one) == pytest.approx(10e9)
    assert host_step_s(np.array([1e9]), cluster, one) == pytest.approx(2.8)


@pytest.mark.parametrize(
    ("cluster_name", "framework", "fraction", "low", "high"),
    [
        # The published rates of a node, 1e9 parameters per second; transfers are not in them.
        ("1xdgx-a100-320", "deepspeed", 0.17, 1.4, 1.8),
        ("1xdgx-a100-320", "deepspeed", 0.23, 1.8, 2.3),
        ("1xdgx-h100", "megatron", 0.45, 4.4, 5.4),
        # ZeRO-Offload's kernel alone, 28 bytes: 4.3 on a DGX-2 (arXiv 2101.06840, table 4).
        ("1xdgx-2", "kernel", 0.47, 4.2, 4.4),
    ],
)
def test_a_node_s_rate_is_that_of_published_runs(
    cluster_name: str, framework: str, fraction: float, low: float, high: float
) -> None:
    traits = TRAITS if framework == "kernel" else load_traits(framework).offload
    traits = replace(traits, host_bandwidth_fraction=fraction)
    machines = load_cluster(cluster_name)
    ranks = machines.node.num_accelerators
    seconds = float(host_step_s(np.array([1e9 / ranks]), machines, traits)[0])
    assert low <= 1.0 / seconds <= high


def test_a_step_waits_for_its_weights_unless_they_run_side_by_side(cluster: ClusterSpec) -> None:
    owned, transfer = np.array([2e9]), np.array([0.5])
    assert host_optimizer_s(owned, transfer, cluster, TRAITS) == pytest.approx(2.5)
    beside = replace(TRAITS, host_step_beside="transfers")
    assert host_optimizer_s(owned, transfer, cluster, beside) == pytest.approx(2.0)
    assert host_optimizer_s(owned, 6.0 * transfer, cluster, beside) == pytest.approx(3.0)


def test_memory_that_is_not_pinned_crosses_the_link_at_a_fifth(cluster: ClusterSpec) -> None:
    # 10e9 / 50e9 = 0.2 s pinned, 1 s else.
    num_bytes, pageable = np.array([10e9, 10e9]), np.array([False, True])
    assert state_transfer_s(num_bytes, cluster, TRAITS, pageable) == pytest.approx([0.2, 1.0])
    loose = replace(TRAITS, is_pinned=False)
    assert state_transfer_s(num_bytes, cluster, loose) == pytest.approx([1.0, 1.0])


def _estimate(context: Context, layout: dict[str, Any], **offload: object) -> Estimate:
    layout = {"dp": 8, "global_batch": 8, "offload": "optimizer:host"} | layout
    context = with_traits(context, offload=offload)
    job = replace(context.job, global_batch=layout["global_batch"])
    return estimate(*fill_in(replace(context, job=job), requested(**layout)))


LLAMA = context_of(model="llama3-8b", framework="deepspeed", seq_len=4096)
SMALL = context_of(framework="deepspeed")
PARAMETERS = {"zero_stage": 3, "offload": "optimizer+parameters:host"}


def test_gradients_show_where_backward_is_shorter_and_whole_where_they_are_waited_for() -> None:
    shown = exposed_gradient_offload_s(np.array([3.0, 1.0]), np.array([2.0, 2.0]))
    assert shown.tolist() == [1.0, 0.0]
    hidden, waited = (
        _estimate(LLAMA, {"zero_stage": 2}, waited_gradient_zero_stages=stages)
        for stages in ((), (2,))
    )
    gradients = waited.time["offload.gradients"]
    assert gradients.exposed_s == pytest.approx(gradients.busy_s)
    assert hidden.time["offload.gradients"].exposed_s < 0.5 * gradients.exposed_s
    assert waited.iter_time_s > hidden.iter_time_s


def test_a_step_beside_backward_shows_what_is_longer() -> None:
    after, beside = (
        _estimate(LLAMA, {"zero_stage": 2}, host_step_beside=word)
        for word in ("nothing", "backward")
    )
    saved = after.time["optimizer_step"].exposed_s - beside.time["optimizer_step"].exposed_s
    computing = after.time["compute.gemm"].exposed_s
    assert 0.5 * computing < saved < computing + after.time["compute.memory_bound"].exposed_s
    assert beside.time["offload.gradients"].exposed_s == 0.0


def test_parameters_from_pageable_memory_hide_behind_nothing() -> None:
    layout = PARAMETERS | {"global_batch": 32}
    pinned, loose = (
        _estimate(SMALL, layout, is_pinned=value).time["offload.parameters"]
        for value in (True, False)
    )
    assert loose.busy_s == pytest.approx(5.0 * pinned.busy_s)
    assert loose.exposed_s == pytest.approx(loose.busy_s)
    assert pinned.exposed_s < pinned.busy_s


def test_parameters_are_fetched_in_both_passes_of_every_micro_batch() -> None:
    one, four = (
        _estimate(SMALL, PARAMETERS | {"global_batch": 8 * num}).time["offload.parameters"].busy_s
        for num in (1, 4)
    )
    assert four == pytest.approx(4.0 * one)


@pytest.mark.parametrize(
    ("framework", "stage", "wanted"),
    [
        # DeepSpeed: 4 bytes for the step, and 2 down and 2 up in each of 15 micro-batches before.
        ("deepspeed", 2, 4 + 15 * 4),
        ("deepspeed", 3, 8 + 15 * 4),
        ("deepspeed", 1, 4),
        ("megatron", 1, 4),
    ],
)
def test_gradients_cross_the_link_as_often_as_the_framework_moves_them(
    framework: str, stage: int, wanted: int
) -> None:
    context = context_of(framework=framework)
    layout = {"zero_stage": stage, "global_batch": 8 * 16}
    found = _estimate(context, layout).time["offload.gradients"]
    per_byte = count_parameters(context.model) / 8 / context.cluster.node.host_link_bytes_per_s
    assert found.busy_s == pytest.approx(wanted * per_byte, rel=0.02)


def test_nvme_states_are_read_and_written_once_a_step(cluster: ClusterSpec) -> None:
    # 1e9 owned * 16 bytes * 8 ranks = 128e9 bytes: 128/40 + 128/20 = 9.6 s.
    assert nvme_optimizer_s(np.array([1e9]), cluster) == pytest.approx(9.6)
    for missing in ("nvme_read_bytes_per_s", "nvme_write_bytes_per_s"):
        diskless = replace(cluster, node=replace(cluster.node, **{missing: None}))
        assert np.isinf(nvme_optimizer_s(np.array([1.0]), diskless)).all()


def test_parameters_come_over_the_rank_s_own_link_or_from_the_shared_disks(
    cluster: ClusterSpec,
) -> None:
    # 25e9 / 50e9 = 0.5 s; from disk 8 ranks * 25e9 / 40e9 = 5 s.
    found = parameter_fetch_s(np.array([25e9, 25e9]), np.array([0.0, 1.0]), cluster, TRAITS)
    assert found.tolist() == [0.5, 5.0]


def test_a_plan_s_range_holds_the_fastest_and_the_slowest_host() -> None:
    layout = {"zero_stage": 2, "recompute": "full", "global_batch": 64}
    made, device = (
        _estimate(LLAMA, layout | {"offload": offload}) for offload in ("optimizer:host", "none")
    )
    assert made.iter_time_s_upper / made.iter_time_s > device.iter_time_s_upper / device.iter_time_s
    assert made.iter_time_s_lower / made.iter_time_s < device.iter_time_s_lower / device.iter_time_s


def test_the_worked_example_of_the_page() -> None:
    # docs/how-it-works/time.md: 0.26 s of gradients, 5.17 s of the step, 0.13 s of weights.
    named = {"model": "llama2-7b", "cluster": "1xdgx-a100-320", "framework": "deepspeed"}
    times = _estimate(context_of(**named, seq_len=2048), {"zero_stage": 2, "micro_batch": 1}).time
    assert times["offload.gradients"].exposed_s == pytest.approx(0.26, abs=0.005)
    assert times["optimizer_step"].exposed_s == pytest.approx(5.17 + 0.13, abs=0.01)


def test_deepspeed_stages_the_largest_gradient_on_the_device_below_stage_3() -> None:
    # 128,256 x 4,096 elements of 2 bytes: temp_grad_buffer_for_gpu_offload.
    for stage in (1, 2):
        away, device = (
            _estimate(LLAMA, {"zero_stage": stage, "offload": code}).memory.items
            for code in ("optimizer:host", "none")
        )
        more = away["largest_gradient.copy"] - device.get("largest_gradient.copy", 0.0)
        assert more == pytest.approx(128_256 * 4_096 * 2.0)
