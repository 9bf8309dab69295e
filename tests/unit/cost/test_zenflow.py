"""What ZenFlow takes and keeps, by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.ledger import stage_ledger
from planner.cost.subject import subject_of
from planner.cost.zenflow import (
    background_s_per_param,
    hidden_s_per_layer,
    mean_gradient_s,
    selected_kernel_bytes,
    selected_s_per_param,
)
from planner.cost.zenflow_memory import host_buffer_bytes, selected_bytes
from planner.frameworks.settings import with_change
from planner.plans.layout import requested, resolve
from planner.spec.strategy import OFFLOAD_CODES, StrategyColumns
from planner.spec.zenflow import read_zenflow

Contexts = Callable[..., Context]
Columns = Callable[..., StrategyColumns]
OFFLOADED: dict[str, Any] = {
    "zero_stage": 2,
    "micro_batch": 1,
    "global_batch": 8,
    "offload": "optimizer:host",
    "offload_percent": 100,
}


@pytest.fixture
def offloading(context_of: Contexts) -> Context:
    return context_of(
        framework="deepspeed", model="llama2-7b", cluster="1xdgx-a100", global_batch=8
    )


def stepping(context: Context, text: str) -> Context:
    return replace(context, traits=with_change(context.traits, read_zenflow(text)))


def priced(context: Context, **layout: object) -> Estimate:
    return estimate(*resolve(context, requested(**OFFLOADED | layout)))


def test_the_device_keeps_moments_gradient_and_copy_of_a_tenth_of_the_columns() -> None:
    zenflow = read_zenflow("zenflow:topk_ratio=0.1")
    assert selected_bytes(zenflow, 2.0, 1.0) == pytest.approx(0.1 * 2 * 4)
    assert selected_bytes(zenflow, 2.0, 1 / 8) == pytest.approx(0.1 * 2 * 4 / 8)
    away = read_zenflow("zenflow:topk_ratio=0.1:offload=true")
    assert selected_bytes(away, 2.0, 1.0) == pytest.approx(0.1 * 2)


def test_the_host_keeps_as_much_again_where_it_steps_beside_training() -> None:
    zenflow = read_zenflow("zenflow")
    assert host_buffer_bytes(zenflow, 2.0, 1.0, 1 / 8) == pytest.approx(16 / 8)
    waits = read_zenflow("zenflow:overlap_step=false")
    assert host_buffer_bytes(waits, 2.0, 1.0, 1 / 8) == 0.0
    away = read_zenflow("zenflow:overlap_step=false:offload=true")
    assert host_buffer_bytes(away, 2.0, 1.0, 1 / 8) == pytest.approx(0.1 * 2 * 3)


def test_the_hosts_own_step_is_bound_by_its_cores_or_by_memory() -> None:
    assert background_s_per_param(32.0, 4.0, 2.0, 100.0) == pytest.approx(32 / 8)
    assert background_s_per_param(32.0, 4.0, 2.0, 5.0) == pytest.approx(32 / 5)
    assert background_s_per_param(32.0, 0.25, 2.0, 5.0) == pytest.approx(32 / 2)


def test_a_step_hides_behind_the_passes_of_its_interval_and_no_further() -> None:
    passes, layers = np.array([0.1]), np.array([10.0])
    assert hidden_s_per_layer(np.array([2.0]), 4, passes, layers) == pytest.approx(0.05)
    assert hidden_s_per_layer(np.array([8.0]), 4, passes, layers) == pytest.approx(0.1)


def test_one_iteration_of_an_interval_hands_its_gradients_over() -> None:
    assert mean_gradient_s(np.array(8.0), np.array(2.0), 4) == pytest.approx((8 + 3 * 2) / 4)
    assert mean_gradient_s(np.array(8.0), np.array(2.0), 1) == 8.0


def test_the_devices_step_passes_27_times_over_the_columns_chosen() -> None:
    assert selected_kernel_bytes(0.1, 2.0, 1.0) == pytest.approx(5.4)


def test_under_stage_3_a_rank_steps_columns_of_its_shard_alone(
    offloading: Context, columns_of: Columns
) -> None:
    context = stepping(offloading, "zenflow")
    code = {"offload": 1, "dp": 8}
    whole = selected_s_per_param(context, columns_of(zero_stage=2, **code), np.array([1 / 8]))
    shard = selected_s_per_param(context, columns_of(zero_stage=3, **code), np.array([1 / 8]))
    kernels = selected_kernel_bytes(0.1, 2.0, 1 / 8)
    accelerator = context.cluster.accelerator
    rate = accelerator.hbm_bytes_per_s * accelerator.memory_bound_fraction
    assert shard == pytest.approx(kernels / rate)
    assert whole > 8 * shard


def test_moments_on_the_host_and_columns_chosen_anew_take_time(
    offloading: Context, columns_of: Columns
) -> None:
    columns, owned = columns_of(zero_stage=2, offload=1, dp=8), np.array([1 / 8])

    def seconds(text: str) -> float:
        return float(selected_s_per_param(stepping(offloading, text), columns, owned)[0])

    usual, link = seconds("zenflow"), offloading.cluster.node.host_link_bytes_per_s
    away = seconds("zenflow:offload=true")
    assert away - usual == pytest.approx(2 * 0.1 * 4 / link)
    often, seldom = (seconds(f"zenflow:select_interval={n}") - usual for n in (4, 16))
    assert often == pytest.approx(4 * seldom)


def test_columns_of_weights_on_the_host_come_and_go_unpinned(
    offloading: Context, columns_of: Columns
) -> None:
    context, owned = stepping(offloading, "zenflow"), np.array([1 / 8])
    here, away = (
        selected_s_per_param(context, columns_of(zero_stage=3, dp=8, offload=code), owned)
        for code in (OFFLOAD_CODES.index(f"optimizer{also}:host") for also in ("", "+parameters"))
    )
    link = context.cluster.node.host_link_bytes_per_s
    rate = link * context.traits.offload.pageable_rate_fraction
    assert away - here == pytest.approx(2 * 0.1 * 2 / 8 / rate)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_iteration_is_shorter_than_with_a_step_that_is_waited_for(
    stage: int, offloading: Context
) -> None:
    plain = priced(offloading, zero_stage=stage)
    zenflow = priced(stepping(offloading, "zenflow"), zero_stage=stage)
    waits = priced(stepping(offloading, "zenflow:overlap_step=false"), zero_stage=stage)
    assert zenflow.iter_time_s < waits.iter_time_s < plain.iter_time_s


def test_longer_intervals_take_less_time_and_the_same_memory(offloading: Context) -> None:
    found = [priced(stepping(offloading, f"zenflow:update_interval={n}")) for n in (1, 2, 4, 8, 16)]
    times = [each.iter_time_s for each in found]
    assert times == sorted(times, reverse=True)
    assert len({each.memory.peak_bytes for each in found}) == 1


def test_items_of_time_add_up_to_the_iteration(offloading: Context) -> None:
    for text in ("zenflow", "zenflow:overlap_step=false", "zenflow:offload=true"):
        found = priced(stepping(offloading, text))
        assert sum(each.exposed_s for each in found.time.values()) == pytest.approx(
            found.iter_time_s
        )


def test_more_columns_take_more_of_the_device_and_the_ledger_names_them(
    offloading: Context,
) -> None:
    few, many = (
        priced(stepping(offloading, f"zenflow:topk_ratio={k}")).memory.peak_bytes
        for k in (0.05, 0.2)
    )
    params = 6_738_415_616
    assert many - few == pytest.approx(0.15 * 8 * params * 1.06, rel=0.02)
    context, strategy = resolve(stepping(offloading, "zenflow"), requested(**OFFLOADED))
    items = {item.name: item for item in stage_ledger(subject_of(context, strategy), 0).items}
    assert items["optimizer.selected_columns"].num_bytes == pytest.approx(0.8 * params)
    assert "optimizer.states" not in items
