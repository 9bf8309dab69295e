"""Seconds of fused attention kernels."""

from dataclasses import replace
from typing import Literal

import numpy as np

from planner.cost.kernels import cast_s, peak_flops_per_s, usual_precision
from planner.layers.op import ZERO, FlashAttention
from planner.spec.cluster import AcceleratorSpec
from planner.spec.job import FULL_PRECISIONS, Precision
from planner.units import Array


def attention_peak_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Matrix rate under attention: 16 bits whatever weights multiply in, or the job's own 32.

    Fused kernels of 32 bits have no published table: the fractions are those of 16 bits.
    """
    is_whole = precision in FULL_PRECISIONS
    return peak_flops_per_s(accelerator, precision if is_whole else usual_precision(accelerator))


def _attention_s(
    work: FlashAttention,
    accelerator: AcceleratorSpec,
    precision: Precision,
    way: Literal["forward", "backward"],
    flops_factor: float,
) -> Array:
    """Seconds of one way: of the passes over the whole sequence and over the window, and a cast."""
    package = accelerator.attention_flash_attn if work.kernel == "flash_attn" else None
    fit = package or accelerator.attention_flash2
    if work.kernel == "fused":
        fit = accelerator.attention
    factors = getattr(fit, f"{way}_head_factors")
    fraction = getattr(fit, f"{way}_fraction") * fit.sustained_fraction
    fraction *= float(np.interp(work.head_dim, fit.head_dims, factors))
    rate = attention_peak_flops_per_s(accelerator, precision) * fraction / flops_factor
    cast, passes = ZERO, work.passes
    if work.quantised and (low := fit.low_precision.get(precision)):
        rate *= float(np.interp(work.head_dim, fit.head_dims, getattr(low, f"{way}_factors")))
        cast = cast_s(work.quantised[way == "backward"], accelerator, precision)
        if way == "backward":
            passes = replace(work, windowed_share=0.0).passes
    seq_len0, tiles0 = getattr(fit, f"{way}_s0"), getattr(fit, f"{way}_tiles0")
    ramped = ZERO + sum(flops * (1.0 + seq_len0 / seq_len) for flops, seq_len in passes)
    filled = 1.0 + tiles0 / work.num_tiles
    return np.asarray(fit.launch_s + ramped * filled / (rate * work.rate_fraction) + cast)


def flash_attention_forward_s(
    work: FlashAttention, accelerator: AcceleratorSpec, precision: Precision = "bf16"
) -> Array:
    """``launch + flops (1 + s0/s)(1 + u0/u) / (peak · e · sustained · head factor)``.

    ``u``: blocks of 128 queries and one head. In 8 bits (``quantised``) at the factor that hwdb has
    for the precision, behind the cast of queries, keys and values. Source: fits to published kernel
    benchmarks, errors in docs/how-it-works/kernels.md. Excludes kernels hwdb has no row for.
    """
    return _attention_s(work, accelerator, precision, "forward", 1.0)


def flash_attention_backward_s(
    work: FlashAttention, accelerator: AcceleratorSpec, precision: Precision = "bf16"
) -> Array:
    """2.5 times the forward FLOPs (scores recomputed) at the backward kernel's own rate.

    In 8 bits at its factor, behind the cast of the output's gradient, and over the whole causal
    half whatever the window: cuDNN's published times with a window of 128 grow with the square of
    the length, to 27 times those of 16 bits at 32,768 tokens (cudnn-frontend, gpt_oss). Source and
    exclusions as :func:`flash_attention_forward_s`; 2.5: arXiv 2307.08691, section 4.
    """
    return _attention_s(work, accelerator, precision, "backward", 2.5)
