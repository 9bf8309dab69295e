from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.offload import (
    bandwidth_efficiency,
    delayed_update_s,
    direct_access_forward_s,
    exposed_gradient_offload_s,
    host_optimizer_s,
    layerwise_optimizer_s,
    least_window,
    nvme_optimizer_s,
    parameter_fetch_s,
    window_pass_s,
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


def test_a_delayed_update_hides_the_host_step_behind_the_next_iteration() -> None:
    assert delayed_update_s(np.array([3.0, 1.0]), np.array(2.0)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("flops_per_byte", "bytes_per_s", "published"),
    [
        (1 * 1024, 70e9, 0.50),  # parameters and gradients, batch 1 per GPU
        (2 * 1024 / 4, 1.5e12, 0.90),  # optimizer states, batch 2 per GPU
        (24 * 2048, 2e9, 0.50),  # activations, hidden size 2048, a checkpoint per layer
    ],
)
def test_bandwidths_of_zero_infinity_section_4(
    flops_per_byte: float, bytes_per_s: float, published: float
) -> None:
    # arXiv 2104.07857, section 4.2: these bandwidths keep efficiency above the figure at
    # 70 TFLOP/s and 1,024 tokens per sequence; no more than a fifth above it here.
    efficiency = float(
        bandwidth_efficiency(np.array(flops_per_byte), np.array(bytes_per_s), np.array(70e12))
    )
    assert published < efficiency < 1.2 * published


def _window_by_events(layer_s: float, fetch_s: float, num_layers: int, window: int) -> float:
    """One link, layers in order; a place is free once the layer that held it has computed."""
    ready = [0.0] * min(window, num_layers)
    done: list[float] = []
    link = clock = 0.0
    for i in range(num_layers):
        if i >= window:
            link = max(link, done[i - window]) + fetch_s
            ready.append(link)
        clock = max(clock, ready[i]) + layer_s
        done.append(clock)
    return clock


@given(
    layer_s=st.floats(0.1, 3.0),
    fetch_s=st.floats(0.1, 3.0),
    num_layers=st.integers(1, 30),
    window=st.integers(1, 30),
)
def test_a_window_of_layers_never_beats_its_events(
    layer_s: float, fetch_s: float, num_layers: int, window: int
) -> None:
    formula = float(
        window_pass_s(np.array(layer_s), np.array(fetch_s), np.array(num_layers), np.array(window))
    )
    events = _window_by_events(layer_s, fetch_s, num_layers, window)
    assert formula <= events * (1 + 1e-9)
    # The first place is free after one layer: never later by more than that layer and a fetch.
    if window > 1 or num_layers <= window:
        assert events <= formula + layer_s + fetch_s + 1e-9


def test_the_least_window_hides_every_fetch_and_one_less_does_not() -> None:
    # 20 layers of 1 s, 1.5 s per fetch: 20 - 19 / 1.5 = 7.33.
    window = least_window(np.array(1.0), np.array(1.5), np.array(20))
    assert window == 8
    assert window_pass_s(np.array(1.0), np.array(1.5), np.array(20), window) == 20
    assert window_pass_s(np.array(1.0), np.array(1.5), np.array(20), window - 1) > 20
    assert least_window(np.array(2.0), np.array(1.0), np.array(20)) == 1


def test_layerwise_updates_leave_the_last_layer_s() -> None:
    # 10 layers, backward 2 s: updates of 1 s hide but for one; of 3 s they queue: 30 - 18.
    shown = layerwise_optimizer_s(np.array(2.0), np.array([1.0, 3.0]), np.array(10))
    assert shown.tolist() == [1.0, 12.0]


def test_direct_access_starts_computing_before_any_weight_has_come() -> None:
    # 4 layers of 1 s, fetch 2 s, direct 3 s: k = 0 takes 9 s, k = 1 max(6, 7) = 7, k = 2 8 s.
    args = np.array(1.0), np.array(2.0)
    assert direct_access_forward_s(*args, np.array(3.0), 4) == 7.0
    assert direct_access_forward_s(*args, np.array(1e9), 4) == 9.0
