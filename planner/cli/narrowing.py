"""Reads the options that narrow a search, and leaves out frameworks that offer nothing of it."""

from collections.abc import Sequence
from functools import partial

from planner.cli.collector import Collector
from planner.cli.inputs import Question
from planner.errors import InputError, Problem
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.search.space.offered import not_offered
from planner.search.space.space import EVERYTHING

COMMAND_LINE = "command line"


def narrowing_of(
    collector: Collector,
    *,
    fix: Sequence[str] | None,
    limit: Sequence[str] | None,
    where: Sequence[str] | None,
    allow: Sequence[str] | None,
    forbid: Sequence[str] | None,
    schedule: Sequence[str] | None = None,
    placement: str | None = None,
) -> Narrowing:
    """Return what the options leave to search; what is wrong with one is noted.

    ``schedule`` and ``placement`` are the options of these names, which say the same as fixing.
    """
    read = partial(
        read_narrowing,
        fix=fix or (),
        limit=limit or (),
        where=where or (),
        allow=allow or (),
        forbid=forbid or (),
    )
    narrowing = collector.read(read) or EVERYTHING
    for name, given in (("schedule", schedule), ("placement", placement)):
        if given and name in narrowing.values:
            collector.add("--fix", f"{name} is fixed and --{name} given; one of them is enough")
    return narrowing


def offering(question: Question, narrowing: Narrowing) -> Question:
    """The question without frameworks that offer none of the values fixed.

    They are noted; raises InputError where all frameworks drop out.
    """
    problems = [(context, not_offered(context, narrowing)) for context in question.contexts]
    left = [(context, what) for context, what in problems if what is not None]
    if len(left) == len(problems):
        raise InputError(
            Problem(where=COMMAND_LINE, key=text.partition(" ")[0], message=message)
            for _, (text, message) in left
        )
    notes = tuple(
        f"left out for {text}: {context.traits.name} ({message})"
        for context, (text, message) in left
    )
    kept = tuple(context for context, what in problems if what is None)
    return Question(contexts=kept, notes=(*question.notes, *notes))
