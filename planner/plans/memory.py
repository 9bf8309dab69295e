"""The memory of one given configuration: estimate, ledger of every stage, what would save."""

from dataclasses import dataclass

from planner.answers.savings import Saving, savings
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.ledger import StageLedger, stage_ledgers
from planner.cost.priced import price
from planner.notes import Note
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class MemoryAnswer:
    """All that is known about one configuration's memory."""

    context: Context
    strategy: Strategy
    estimate: Estimate
    ledgers: tuple[StageLedger, ...]
    """One per pipeline stage, each at its own fullest moment."""
    savings: list[Saving]
    notes: tuple[Note, ...] = ()


def memory_answer(
    context: Context, strategy: Strategy, notes: tuple[Note, ...] = ()
) -> MemoryAnswer:
    """Estimate one configuration without search."""
    result = estimate(context, strategy)
    return MemoryAnswer(
        context=context,
        strategy=strategy,
        estimate=result,
        ledgers=stage_ledgers(price(context, strategy)),
        savings=savings(context, strategy, result),
        notes=notes,
    )
