"""Words and numbers of a sizing: energy, options that would do, misses, why no size will do."""

import math
from typing import TYPE_CHECKING, Any

from planner.errors import NothingFitsError
from planner.query.objectives import AMOUNTS, JobLimits, Limit
from planner.units import DAY_S, HOUR_S, format_count, format_seconds

if TYPE_CHECKING:
    from planner.answers.base import Answer, Plan
    from planner.answers.size import Sizing


def _three_digits(value: float, *, up: bool) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return step * (math.ceil if up else math.floor)(value / step)


def option_text(plan: "Plan", limit: Limit) -> str:
    """The option with which a size would keep a limit, rounded to the safe side."""
    if limit == "rate":
        tokens_per_s = math.floor(_three_digits(plan.estimate.tokens_per_s, up=False))
        return f"--min-tokens-per-s {format_count(tokens_per_s)}"
    if limit == "budget":
        usd = math.ceil(_three_digits(plan.cost_usd() or 0.0, up=True))
        return f"--budget {format_count(usd)}"
    days = plan.span_s() >= 2 * DAY_S
    span = plan.span_s() / (DAY_S if days else HOUR_S)
    return f"--deadline {_three_digits(span, up=True):.10g}{'d' if days else 'h'}"


def missed_options(plan: "Plan", limits: JobLimits) -> dict[str, Any]:
    """Return the limits that a plan misses, and the options that it would keep."""
    missed = limits.missed_by(plan)
    return {"misses": list(missed), "options": [option_text(plan, limit) for limit in missed]}


def missed_text(plan: "Plan", limits: JobLimits, *, bare: bool = False) -> str:
    """Return by how much a plan misses the limits, ``bare`` in units only; empty if it does not."""
    late_s = plan.span_s() - (limits.deadline_s or 0.0)
    short = (limits.min_tokens_per_s or 0.0) - plan.estimate.tokens_per_s
    over_usd = (plan.cost_usd() or 0.0) - (limits.budget_usd or 0.0)
    words = {
        "deadline": (format_seconds(late_s), "late"),
        "rate": (f"{format_count(math.ceil(short))} tok/s", "short"),
        "budget": (f"{format_count(over_usd)} USD", "over"),
    }
    missed = [words[limit] for limit in limits.missed_by(plan)]
    return ", ".join(much if bare else f"{much} {how}" for much, how in missed)


def limits_text(limits: JobLimits) -> str:
    """The job and its limits: ``2T tokens in 30.0 d, for at most 2M USD``."""
    deadline, rate, budget = limits.deadline_s, limits.min_tokens_per_s, limits.budget_usd
    parts = [
        *([] if deadline is None else [f"in {format_seconds(deadline).replace('.0 ', ' ')}"]),
        *([] if rate is None else [f"at {format_count(rate)} tokens/s or more"]),
        *([] if budget is None else [f"for at most {format_count(budget)} USD"]),
    ]
    tokens = [] if limits.total_tokens is None else [f"{format_count(limits.total_tokens)} tokens"]
    return " ".join([*tokens, ", ".join(parts)])


def job_text(plan: "Plan") -> str:
    """Return the job's time, GPU-hours, money and energy; of no known job the rate."""
    if plan.context.job.total_tokens is None:
        rate = f"{format_count(plan.estimate.tokens_per_s)} tokens/s"
        return f"{format_seconds(plan.estimate.iter_time_s)} per iteration, {rate}"
    parts = [format_seconds(plan.span_s()), f"{format_count(plan.gpu_hours())} GPU-hours"]
    for name, value in plan.amounts().items():
        if value is not None:
            text, column = AMOUNTS[name].text, AMOUNTS[name].column
            parts.append(text(value) if text else f"{format_count(value)} {column}")
    return ", ".join(parts)


def no_size(sizing: "Sizing") -> NothingFitsError:
    """Say which limits no size keeps, and the nearest that can be kept."""
    context = sizing.case.context
    fastest = sizing.sizes[-1]
    cluster = context.cluster
    head = (
        f"no size will do: {context.model.name} on up to {cluster.num_accelerators:,} GPUs of "
        f"{cluster.node.name}, {limits_text(sizing.limits)}"
    )
    missed_by_fastest = [name for name in sizing.limits.missed_by(fastest) if name != "budget"]
    limit = " and ".join(missed_by_fastest) or "budget"
    body = f"limit: {limit}; the fastest, {fastest.num_gpus:,} GPUs, takes {job_text(fastest)}"
    changes = [
        f"{' and '.join(options)} ({plan.num_gpus:,} GPUs)"
        for plan in sizing.nearest
        if (options := missed_options(plan, sizing.limits)["options"])
    ]
    if sizing.enough is not None:
        changes.append(f"--max-gpus {sizing.enough.num_gpus}")
    tail = f"nearest changes: {'; '.join(changes) or 'none of those tried will do'}"
    return NothingFitsError("\n".join((head, body, tail)))


def unmet_limits(found: "Answer") -> NothingFitsError:
    """Say which limits no plan keeps, and the nearest that can be kept."""
    from planner.answers.size import unmet

    return no_size(unmet(found))
