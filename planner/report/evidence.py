"""What a plan's estimate rests on: the range of its regime, and the nearest published runs."""

from planner.cost.context import Context
from planner.cost.estimate import Estimate
from planner.plans.evidence import PublishedRun, evidence
from planner.spec.strategy import Strategy
from planner.units import format_seconds


def range_text(estimate: Estimate) -> str:
    """Lower to upper iteration time, a common unit named once."""
    ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
    (lower, unit), (upper, other) = (format_seconds(end).split() for end in ends)
    return f"{lower} - {upper} {unit}" if unit == other else f"{lower} {unit} - {upper} {other}"


def range_line(estimate: Estimate) -> str:
    """Where 80 % of runs of its regime would lie, in seconds and around the estimate."""
    ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
    low, high = (f"{100.0 * (end / estimate.iter_time_s - 1.0):+.0f} %" for end in ends)
    line = (
        f"Eight of ten such runs take {range_text(estimate)} ({low} to {high}; {estimate.regime})."
    )
    if estimate.iter_time_s_lower < estimate.iter_time_s:
        return line
    return f"{line} At least nine of ten take longer than the estimate, which is the lower end."


def _layout(run: PublishedRun) -> str:
    """Degrees of a run; context and expert parallelism where used."""
    names = ["tp", "pp", "dp", *(name for name in ("cp", "ep") if getattr(run, name) > 1)]
    return " ".join(f"{name}{getattr(run, name)}" for name in names)


def _run_text(run: PublishedRun, context: Context) -> str:
    """One run: what it was, what of it differs by name, and the model's errors there."""
    names = ((run.framework, context.traits.name), (run.precision, context.job.precision))
    other = [name for name, ours in names if name != ours]
    what = ", ".join([run.model, f"{run.gpus:,} {run.accelerator}", _layout(run), *other])
    memory = "" if run.memory_error is None else f", memory {100.0 * run.memory_error:+.1f} %"
    return f"{what}: time {100.0 * run.time_error:+.1f} %{memory}"


def evidence_line(context: Context, strategy: Strategy) -> str:
    """The nearest published runs and how far predictions were off there, in one line."""
    found = evidence(context, strategy)
    parts = [found.note] if found.note else []
    if found.runs:
        runs = "; ".join(_run_text(near.run, context) for near in found.runs)
        parts.append(f"nearest published runs, predicted over measured: {runs}")
    return f"evidence: {'; '.join(parts)}"
