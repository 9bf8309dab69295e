"""Kernel times: matrix products, attention, memory-bound operations."""

from dataclasses import replace

import numpy as np

from planner.layers.op import FlashAttention, Gemm
from planner.spec.cluster import AcceleratorSpec, AttentionEfficiency, Dtype, GemmEfficiency
from planner.spec.job import Precision
from planner.units import Array

GEMM_HBM_FRACTION = 0.9
"""Share of HBM bandwidth a matrix product streams at (measured tables, 0.85-0.95)."""
LARGE_TILES = ((128.0, 256.0), (256.0, 128.0))
FALLBACKS: dict[Precision, tuple[Dtype, ...]] = {
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8",),
    "fp4": ("fp4",),
}
"""Rates that serve a precision, best first."""
GROUPED_GEMM_FRACTION = 0.9
"""Grouped experts against dense products of the same rows: 0.63-0.71 of peak against 0.74.

Source: SimuMax's measured tables for A100 PCIe (grouped_matmul and matmul).
"""
HARD_WAVES = 0.5
"""From this wave weight on, whole waves of tiles are modelled; below, smooth offsets."""


def peak_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Dense matrix rate of the precision; bf16 falls back to fp16 and the other way round.

    Raises ValueError when the accelerator has no rate for the precision.
    """
    peaks = accelerator.peak_flops_per_s
    order = FALLBACKS[precision]
    for dtype in order:
        rate = peaks.get(dtype)
        if rate:
            return float(rate)
    raise ValueError(
        f"{accelerator.name} has no {precision} matrix rate; it has {', '.join(sorted(peaks))}"
    )


def sustained_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Peak times what long matrix products reach of it in this precision."""
    fraction = accelerator.gemm.sustained_fraction
    factors = {"fp8": accelerator.gemm.fp8_factor, "fp4": accelerator.gemm.fp4_factor}
    fraction *= factors.get(precision, 1.0)
    return peak_flops_per_s(accelerator, precision) * fraction


def smooth_gemm_flops_s(
    m: Array, n: Array, k: Array, efficiency: GemmEfficiency, rate_flops_per_s: float
) -> Array:
    """``2 (m + m0) (n + n0) (k + k0) / rate``: small edges cost like larger ones.

    Shapes broadcast; seconds. Source: fits to published GEMM tables; mean error 5-11 % for
    m, n, k >= 1024, cross-validated, by accelerator in docs/hardware.md. Excludes launch, HBM
    traffic, and the slow-down of kernels that run for milliseconds.
    """
    seconds: Array = (
        2.0 * (m + efficiency.m0) * (n + efficiency.n0) * (k + efficiency.k0) / rate_flops_per_s
    )
    return seconds


def tiled_gemm_flops_s(
    m: Array,
    n: Array,
    k: Array,
    count: Array | float,
    efficiency: GemmEfficiency,
    rate_flops_per_s: float,
) -> Array:
    """Least over tile sizes of waves of tiles over the multiprocessors.

    ``((1 - w) max(v, 1) + w ceil(v)) · SM · 2ab(k + K0) / (rate · q)`` with
    ``v = ceil(m/a) ceil(n/b) count / SM``; tiles 128x256, 256x128 (q = 1), 128x128, 128x64.
    Source: as :func:`smooth_gemm_flops_s`; needed before Hopper, where waves are hard.
    """
    num_sm, weight = float(efficiency.num_multiprocessors), efficiency.wave_weight
    tiles = [(a, b, 1.0) for a, b in LARGE_TILES]
    tiles.append((128.0, 128.0, efficiency.tile_128x128_fraction))
    tiles.append((128.0, 64.0, efficiency.tile_128x64_fraction))
    best: Array | None = None
    for a, b, q in tiles:
        waves = np.ceil(m / a) * np.ceil(n / b) * count / num_sm
        work = (1.0 - weight) * np.maximum(waves, 1.0) + weight * np.ceil(waves)
        seconds = work * num_sm * 2.0 * a * b * (k + efficiency.tile_k0) / (rate_flops_per_s * q)
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    return best


def gemm_s(gemm: Gemm, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """Seconds of a (batched) matrix product: launch + max(arithmetic, HBM traffic).

    Traffic is ``2 (mk + kn + mn)`` bytes per product at 0.9 of HBM bandwidth. Batched products
    share one launch. Excludes casts to fp8.
    """
    efficiency = accelerator.gemm
    rate = sustained_flops_per_s(accelerator, precision)
    if gemm.is_grouped:
        rate *= GROUPED_GEMM_FRACTION
    m, n, k = (np.asarray(x, dtype=float) for x in (gemm.m, gemm.n, gemm.k))
    if efficiency.num_multiprocessors and efficiency.wave_weight >= HARD_WAVES:
        arithmetic_s = tiled_gemm_flops_s(m, n, k, gemm.count, efficiency, rate)
    else:
        arithmetic_s = smooth_gemm_flops_s(m, n, k, efficiency, rate) * gemm.count
    traffic_bytes = 2.0 * (m * k + k * n + m * n) * gemm.count
    traffic_s = traffic_bytes / (GEMM_HBM_FRACTION * accelerator.hbm_bytes_per_s)
    seconds: Array = efficiency.launch_s + np.maximum(arithmetic_s, traffic_s)
    return seconds


def gemm_weight_gradient_s(gemm: Gemm, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """Weight gradient: k x m by m x n."""
    return gemm_s(replace(gemm, m=gemm.k, k=gemm.m), accelerator, precision)


def gemm_backward_s(gemm: Gemm, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """Input gradient (m x n by n x k) and weight gradient (k x m by m x n)."""
    data = replace(gemm, n=gemm.k, k=gemm.n)
    weight = gemm_weight_gradient_s(gemm, accelerator, precision)
    return gemm_s(data, accelerator, precision) + weight


def _attention_fit(work: FlashAttention, accelerator: AcceleratorSpec) -> AttentionEfficiency:
    flash2 = work.kernel == "flash2"
    return accelerator.attention_flash2 if flash2 else accelerator.attention


def flash_attention_forward_s(work: FlashAttention, accelerator: AcceleratorSpec) -> Array:
    """``flops / (peak · e · s / (s + s0))``, bf16 or fp16 rate.

    Source: fits to published kernel benchmarks (causal, head size 128), error 1-5 % on the
    devices measured; other devices and head sizes borrow them, as hwdb says. Excludes sliding
    windows and kernel versions slower than cuDNN's.
    """
    fit = _attention_fit(work, accelerator)
    fraction = fit.forward_fraction * work.seq_len / (work.seq_len + fit.forward_s0)
    rate = peak_flops_per_s(accelerator, "bf16") * fraction * work.rate_fraction
    return work.flops / rate


def flash_attention_backward_s(work: FlashAttention, accelerator: AcceleratorSpec) -> Array:
    """2.5 times the forward FLOPs (scores recomputed) at the backward kernel's own rate.

    Source and exclusions as :func:`flash_attention_forward_s`; 2.5: arXiv 2307.08691, section 4.
    """
    fit = _attention_fit(work, accelerator)
    fraction = fit.backward_fraction * work.seq_len / (work.seq_len + fit.backward_s0)
    rate = peak_flops_per_s(accelerator, "bf16") * fraction * work.rate_fraction
    return 2.5 * work.flops / rate


def memory_bound_s(num_bytes: Array, accelerator: AcceleratorSpec) -> Array:
    """Seconds of element-wise kernels: bytes over the achieved HBM bandwidth.

    Source: copy and triad tests reach 0.79-0.89 of the datasheet (hwdb, memory_bound_fraction).
    Excludes launch latency.
    """
    bandwidth = accelerator.hbm_bytes_per_s * accelerator.memory_bound_fraction
    return np.asarray(num_bytes) / bandwidth
