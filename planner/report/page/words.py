"""The plan in words: what to run, and how good it is."""

from planner.cost.context import Context
from planner.frameworks.registry import CURRENT
from planner.plans.plan import Plan
from planner.report.evidence import range_text
from planner.report.headline import layout_words
from planner.report.sizing_words import time_text
from planner.units import GIB, format_bytes, format_count, format_seconds


def software(context: Context) -> str:
    """The framework as a command names it, with another profile than the current one."""
    traits = context.traits
    return traits.name if traits.profile == CURRENT else f"{traits.name} ({traits.profile})"


def headline(plan: Plan) -> str:
    """What to run, in a sentence."""
    context = plan.context
    count, name = plan.strategy.num_gpus, context.cluster.accelerator.name
    return (
        f"Train {context.model.name} on {count:,} {name} under {software(context)}: "
        f"{layout_words(plan)}."
    )


def tiles(plan: Plan) -> list[tuple[str, str, str]]:
    """Figures of the plan: value, unit or name, and what stands to it."""
    estimate, memory = plan.estimate, plan.estimate.memory
    free = f"{format_bytes(abs(plan.free_bytes))} {'free' if plan.free_bytes >= 0 else 'missing'}"
    found = [
        (
            format_seconds(estimate.iter_time_s),
            "per iteration",
            f"{range_text(estimate)} in eight of ten such runs",
        ),
        (
            format_count(round(estimate.tokens_per_s)),
            "tokens per second",
            f"{estimate.tokens_per_s_per_gpu:,.0f} per GPU",
        ),
        (
            f"{estimate.mfu:.1%}",
            "model FLOPs utilisation",
            f"{estimate.mfu_full_square:.1%} counting the whole attention square",
        ),
        (
            f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB",
            f"HBM of the fullest rank: {memory.verdict}",
            f"{free}; uncertain by {format_bytes(memory.uncertainty_bytes)}",
        ),
    ]
    total_s, cost = plan.total_s(), plan.cost_usd()
    tokens = plan.context.job.total_tokens
    if total_s is not None and tokens:
        ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
        span = " - ".join(time_text(total_s * end / estimate.iter_time_s) for end in ends)
        price = "" if cost is None else f", {format_count(round(cost))} USD"
        hours = f"{span}; {format_count(round(plan.gpu_hours()))} GPU-hours{price}"
        found.append((time_text(total_s), f"for {format_count(tokens)} tokens", hours))
    return found


def job_text(context: Context) -> str:
    """The batch and what is trained."""
    job = context.job
    return (
        f"{job.global_batch:,} sequences of {job.seq_len:,} tokens "
        f"({format_count(job.tokens_per_iteration)} tokens), {job.precision}, "
        f"{context.traits.optimizer.name}{context.traits.training.suffix}"
    )
