"""Training in fp32 and TF32: everything in 4 bytes, no master copy beside the weights."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, strategy_of

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.attention_kernels import flash_attention_forward_s
from planner.cost.context import Context
from planner.cost.data_parallel import weight_bytes
from planner.cost.estimate import estimate
from planner.cost.kernels import (
    offered_precisions,
    peak_flops_per_s,
    product_s,
    sustained_flops_per_s,
)
from planner.cost.states import state_bytes
from planner.frameworks.registry import load_traits
from planner.layers.op import FlashAttention, Gemm
from planner.spec.job import JobSpec, Precision, element_bytes
from planner.spec.strategy import Strategy
from planner.spec.traits import traits_at_precision

CLUSTER = load_cluster("2xa100-sxm-80")
DEVICE = CLUSTER.accelerator


def context(framework: str, precision: Precision) -> Context:
    job = JobSpec(global_batch=4, seq_len=1024, precision=precision)
    return Context(
        model=load_model("llama3.2-1b"), job=job, cluster=CLUSTER, traits=load_traits(framework)
    )


def strategy(zero_stage: int) -> Strategy:
    return strategy_of(dp=2, zero_stage=zero_stage, num_micro_batches=2, layers_per_stage=(16,))


@pytest.mark.parametrize(
    ("framework", "stage", "num_bytes"),
    [
        ("deepspeed", 0, 4 + 4 + 8),
        ("deepspeed", 1, 4 + 4 + (4 + 8) / 2),
        ("deepspeed", 3, (4 + 4 + 4 + 8) / 2),
        ("accelerate", 3, (4 + 4 + 8) / 2),
        ("megatron", 1, 4 + 4 + 8 / 2),
    ],
)
def test_weights_gradients_and_states_take_four_bytes_each(
    framework: str, stage: int, num_bytes: float
) -> None:
    traits = traits_at_precision(load_traits(framework), "fp32").states
    columns = columns_of(zero_stage=stage, dp=2)
    found = state_bytes(columns, traits, np.array([2.0]))
    assert float(found.device[0]) == num_bytes


def test_traits_under_a_precision_are_so_already() -> None:
    once = traits_at_precision(load_traits("deepspeed"), "tf32")
    assert traits_at_precision(once, "tf32") == once
    assert context("deepspeed", "tf32").traits == once


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_long_products_reach_the_share_of_the_peak_that_16_bits_do(precision: Precision) -> None:
    share = sustained_flops_per_s(DEVICE, "bf16") / peak_flops_per_s(DEVICE, "bf16")
    peak = DEVICE.peak_flops_per_s["fp32" if precision == "fp32" else "tf32"]
    assert sustained_flops_per_s(DEVICE, precision) == pytest.approx(peak * share)


def test_a_product_bound_by_memory_moves_twice_the_bytes() -> None:
    thin = Gemm(m=np.array([2.0**26]), n=np.array([2.0]), k=np.array([2.0]))
    fast = replace(DEVICE, peak_flops_per_s=dict.fromkeys(DEVICE.peak_flops_per_s, 1e18))
    start = fast.gemm.launch_s
    narrow = product_s(thin, fast, "bf16") - start
    assert product_s(thin, fast, "tf32") - start == pytest.approx(2.0 * narrow)


def test_attention_multiplies_in_the_precision_of_the_job() -> None:
    work = FlashAttention(
        kernel="flash2", square_flops=np.array([1e13]), causal_fraction=0.5, seq_len=4096.0
    )
    start = DEVICE.attention_flash2.launch_s
    ratio = DEVICE.peak_flops_per_s["bf16"] / DEVICE.peak_flops_per_s["fp32"]
    usual = flash_attention_forward_s(work, DEVICE, "fp16") - start
    whole = flash_attention_forward_s(work, DEVICE, "fp32") - start
    assert whole == pytest.approx(ratio * usual)


def test_weights_travel_as_wide_as_they_are_read() -> None:
    assert weight_bytes(context("accelerate", "fp32")) == element_bytes("fp32") == 4.0
    assert weight_bytes(context("accelerate", "bf16")) == 2.0


def test_a_step_takes_the_more_memory_and_time_the_less_is_narrowed() -> None:
    found = {
        precision: estimate(context("deepspeed", precision), strategy(1))
        for precision in ("bf16", "tf32", "fp32")
    }
    assert found["tf32"].memory.peak_bytes == found["fp32"].memory.peak_bytes
    assert found["bf16"].memory.peak_bytes < found["fp32"].memory.peak_bytes
    times = [found[precision].iter_time_s for precision in ("bf16", "tf32", "fp32")]
    assert times == sorted(times)


def test_older_devices_have_no_tf32() -> None:
    device = load_cluster("1xv100").accelerator
    assert "fp32" in offered_precisions(device)
    assert "tf32" not in offered_precisions(device)
    with pytest.raises(ValueError, match="no tf32 matrix rate"):
        peak_flops_per_s(device, "tf32")
