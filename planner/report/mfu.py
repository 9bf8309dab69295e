"""What the MFU on screen counts, in a line."""

from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.plans.plan import Plan

SIXTEEN_BITS = ("bf16", "fp16")
"""Precisions whose products run at the peak that an MFU is over."""


def mfu_line(plan: Plan) -> str:
    """The convention of numerator and denominator, and what the other one would give."""
    model, estimate = plan.context.model, plan.estimate
    accelerator = plan.context.cluster.accelerator
    peak = peak_flops_per_s(accelerator, usual_precision(accelerator)) / 1e12
    over = f"over the dense 16-bit peak ({peak:,.0f} TFLOP/s)"
    if plan.context.job.precision not in SIXTEEN_BITS:
        over += f", also in {plan.context.job.precision}"
    if estimate.mfu_full_square == estimate.mfu:
        return f"MFU: the whole attention square, {over}."
    counted = "the causal half of the attention square"
    if model.windowed_share:
        counted += ", of windows what they see"
    return f"MFU: {counted}, {over}; with the whole square {estimate.mfu_full_square:.1%}."
