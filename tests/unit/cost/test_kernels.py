"""Kernel times: hand-worked shapes, and never faster than the roofline."""

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import (
    CAST_BYTES,
    aligned_fraction,
    cast_s,
    element_wise_s,
    exposed_accumulation_s,
    gemm_backward_s,
    gemm_s,
    gemm_weight_gradient_s,
    memory_bound_s,
    offered_precisions,
    peak_flops_per_s,
    product_s,
    smooth_gemm_flops_s,
    sustained_flops_per_s,
    tiled_gemm_flops_s,
    usual_precision,
)
from planner.layers.op import FlashAttention, Gemm
from planner.spec.cluster import (
    AcceleratorSpec,
    AttentionEfficiency,
    GemmEfficiency,
    LowPrecisionGemm,
)
from planner.spec.job import Precision

FP8 = LowPrecisionGemm(factor=0.9, m0=64, n0=0, k0=0, launch_s=0.0)
PLAIN = GemmEfficiency(
    sustained_fraction=0.5, m0=0, n0=0, k0=0, launch_s=0.0, low_precision={"fp8": FP8}
)
TILED = replace(PLAIN, num_multiprocessors=100, wave_weight=1.0, tile_k0=0.0)
VENDOR = AttentionEfficiency(
    forward_fraction=0.5, forward_s0=1024, backward_fraction=0.25, backward_s0=0
)
DEVICE = AcceleratorSpec(
    name="round-numbers",
    vendor="none",
    hbm_bytes=80e9,
    hbm_bytes_per_s=2e12,
    peak_flops_per_s={"bf16": 400e12, "fp8": 800e12},
    memory_bound_fraction=0.8,
    gemm=PLAIN,
    attention=VENDOR,
    attention_flash2=replace(VENDOR, forward_fraction=0.25, backward_fraction=0.125),
)
NAMES = ("v100-sxm2-32", "a100-sxm-80", "h100-sxm", "mi250x-gcd", "b200-sxm", "tpu-v5p", "mi300x")


def gemm(m: float, n: float, k: float, count: float = 1.0) -> Gemm:
    return Gemm(m=np.array([m]), n=np.array([n]), k=np.array([k]), count=count)


def device(name: str) -> AcceleratorSpec:
    return load_cluster(f"1x{name}").accelerator


def test_a_large_gemm_takes_its_flops_at_the_sustained_rate() -> None:
    # 2 · 8192³ / (0.5 · 400e12) = 5.4976 ms
    assert gemm_s(gemm(8192, 8192, 8192), DEVICE, "bf16") == pytest.approx(5.497558e-3)


def test_a_thin_gemm_takes_its_traffic_at_nine_tenths_of_hbm() -> None:
    # m = 1: 2 (4096 + 4096² + 4096) bytes / 1.8e12 = 18.65 us; arithmetic would be 0.17 us.
    expected = 2 * (2 * 4096 + 4096**2) / 1.8e12
    assert gemm_s(gemm(1, 4096, 4096), DEVICE, "bf16") == pytest.approx(expected)


def test_offsets_make_small_edges_cost_like_larger_ones() -> None:
    # (100 + 28)(200 + 56)(300 + 212) · 2 / 1e12
    efficiency = replace(PLAIN, m0=28, n0=56, k0=212)
    seconds = smooth_gemm_flops_s(100.0, 200.0, 300.0, efficiency, 1e12)
    assert seconds == pytest.approx(2 * 128 * 256 * 512 / 1e12)


def test_whole_waves_of_tiles_are_paid_for() -> None:
    # 128 x 256 tiles on 100 multiprocessors: 12800 x 256 is one wave; one row of tiles more is two.
    one = tiled_gemm_flops_s(12800.0, 256.0, 1000.0, 1.0, TILED, 1e12)
    two = tiled_gemm_flops_s(12928.0, 256.0, 1000.0, 1.0, TILED, 1e12)
    assert one == pytest.approx(2 * 12800 * 256 * 1000 / 1e12)
    # Smaller tiles (0.88, 0.70 of the rate) cannot beat 2 waves of large ones by much: the best
    # is 128x128 tiles, 202 of them: 3 waves of half a tile at 0.88: 1.7045.
    assert two / one == pytest.approx(1.5 / 0.88)


def test_fp8_runs_at_its_own_peak_and_factor() -> None:
    # 800e12 · 0.5 · 0.9
    assert sustained_flops_per_s(DEVICE, "fp8") == pytest.approx(360e12)
    assert sustained_flops_per_s(DEVICE, "bf16") == pytest.approx(200e12)


V100 = device("v100-sxm2-32")


@pytest.mark.parametrize(
    ("accelerator", "precision", "said"),
    [
        (V100, "bf16", "no bf16 matrix rate; allowed here: fp16, fp32"),
        (V100, "fp8", "no fp8 matrix rate; allowed here: fp16, fp32"),
        (V100, "tf32", "no tf32 matrix rate; allowed here: fp16, fp32"),
        (DEVICE, "mxfp8", "mxfp8; allowed here: bf16, fp16, fp8, fp8_block"),
        (device("h100-sxm"), "mxfp8", "h100-sxm has no matrix units for mxfp8"),
    ],
)
def test_a_device_says_which_precisions_it_has(
    accelerator: AcceleratorSpec, precision: Precision, said: str
) -> None:
    assert precision not in offered_precisions(accelerator)
    with pytest.raises(ValueError, match=said):
        peak_flops_per_s(accelerator, precision)


def test_a_device_without_bf16_is_used_in_fp16() -> None:
    assert (usual_precision(V100), usual_precision(DEVICE)) == ("fp16", "bf16")
    assert peak_flops_per_s(DEVICE, "fp16") == 400e12
    assert peak_flops_per_s(device("b200-sxm"), "mxfp8") == 4500e12


def test_backward_of_a_gemm_is_two_products_the_weight_gradient_a_little_slower() -> None:
    # Compute-bound and without offsets: the forward, and the forward at 0.96 of the rate.
    work = gemm(8192, 8192, 8192)
    forward, backward = gemm_s(work, DEVICE, "bf16"), gemm_backward_s(work, DEVICE, "bf16")
    assert backward == pytest.approx((1 + 1 / 0.96) * forward)


def test_adding_to_fp32_gradients_costs_their_traffic_where_tokens_are_few() -> None:
    # 64 tokens: 4 bytes for each operand element and 8 per weight, at 1.8e12; the other product
    # 2 (64·4096 + 4096² + 64·4096) bytes.
    work = gemm(64, 4096, 4096)
    expected = (2 * 2 * 64 * 4096 + 8 * 4096**2) / 1.8e12 + 2 * (2 * 64 * 4096 + 4096**2) / 1.8e12
    assert gemm_backward_s(work, DEVICE, "bf16", 8.0) == pytest.approx(expected)


def grouped(tokens: float, experts: float = 4.0) -> Gemm:
    return replace(gemm(tokens, 8192, 8192), count=experts)


def test_accumulation_shows_beside_grouped_products_of_few_tokens() -> None:
    # 1,024 of 4,096 tokens: three quarters of 6 bytes a weight, at 1.8e12; 2 bytes were written
    # anyway, and from 4,096 tokens on it is part of the rate.
    shown = exposed_accumulation_s(grouped(1024), DEVICE, 6.0)
    assert shown == pytest.approx(0.75 * 6 * 4 * 8192**2 / 1.8e12)
    alone, adding = (
        gemm_weight_gradient_s(grouped(1024), DEVICE, "bf16", each) for each in (0.0, 8.0)
    )
    assert adding - alone == pytest.approx(shown)
    assert exposed_accumulation_s(grouped(1024), DEVICE, 0.0) == 0.0
    assert exposed_accumulation_s(grouped(4096), DEVICE, 6.0) == 0.0
    assert exposed_accumulation_s(grouped(1024, experts=1.0), DEVICE, 6.0) == 0.0
    # Kernels with two blocks a multiprocessor hide most of it.
    waves = replace(DEVICE, gemm=replace(PLAIN, num_multiprocessors=108, wave_weight=0.8))
    assert exposed_accumulation_s(grouped(1024), waves, 6.0) == pytest.approx(0.2 * shown)


def test_fp8_has_its_own_offsets_operand_bytes_and_casts() -> None:
    # (8192 + 64) rows at 360e12; the input is read and written twice at 0.6 of HBM.
    product = 2 * (8192 + 64) * 8192 * 8192 / 360e12
    cast = 4 * 8192 * 8192 / 1.2e12
    work = gemm(8192, 8192, 8192)
    assert product_s(work, DEVICE, "fp8") == pytest.approx(product)
    assert gemm_s(work, DEVICE, "fp8") == pytest.approx(product + cast)
    thin = gemm(1, 4096, 4096)
    traffic = (4096 + 4096**2 + 2 * 4096) / 1.8e12
    assert product_s(thin, DEVICE, "fp8") == pytest.approx(traffic)


def test_a_norm_casts_for_free_with_one_scale_per_tensor_only() -> None:
    work = gemm(8192, 8192, 8192)
    behind = replace(work, follows_norm=True)
    assert gemm_s(behind, DEVICE, "fp8") == pytest.approx(product_s(work, DEVICE, "fp8"))
    blackwell = device("gb200")
    assert gemm_s(behind, blackwell, "mxfp8") == gemm_s(work, blackwell, "mxfp8")


def test_casts_move_what_the_recipe_says() -> None:
    # 16 bits read, two copies of 8 or 4 bits written with their scales; NVFP4 reads twice.
    assert CAST_BYTES["fp8"] == 2 + 2 * 1
    assert CAST_BYTES["mxfp8"] == 2 + 2 * (1 + 1 / 32)
    assert CAST_BYTES["fp4"] == 2 + 2 + 2 * (0.5 + 1 / 16)


def test_sides_of_a_weight_that_few_powers_of_two_divide_are_slow() -> None:
    sides = ((4096, 4096, 1.0), (4096, 80, 0.92), (5304, 4096, 0.76), (50257, 768, 0.5))
    for n, k, fraction in (*sides, (32, 64, 0.96)):
        parts = {"a100-sxm-80": fraction, "h100-sxm": fraction if n % 8 == 0 else 0.28}
        for work, part in product((gemm(1000, n, k), gemm(1000, k, n)), parts):
            assert aligned_fraction(work, device(part)) == pytest.approx(parts[part])


def test_batched_products_are_slow_where_any_side_is_no_multiple_of_8() -> None:
    for head_dim, fraction in ((108, 0.17), (150, 0.17), (104, 1.0)):
        for sides in set(permutations((2048, 2048, head_dim))):
            assert aligned_fraction(replace(gemm(*sides), has_weight=False), DEVICE) == fraction


def test_a_batch_of_gemms_shares_one_launch() -> None:
    slow = replace(DEVICE, gemm=replace(PLAIN, launch_s=1e-3))
    one = gemm_s(gemm(1024, 1024, 1024), slow, "bf16")
    ten = gemm_s(gemm(1024, 1024, 1024, count=10), slow, "bf16")
    assert ten - 1e-3 == pytest.approx(10 * (one - 1e-3))


ATTENTION = FlashAttention(
    kernel="fused", square_flops=np.array([8e12]), causal_fraction=0.5, seq_len=1024.0
)


@pytest.mark.parametrize(
    ("changes", "forward_s", "backward_s"),
    [
        # 8e12 square FLOPs, half computed. s = 1024: e = 0.5 · 1024/2048 = 0.25: 4e12/100e12.
        # Backward: 2.5 · 4e12 / (400e12 · 0.25).
        ({}, 0.04, 0.1),
        # Full attention has loops twice as long: e = 0.5 · 2048/3072 = 1/3 for 8e12 FLOPs.
        ({"causal_fraction": 1.0}, 0.06, 0.2),
        # FlashAttention-2 at its own rates, older kernels at a share of them; the package is
        # torch's kernel where hwdb has no row of it.
        ({"kernel": "flash2"}, 0.08, 0.2),
        ({"kernel": "flash2", "rate_fraction": 0.5}, 0.16, 0.4),
        ({"kernel": "flash_attn"}, 0.08, 0.2),
    ],
)
def test_flash_attention_by_hand(
    changes: dict[str, Any], forward_s: float, backward_s: float
) -> None:
    work = replace(ATTENTION, **changes)
    assert flash_attention_forward_s(work, DEVICE) == pytest.approx(forward_s)
    assert flash_attention_backward_s(work, DEVICE) == pytest.approx(backward_s)
    # Its own row slows the package alone.
    slow = replace(DEVICE.attention_flash2, forward_fraction=0.125)
    slower = 2.0 if work.kernel == "flash_attn" else 1.0
    found = flash_attention_forward_s(work, replace(DEVICE, attention_flash_attn=slow))
    assert found == pytest.approx(slower * forward_s)


def test_attention_in_8_bits_casts_first_and_ignores_windows_backward() -> None:
    part = load_cluster("1xgb300-tray").accelerator
    low = part.attention.low_precision["mxfp8"]
    at_128 = part.attention.head_dims.index(128.0)
    wide = replace(ATTENTION, square_flops=np.array([1e15]), seq_len=8192.0)
    given = replace(wide, quantised=(np.array([1e8]), np.array([5e7])))
    launch_s = part.attention.launch_s
    passes = (
        (flash_attention_forward_s, low.forward_factors, 1e8),
        (flash_attention_backward_s, low.backward_factors, 5e7),
    )
    for price, factors, elements in passes:
        cast = float(cast_s(np.array([elements]), part, "mxfp8")[0])
        plain = (price(wide, part, "mxfp8")[0] - launch_s) / factors[at_128]
        assert price(given, part, "mxfp8")[0] == pytest.approx(launch_s + plain + cast)
    windowed = replace(given, windowed_share=1.0, window=128.0)
    forward, backward = (
        [price(each, part, "mxfp8")[0] for each in (given, windowed)] for price, _, _ in passes
    )
    assert forward[1] < forward[0] / 5
    assert backward[1] == backward[0]
    # Without a rate for the precision the kernel stays in 16 bits.
    assert flash_attention_forward_s(given, part, "bf16") == flash_attention_forward_s(wide, part)


def test_few_blocks_of_queries_cost_as_many_more() -> None:
    slow = replace(DEVICE, attention=replace(DEVICE.attention, forward_tiles0=256.0))
    few = replace(ATTENTION, num_tiles=512.0)
    many_s, few_s = (flash_attention_forward_s(each, slow) for each in (ATTENTION, few))
    assert few_s == pytest.approx(1.5 * many_s)
    assert flash_attention_backward_s(few, slow) == pytest.approx(0.1)


def test_head_sizes_between_measured_ones_are_interpolated() -> None:
    factors = {"forward_head_factors": (0.5, 1.0), "backward_head_factors": (1.0, 1.0)}
    slow = replace(DEVICE.attention, head_dims=(64.0, 128.0), **factors)
    slow, middle = replace(DEVICE, attention=slow), replace(ATTENTION, head_dim=96.0)
    assert flash_attention_forward_s(middle, slow) == pytest.approx(0.04 / 0.75)
    assert flash_attention_backward_s(middle, slow) == pytest.approx(0.1)


def test_windowed_layers_pass_over_the_window_and_two_blocks() -> None:
    # 8192 tokens, window 768: 1024 keys of 8192, an eighth of the square.
    work = replace(ATTENTION, seq_len=8192.0, windowed_share=0.5, window=768.0)
    assert work.flops == pytest.approx(0.5 * 4e12 + 0.5 * 1e12)
    # A loop of 1024 keys is that of 2048 causal tokens: e = 0.5 · 2048/3072.
    whole = 2e12 / (400e12 * 0.5 * 8192 / 9216)
    windowed = 0.5e12 / (400e12 * 0.5 * 2048 / 3072)
    assert flash_attention_forward_s(work, DEVICE) == pytest.approx(whole + windowed)
    assert replace(work, window=4096.0).flops == 4e12


def test_memory_bound_kernels_reach_their_share_of_hbm_after_their_launch() -> None:
    assert memory_bound_s(np.array([1.6e9]), DEVICE) == pytest.approx(1e-3)
    assert element_wise_s(np.array([1.6e9]), DEVICE) == pytest.approx(1e-3 + 3e-6)
    assert element_wise_s(np.array([0.0]), DEVICE) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_no_gemm_beats_the_roofline(name: str) -> None:
    accelerator = device(name)
    edges = np.array([1, 64, 100, 127, 128, 129, 1000, 4096, 5120, 12288, 50257], dtype=float)
    m, n, k = (axis.ravel() for axis in np.meshgrid(edges, edges, edges))
    work = Gemm(m=m, n=n, k=k)
    precision = usual_precision(accelerator)
    compute_s = work.flops / peak_flops_per_s(accelerator, precision)
    traffic_s = 2 * (m * k + k * n + m * n) / accelerator.hbm_bytes_per_s
    for price, factor in ((gemm_s, 1.0), (gemm_backward_s, 2.0)):
        seconds = price(work, accelerator, precision)
        assert (seconds >= factor * np.maximum(compute_s, traffic_s)).all()


@pytest.mark.parametrize("name", NAMES)
def test_attention_never_beats_the_peak(name: str) -> None:
    accelerator = device(name)
    least = 4e12 / peak_flops_per_s(accelerator, usual_precision(accelerator))
    for seq_len in (128.0, 2048.0, 131072.0):
        work = replace(ATTENTION, seq_len=seq_len)
        assert flash_attention_forward_s(work, accelerator) >= least
        assert flash_attention_backward_s(work, accelerator) >= 2.5 * least


A100 = device("a100-sxm-80")


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_long_products_reach_the_share_of_the_peak_that_16_bits_do(precision: Precision) -> None:
    share = sustained_flops_per_s(A100, "bf16") / peak_flops_per_s(A100, "bf16")
    peak = A100.peak_flops_per_s["fp32" if precision == "fp32" else "tf32"]
    assert sustained_flops_per_s(A100, precision) == pytest.approx(peak * share)


def test_a_product_bound_by_memory_moves_twice_the_bytes() -> None:
    thin = gemm(2.0**26, 2.0, 2.0)
    fast = replace(A100, peak_flops_per_s=dict.fromkeys(A100.peak_flops_per_s, 1e18))
    start = fast.gemm.launch_s
    narrow = product_s(thin, fast, "bf16") - start
    assert product_s(thin, fast, "tf32") - start == pytest.approx(2.0 * narrow)


def test_attention_multiplies_in_the_precision_of_the_job() -> None:
    work = replace(ATTENTION, kernel="flash2", square_flops=np.array([1e13]), seq_len=4096.0)
    start = A100.attention_flash2.launch_s
    ratio = A100.peak_flops_per_s["bf16"] / A100.peak_flops_per_s["fp32"]
    usual = flash_attention_forward_s(work, A100, "fp16") - start
    whole = flash_attention_forward_s(work, A100, "fp32") - start
    assert whole == pytest.approx(ratio * usual)
