"""Kernel times: GEMMs, attention, memory-bound operations."""

from dataclasses import replace

import numpy as np

from planner.layers.op import Gemm
from planner.spec.cluster import AcceleratorSpec, Dtype, GemmEfficiency, LowPrecisionGemm
from planner.spec.items import HBM, SHAPE, item
from planner.spec.job import Precision, element_bytes
from planner.units import Array

# Share of HBM bandwidth a GEMM streams at (measured tables, 0.85-0.95).
GEMM_HBM_FRACTION = 0.9
# Rates that serve a precision, best first.
FALLBACKS: dict[Precision, tuple[Dtype, ...]] = {
    "bf16": ("bf16",),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8",),
    "fp4": ("fp4",),
    "fp32": ("fp32",),
    "tf32": ("tf32",),
}
# Bytes of an element with its share of the scales; else those of an activation.
OPERAND_BYTES: dict[Precision, float] = {
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / 128.0,
    "mxfp8": 1.0 + 1.0 / 32.0,
    "fp4": 0.5 + 1.0 / 16.0,
}
# HBM traffic per element that training casts: read in 16 bits, written twice.
#
# Once by rows, for the product at hand, once by columns, for the weight gradient; NVFP4 reads once
# more for its scale per tensor. Source: Transformer Engine documentation, "Low precision training",
# sections "Performance considerations: handling transposes", "FP8 delayed scaling", "MXFP8",
# "NVFP4". Excludes the further read of current scaling, and Blackwell's sparing of the second copy
# with one scale per tensor.
CAST_BYTES: dict[Precision, float] = {
    "fp8": 4.0,
    "fp8_block": 2.0 + 2.0 * (1.0 + 4.0 / 128.0),
    "mxfp8": 2.0 + 2.0 * (1.0 + 1.0 / 32.0),
    "fp4": 4.0 + 2.0 * (0.5 + 1.0 / 16.0),
}
# Of an element-wise kernel, from start to full bandwidth.
#
# Source: cudnn-frontend's published norms on H200, GB200 and GB300, launch + bytes / bandwidth: 2-3
# us forward, 7-8 backward in two kernels.
MEMORY_LAUNCH_S = 3e-6
# Of HBM bandwidth that casts reach; derived, 0.51-0.74.
#
# Source: Transformer Engine documentation, "GEMM profiling tutorial": times with and without casts
# on B300 and H200, against the bytes those casts move. Casts fitted as free constants in the
# published block-scaled and NVFP4 tables agree (docs/how-it-works/kernels.md).
CAST_HBM_FRACTION = 0.6
# Rate of weight-gradient products over forward ones of the same shape.
#
# Source: SimuMax's measured tables, fp32 accumulation: 0.95 on A100 PCIe (61 pairs), 0.97 on B200
# (144 pairs); input gradients 1.00 on both.
WEIGHT_GRADIENT_FRACTION = 0.96
# Of what adding to a kept gradient moves, the share that shows; by whether waves are hard.
#
# One block per multiprocessor of Hopper and Blackwell reads and writes its tile after the last
# product; before, another computes meanwhile. Source: SimuMax's tables, B200 36, A100 4 products.
EXPOSED_ACCUMULATION = {True: 0.2, False: 1.0}
# HBM bandwidth of each multiprocessor where kernels that sort tokens were measured: B200, of 148.
PERMUTED_ON = 8.0e12 / 148.0
# From this wave weight on, whole waves of tiles are modelled; below, smooth offsets.
HARD_WAVES = 0.5
ALIGNED_UNIT = 64
# Rate by the largest power of two that divides n and k. Source: 8, 16 and 64 fitted on runs, as
# tables hold multiples of 128; 1: padding nanoGPT's 50257 to 50304 saves 25 % of a step (recalled).
ALIGNED_FRACTIONS: Array = np.interp(
    np.log2(np.maximum(np.arange(ALIGNED_UNIT + 1), 1)),
    np.log2([1, 8, 16, 64]),
    [0.5, 0.76, 0.92, 1],
)
# The same of data-center parts from Hopper on, whose matrix instructions ask for rows of 16 bytes:
# kernels of Ampere run. Source: on an H100 a k of 588 takes 3.53 times as long as one of 592
# (m87-labs/kestrel pull request 143).
OLDER_KERNELS_FRACTION = 0.28
# Rate of batched products with a side that is no multiple of 8 (heads of 108, 150); fitted.
# Without 16-byte rows the vector units compute, at best a quarter of the matrix rate (A100: 78 of
# 312 TFLOP/s).
UNALIGNED_BATCH_FRACTION = 0.17


def offered_precisions(accelerator: AcceleratorSpec) -> list[Precision]:
    """Precisions the accelerator's matrix units compute in."""
    rates = set(accelerator.peak_flops_per_s)
    return [
        precision
        for precision, order in FALLBACKS.items()
        if rates & set(order)
        and (precision != "mxfp8" or precision in accelerator.gemm.low_precision)
    ]


def usual_precision(accelerator: AcceleratorSpec) -> Precision:
    """bf16; fp16 on accelerators that do not compute in it (NVIDIA's before Ampere).

    fp32 where the file states no rate of 16 bits, as of processors that only emulate them.
    """
    offered = accelerator.peak_flops_per_s
    return "bf16" if "bf16" in offered else "fp16" if "fp16" in offered else "fp32"


def peak_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Dense matrix rate of the precision; fp16 falls back to bf16.

    Raises ValueError when the accelerator has no rate for the precision; scales per 32 elements
    need hardware for them, which hwdb names (``gemm.low_precision.mxfp8``).
    """
    lacks_units = precision == "mxfp8" and precision not in accelerator.gemm.low_precision
    peaks = accelerator.peak_flops_per_s
    rate = next((peaks[dtype] for dtype in FALLBACKS[precision] if peaks.get(dtype)), None)
    if rate and not lacks_units:
        return float(rate)
    what = "matrix units for mxfp8" if lacks_units else f"{precision} matrix rate"
    allowed = ", ".join(offered_precisions(accelerator))
    raise ValueError(f"{accelerator.name} has no {what}; allowed here: {allowed}")


def sustained_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Peak times what long GEMMs reach of it in this precision.

    In fp32 and TF32, of which there are no measured tables, the share that 16 bits reach.
    """
    fraction = accelerator.gemm.sustained_fraction
    low = accelerator.gemm.low_precision.get(precision)
    if low is not None:
        fraction *= low.factor
    return peak_flops_per_s(accelerator, precision) * fraction


def smooth_gemm_flops_s(
    m: Array,
    n: Array,
    k: Array,
    efficiency: GemmEfficiency | LowPrecisionGemm,
    rate_flops_per_s: float,
) -> Array:
    """``2 (m + m0) (n + n0) (k + k0) / rate``: small edges cost like larger ones.

    Shapes broadcast; seconds. Source: fits to published GEMM tables; cross-validated error by
    accelerator and precision in docs/how-it-works/kernels.md. Excludes launch, HBM traffic, and the
    slow-down of kernels that run for milliseconds.
    """
    return np.asarray(
        2.0 * (m + efficiency.m0) * (n + efficiency.n0) * (k + efficiency.k0) / rate_flops_per_s
    )


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
    tiles = (
        (128.0, 256.0, 1.0),
        (256.0, 128.0, 1.0),
        (128.0, 128.0, efficiency.tile_128x128_fraction),
        (128.0, 64.0, efficiency.tile_128x64_fraction),
    )
    best = np.asarray(np.inf)
    for a, b, q in tiles:
        waves = np.ceil(m / a) * np.ceil(n / b) * count / num_sm
        work = (1.0 - weight) * np.maximum(waves, 1.0) + weight * np.ceil(waves)
        seconds = work * num_sm * 2.0 * a * b * (k + efficiency.tile_k0) / (rate_flops_per_s * q)
        best = np.minimum(best, seconds)
    return best


def aligned_fraction(gemm: Gemm, accelerator: AcceleratorSpec) -> Array:
    """Share of the rate that the divisibility of the weight's sides by powers of two leaves.

    The sides lie along rows in all three products of a linear layer; tokens never do. Batched
    products of activations suffer where any side is no multiple of 8: 16 bytes of a row.
    Shape of the product's columns. Source: ALIGNED_FRACTIONS and the two fractions below it.
    """
    m, n, k = (np.rint(side).astype(np.int64) for side in (gemm.m, gemm.n, gemm.k))
    if not gemm.has_weight:
        return np.where((m | n | k) % 8 == 0, 1.0, UNALIGNED_BATCH_FRACTION)
    unit = np.minimum((n | k) & -(n | k), ALIGNED_UNIT)
    is_older = (unit < 8) & (9.0 <= accelerator.compute_capability < 12.0)
    return np.where(is_older, OLDER_KERNELS_FRACTION, ALIGNED_FRACTIONS[unit])


def product_s(
    gemm: Gemm,
    accelerator: AcceleratorSpec,
    precision: Precision,
    *,
    output_bytes: float | None = None,
    rate_fraction: Array | float = 1.0,
    unhidden_s: Array | float = 0.0,
) -> Array:
    """Seconds of a (batched) GEMM: launch + max(arithmetic + unhidden, HBM traffic).

    Traffic is the operands in their precision and ``output_bytes`` per element of the result (an
    activation's where not given), at 0.9 of HBM bandwidth; ``unhidden_s`` of it lies beside no
    arithmetic. Batched products share a launch. 8 and 4 bits have their own offsets. Source:
    docs/how-it-works/kernels.md. Excludes casts, alignment.
    """
    dense = accelerator.gemm
    efficiency = dense.low_precision.get(precision, dense)
    rate = sustained_flops_per_s(accelerator, precision)
    m, n, k = (np.asarray(x, dtype=float) for x in (gemm.m, gemm.n, gemm.k))
    if isinstance(efficiency, GemmEfficiency) and _has_hard_waves(accelerator.gemm):
        arithmetic_s = tiled_gemm_flops_s(m, n, k, gemm.count, efficiency, rate)
    else:
        arithmetic_s = smooth_gemm_flops_s(m, n, k, efficiency, rate) * gemm.count
    operand_bytes = OPERAND_BYTES.get(precision, element_bytes(precision))
    output_bytes = element_bytes(precision) if output_bytes is None else output_bytes
    traffic_bytes = (operand_bytes * (m * k + k * n) + output_bytes * (m * n)) * gemm.count
    traffic_s = traffic_bytes / (GEMM_HBM_FRACTION * accelerator.hbm_bytes_per_s)
    busy_s = arithmetic_s / rate_fraction + unhidden_s
    return np.asarray(efficiency.launch_s + np.maximum(busy_s, traffic_s))


def cast_s(
    num_elements: Array,
    accelerator: AcceleratorSpec,
    precision: Precision,
    *,
    by_columns: bool = True,
) -> Array:
    """Seconds to quantise activations or gradients by rows and columns; none in 16 bits.

    By rows alone where no gradient of a weight needs the columns. Source: CAST_BYTES,
    CAST_HBM_FRACTION. Excludes casts fused into the kernel before, and those of weights, which
    frameworks cast once per iteration.
    """
    bandwidth = CAST_HBM_FRACTION * accelerator.hbm_bytes_per_s
    spared = 0.0 if by_columns else OPERAND_BYTES.get(precision, 0.0)
    moved = CAST_BYTES.get(precision, spared) - spared
    return np.asarray(num_elements) * (moved / bandwidth)


def exposed_accumulation_s(
    gemm: Gemm, accelerator: AcceleratorSpec, unhidden_bytes: float
) -> Array:
    """Seconds of adding to kept gradients beside which a grouped product computes nothing.

    ``x (b - e) n k / HBM · max(1 - tokens / 4096, 0)``: what accumulation moves an element beyond
    the ``e`` bytes that any product writes (``unhidden_bytes``), of which the share x shows; at
    4,096 tokens it is part of WEIGHT_GRADIENT_FRACTION. Source: EXPOSED_ACCUMULATION. Excludes
    products of one expert.
    """
    elements = np.asarray(gemm.n) * gemm.k * gemm.count * (np.asarray(gemm.count) > 1)
    traffic_bytes = max(unhidden_bytes, 0.0) * elements
    # WEIGHT_GRADIENT_FRACTION was measured with 4,096 tokens.
    few = np.maximum(1.0 - np.asarray(gemm.m) / 4096.0, 0.0)
    share = EXPOSED_ACCUMULATION[_has_hard_waves(accelerator.gemm)] * few
    return np.asarray(share * traffic_bytes / (GEMM_HBM_FRACTION * accelerator.hbm_bytes_per_s))


@item(
    "time.compute.gemm",
    title="GEMMs",
    inputs=(
        *SHAPE,
        "accelerator.gemm.sustained_fraction",
        "accelerator.peak_flops_per_s",
    ),
    also=(
        product_s,
        cast_s,
        aligned_fraction,
        exposed_accumulation_s,
        tiled_gemm_flops_s,
        smooth_gemm_flops_s,
    ),
)
def gemm_s(gemm: Gemm, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """Forward seconds of a product: the input is cast, then multiplied."""
    seconds = product_s(
        gemm, accelerator, precision, rate_fraction=aligned_fraction(gemm, accelerator)
    )
    # A norm casts to fp8 for free: two bytes are written either way. Source: Transformer Engine
    # transformer_engine/pytorch/csrc/extensions/normalization.cpp (delayed scaling is fully fused;
    # MXFP8 only with cuDNN's norms, NVFP4 and blocks are not).
    if precision in CAST_BYTES and not (gemm.follows_norm and precision == "fp8"):
        elements = gemm.m * gemm.k * gemm.count
        by_columns = not gemm.is_frozen
        seconds = seconds + cast_s(elements, accelerator, precision, by_columns=by_columns)
    return seconds


def _has_hard_waves(dense: GemmEfficiency) -> bool:
    return bool(dense.num_multiprocessors) and dense.wave_weight >= HARD_WAVES


def gemm_weight_gradient_s(
    gemm: Gemm,
    accelerator: AcceleratorSpec,
    precision: Precision,
    weight_gradient_bytes: float | None = None,
) -> Array:
    """Weight gradient: k x m by m x n.

    ``weight_gradient_bytes``: HBM traffic per element inside the product, 8 where it is added to
    an fp32 one. Source: WEIGHT_GRADIENT_FRACTION, :func:`exposed_accumulation_s`.
    """
    weight = replace(gemm, m=gemm.k, k=gemm.m)
    if not gemm.has_weight:
        return product_s(
            weight, accelerator, precision, rate_fraction=aligned_fraction(weight, accelerator)
        )
    written_bytes = element_bytes(precision)
    inside_bytes = written_bytes if weight_gradient_bytes is None else weight_gradient_bytes
    return product_s(
        weight,
        accelerator,
        precision,
        output_bytes=inside_bytes,
        rate_fraction=aligned_fraction(gemm, accelerator) * WEIGHT_GRADIENT_FRACTION,
        unhidden_s=exposed_accumulation_s(gemm, accelerator, inside_bytes - written_bytes),
    )


def gemm_backward_s(
    gemm: Gemm,
    accelerator: AcceleratorSpec,
    precision: Precision,
    weight_gradient_bytes: float | None = None,
) -> Array:
    """Input gradient (m x n by n x k) and weight gradient (k x m by m x n), and their casts.

    Without the second where the weight is frozen; the gradient is cast as ever
    (grad_output_quantizer in transformer_engine/pytorch/module/layernorm_linear.py).
    """
    data = replace(gemm, n=gemm.k, k=gemm.n)
    aligned = aligned_fraction(gemm if gemm.has_weight else data, accelerator)
    seconds = product_s(data, accelerator, precision, rate_fraction=aligned)
    if not gemm.is_frozen:
        seconds = seconds + gemm_weight_gradient_s(
            gemm, accelerator, precision, weight_gradient_bytes
        )
    if gemm.has_weight and precision in CAST_BYTES:
        seconds = seconds + cast_s(gemm.m * gemm.n * gemm.count, accelerator, precision)
    return seconds


def memory_bound_s(num_bytes: Array, accelerator: AcceleratorSpec) -> Array:
    """Seconds of HBM traffic: bytes over the achieved bandwidth.

    Source: copy and triad reach 0.79-0.89 of the datasheet (hwdb). Excludes launch latency.
    """
    bandwidth = accelerator.hbm_bytes_per_s * accelerator.memory_bound_fraction
    return np.asarray(num_bytes) / bandwidth


def permutation_pace(slowdown: float, accelerator: AcceleratorSpec) -> float:
    """Time of kernels that sort tokens over others' for their bytes, at least 1.

    ``slowdown · (HBM / SM) / (HBM / SM of B200)``: gathering rows keeps multiprocessors busy, which
    an accelerator with less memory bandwidth for each feels less. Source: the trait, measured on
    B200; derived. Where the number of multiprocessors is not known, as there.
    """
    number = accelerator.gemm.num_multiprocessors
    share = accelerator.hbm_bytes_per_s / number / PERMUTED_ON if number else 1.0
    return max(slowdown * share, 1.0)


@item(
    "time.compute.memory_bound",
    title="element-wise kernels",
    inputs=(
        *HBM,
        "traits.kernels.memory_bound_multiplier",
        "traits.kernels.router_kernels",
        "traits.kernels.unfused",
    ),
    also=(memory_bound_s,),
)
def element_wise_s(
    num_bytes: Array, accelerator: AcceleratorSpec, num_tiny: Array | float = 0.0
) -> Array:
    """Seconds of one fused element-wise kernel: a launch and its traffic; none without traffic.

    And the starts of ``num_tiny`` kernels that move next to nothing, or what is counted elsewhere.
    Source: MEMORY_LAUNCH_S, :func:`memory_bound_s`. Excludes launches of kernels not fused.
    """
    launch_s = MEMORY_LAUNCH_S * ((np.asarray(num_bytes) > 0) + num_tiny)
    return launch_s + memory_bound_s(num_bytes, accelerator)
