"""Training in fp32 and TF32: everything in 4 bytes, no master copy beside the weights."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, strategy_of

from planner.catalog.clusters import load_cluster
from planner.cost.attention_kernels import flash_attention_forward_s
from planner.cost.context import Context
from planner.cost.data_parallel import weight_bytes
from planner.cost.estimate import estimate
from planner.cost.kernels import (
    peak_flops_per_s,
    product_s,
    sustained_flops_per_s,
)
from planner.layers.op import FlashAttention, Gemm
from planner.spec.job import Precision, element_bytes

DEVICE = load_cluster("2xa100-sxm-80").accelerator


def context(framework: str, precision: Precision) -> Context:
    names = {"model": "llama3.2-1b", "cluster": "2xa100-sxm-80", "framework": framework}
    return context_of(**names, global_batch=4, precision=precision)


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
    strategy = strategy_of(dp=2, num_micro_batches=2, layers_per_stage=(16,))
    narrow, tensor, whole = (
        estimate(context("deepspeed", precision), strategy)
        for precision in ("bf16", "tf32", "fp32")
    )
    assert narrow.memory.peak_bytes < tensor.memory.peak_bytes == whole.memory.peak_bytes
    assert narrow.iter_time_s < tensor.iter_time_s < whole.iter_time_s
