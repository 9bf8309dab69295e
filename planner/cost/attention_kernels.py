"""Seconds of fused attention kernels."""

from dataclasses import replace

import numpy as np

from planner.cost.kernels import cast_s, peak_flops_per_s, usual_precision
from planner.layers.op import ZERO, FlashAttention
from planner.spec.cluster import AcceleratorSpec, AttentionEfficiency
from planner.spec.job import FULL_PRECISIONS, Precision
from planner.units import Array


def _attention_fit(work: FlashAttention, accelerator: AcceleratorSpec) -> AttentionEfficiency:
    package = accelerator.attention_flash_attn if work.kernel == "flash_attn" else None
    fit = package or accelerator.attention_flash2
    return accelerator.attention if work.kernel == "fused" else fit


def attention_peak_flops_per_s(accelerator: AcceleratorSpec, precision: Precision) -> float:
    """Matrix rate under attention: 16 bits whatever weights multiply in, or the job's own 32.

    Fused kernels of 32 bits have no published table: the fractions are those of 16 bits.
    """
    is_whole = precision in FULL_PRECISIONS
    return peak_flops_per_s(accelerator, precision if is_whole else usual_precision(accelerator))


def _attention_s(
    work: FlashAttention, rate_flops_per_s: float, seq_len0: float, tiles0: float
) -> Array:
    """Seconds of the passes over the whole sequence and over the window."""
    ramped = np.zeros(())
    for flops, seq_len in work.passes:
        ramped = ramped + flops * (1.0 + seq_len0 / seq_len)
    rate = rate_flops_per_s * work.rate_fraction
    return ramped * (1.0 + tiles0 / work.num_tiles) / rate


def flash_attention_forward_s(
    work: FlashAttention, accelerator: AcceleratorSpec, precision: Precision = "bf16"
) -> Array:
    """``launch + flops (1 + s0/s)(1 + u0/u) / (peak · e · sustained · head factor)``.

    ``u``: blocks of 128 queries and one head. In 8 bits (``quantised``) at the factor that hwdb has
    for the precision, behind the cast of queries, keys and values. Source: fits to published kernel
    benchmarks, errors in docs/how-it-works/kernels.md. Excludes kernels hwdb has no row for.
    """
    fit = _attention_fit(work, accelerator)
    head = float(np.interp(work.head_dim, fit.head_dims, fit.forward_head_factors))
    fraction = fit.forward_fraction * fit.sustained_fraction * head
    rate = attention_peak_flops_per_s(accelerator, precision) * fraction
    cast = ZERO
    if work.quantised and (low := fit.low_precision.get(precision)):
        rate *= float(np.interp(work.head_dim, fit.head_dims, low.forward_factors))
        cast = cast_s(work.quantised[0], accelerator, precision)
    return fit.launch_s + _attention_s(work, rate, fit.forward_s0, fit.forward_tiles0) + cast


def flash_attention_backward_s(
    work: FlashAttention, accelerator: AcceleratorSpec, precision: Precision = "bf16"
) -> Array:
    """2.5 times the forward FLOPs (scores recomputed) at the backward kernel's own rate.

    In 8 bits at its factor, behind the cast of the output's gradient, and over the whole causal
    half whatever the window: cuDNN's published times with a window of 128 grow with the square of
    the length, to 27 times those of 16 bits at 32,768 tokens (cudnn-frontend, gpt_oss). Source and
    exclusions as :func:`flash_attention_forward_s`; 2.5: arXiv 2307.08691, section 4.
    """
    fit = _attention_fit(work, accelerator)
    head = float(np.interp(work.head_dim, fit.head_dims, fit.backward_head_factors))
    fraction = fit.backward_fraction * fit.sustained_fraction * head
    rate = attention_peak_flops_per_s(accelerator, precision) * fraction / 2.5
    cast = ZERO
    if work.quantised and (low := fit.low_precision.get(precision)):
        rate *= float(np.interp(work.head_dim, fit.head_dims, low.backward_factors))
        cast = cast_s(work.quantised[1], accelerator, precision)
        work = replace(work, windowed_share=0.0)
    return fit.launch_s + _attention_s(work, rate, fit.backward_s0, fit.backward_tiles0) + cast
