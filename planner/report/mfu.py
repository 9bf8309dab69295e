"""What the MFU on screen counts, in a line."""

from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.plans.plan import Plan

SIXTEEN_BITS = ("bf16", "fp16")


def peak_words(plan: Plan) -> str:
    """The products whose peak an MFU is over: in 16 bits wherever the accelerator has them."""
    usual = usual_precision(plan.context.cluster.accelerator)
    return "16-bit" if usual in SIXTEEN_BITS else usual


def runs_at_peak(plan: Plan) -> bool:
    """Whether the plan's own products are those whose peak its MFU is over."""
    precision = plan.context.job.precision
    return precision == peak_words(plan) or (
        precision in SIXTEEN_BITS and peak_words(plan) == "16-bit"
    )


def mfu_line(plan: Plan) -> str:
    """The convention of numerator and denominator, and what the other one would give."""
    model, estimate = plan.context.model, plan.estimate
    accelerator = plan.context.cluster.accelerator
    peak = peak_flops_per_s(accelerator, usual_precision(accelerator)) / 1e12
    over = f"over the dense {peak_words(plan)} peak ({peak:,.{0 if peak >= 10 else 3}f} TFLOP/s)"
    if not runs_at_peak(plan):
        over += f", also in {plan.context.job.precision}"
    if estimate.mfu_full_square == estimate.mfu:
        return f"MFU: the whole attention square, {over}."
    counted = "the causal half of the attention square"
    if model.windowed_share:
        counted += ", of windows what they see"
    return f"MFU: {counted}, {over}; with the whole square {estimate.mfu_full_square:.1%}."
