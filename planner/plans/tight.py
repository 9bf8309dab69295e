"""Plans inside the margin: a last resort, and said so."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.cost.context import Context
from planner.notes import Note, NoteKind
from planner.plans.plan import Answer, Plan

Ask = Callable[[Sequence[Context]], Answer]
"""Plans for contexts, everything else of the question given."""


def is_tight(plan: Plan) -> bool:
    """Whether the modelled peak lies inside the framework's margin: published peaks exceeded it."""
    return plan.estimate.memory.verdict == "tight"


def with_room(ask: Ask, contexts: Sequence[Context], *, is_given: bool = False) -> Answer:
    """Plans that leave the margin free; where none does, those that need it, noted as tight.

    ``is_given``: the user chose the margin, so it is kept. It is kept too where the search ran out
    of time.
    """
    found = ask(contexts)
    is_decided = bool(found.plans or found.frontier) or not found.is_complete
    if is_decided or is_given or not any(context.margin_fraction for context in contexts):
        return found
    tight = ask([replace(context, margin_fraction=0.0) for context in contexts])
    if not tight.plans and not tight.frontier:
        return found
    margins = {context.traits.name: context.margin_fraction for context in contexts}
    free = ", ".join(f"{name} {fraction:.1%}" for name, fraction in margins.items())
    text = (
        f"tight: no plan leaves the margin free ({free}), by which published peaks exceeded the "
        "model; these plans may run out of memory"
    )
    note = Note(kind=NoteKind.tight, text=text, subject="margin")
    return replace(tight, notes=(*tight.notes, note))
