"""What a page is made from."""

from dataclasses import dataclass

from planner.formats.format import OutputFile
from planner.plans.plan import Answer, Plan


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One plan, and what is known around it."""

    plan: Plan
    origin: str
    """The file or the question it comes from, as a command."""
    files: tuple[OutputFile, ...]
    """As a framework and a launcher take it."""
    refused: str
    """Why there are none, where there are none."""
    answer: Answer | None
    """The search around it, where one was made."""
    notes: tuple[str, ...] = ()
    """Defaults that were assumed."""
