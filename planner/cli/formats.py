"""Holds a question to what the format of its files can say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli.inputs import Question
from planner.errors import ExpressError
from planner.formats.registry import format_names, format_of, load_format
from planner.frameworks.registry import FRAMEWORKS

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.formats.format import Format


def format_meant(framework: str | None) -> "Format | None":
    """The format whose name stands in place of a framework's."""
    is_format = framework in format_names() and framework not in FRAMEWORKS
    return load_format(framework) if framework and is_format else None


def expressible(question: Question, made: "Format | None") -> Question:
    """The question in the space of ``made``, or of the frameworks' own formats.

    Frameworks whose format has no words for model, precision, optimizer or profile are left out
    where others have. Raises ExpressError where files are asked for and there are no words.
    """
    contexts = question.contexts
    if made is not None:
        contexts = tuple(made.narrowed(context) for context in contexts)
    reasons = [
        _reasons(
            context,
            made or format_of(context.traits),
            is_one_of_several=len(contexts) > 1,
        )
        for context in contexts
    ]
    kept = [context for context, found in zip(contexts, reasons, strict=True) if not found]
    if not kept and made is not None:
        lines = [
            f"  {context.traits.name}: {reason}"
            for context, found in zip(contexts, reasons, strict=True)
            for reason in found
        ]
        raise ExpressError("\n".join([f"{made.title} cannot express any plan of it:", *lines]))
    notes = [
        _note(context, made or format_of(context.traits), found, is_left_out=bool(kept))
        for context, found in zip(contexts, reasons, strict=True)
        if found
    ]
    return replace(question, contexts=tuple(kept) or contexts, notes=(*question.notes, *notes))


def _reasons(context: "Context", made: "Format", *, is_one_of_several: bool) -> list[str]:
    """Why no plan of a context can be written, whatever its layout."""
    found = list(made.refused(context))
    if is_one_of_several and not made.carries(context.traits.name):
        found.append("framework of other files")
    if not context.schedules:
        offered = ", ".join(context.traits.support.schedules)
        found.append(f"none of the schedules of --schedule; allowed are {offered}")
    return found


def _note(context: "Context", made: "Format", reasons: Sequence[str], *, is_left_out: bool) -> str:
    said = "; ".join(reasons)
    if is_left_out:
        return f"left out, not in {made.title}: {context.traits.name} ({said})"
    return f"plans for {context.traits.name} need code of your own, --emit refuses them: {said}"
