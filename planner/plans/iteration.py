"""One iteration of a plan in time: its slices, and the memory of a rank of every stage."""

from dataclasses import dataclass

from planner.cost.ledger import stage_ledgers
from planner.cost.priced import price
from planner.cost.timeline import MemoryCurve, Timeline, memory_curve, timeline
from planner.plans.plan import Plan
from planner.schedules.simulate import num_chunks
from planner.spec.strategy import Strategy

MAX_PASSES = 400_000
"""Of all stages: more are neither drawn nor looked at."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What every stage does when, and what it holds."""

    timeline: Timeline
    curves: tuple[MemoryCurve, ...]
    """One per stage."""


def too_long(strategy: Strategy) -> str:
    """Why an iteration is not simulated, or nothing: it has too many forwards and backwards."""
    chunks = num_chunks(strategy.schedule, strategy.pp, strategy.vpp)
    passes = 2 * chunks * strategy.num_micro_batches
    if passes <= MAX_PASSES:
        return ""
    return (
        f"{passes:,} forwards and backwards ({strategy.num_micro_batches:,} micro-batches through "
        f"{chunks} chunks of layers); at most {MAX_PASSES:,} are drawn"
    )


def iteration(plan: Plan) -> Iteration:
    """Simulate one iteration of a plan that is not :func:`too_long`."""
    subject = price(plan.context, plan.strategy)
    drawn = timeline(subject)
    keeps = subject.model.keeps_all_sent
    stages = zip(stage_ledgers(subject), drawn.stages, strict=True)
    return Iteration(
        timeline=drawn,
        curves=tuple(memory_curve(ledger, own, keeps_sent=keeps) for ledger, own in stages),
    )
