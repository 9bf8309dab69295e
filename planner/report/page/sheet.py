"""What a page is made from."""

from dataclasses import dataclass

from planner.errors import ExpressError
from planner.formats.format import Format, OutputFile
from planner.launchers.launcher import Launcher
from planner.plans.plan import Answer, Plan
from planner.report.emitted import README, PlanText, output_files


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


def sheet_of(
    plan: Plan,
    text: PlanText,
    made: Format,
    launcher: Launcher,
    *,
    origin: str,
    answer: Answer | None,
) -> Sheet:
    """The sheet of a plan with its files; those the README tells of are on the page itself."""
    files: tuple[OutputFile, ...] = ()
    refused = ""
    try:
        files = output_files(made, launcher, plan.context, plan.strategy, text)
    except ExpressError as error:
        refused = str(error)
    return Sheet(
        plan=plan,
        origin=origin,
        files=tuple(file for file in files if file.name != README),
        refused=refused,
        answer=answer,
        notes=tuple(map(str, answer.notes)) if answer else (),
    )
