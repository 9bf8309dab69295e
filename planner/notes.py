"""Notes on what was assumed, each with its kind, and the collector of notes and problems."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from planner.errors import InputError, Problem

COMMAND_LINE = "command line"
Value = TypeVar("Value")


class NoteKind(StrEnum):
    """Subject of a note."""

    default = "default"  # a value that nobody gave
    assumed = "assumed"  # the same, in a sentence of its own
    given = "given"  # what the question says, and how it is read


@dataclass(frozen=True, kw_only=True)
class Note:
    """One sentence beside an answer."""

    kind: NoteKind
    text: str
    subject: str = ""  # the option it is about

    @property
    def is_assumed(self) -> bool:
        """True if the note is about a default, and nothing else."""
        return self.kind is not NoteKind.given

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text


class Problems:
    """Runs readers, and keeps the problems and notes of all of them."""

    def __init__(self, where: str = COMMAND_LINE) -> None:
        self.where = where
        self.found: list[Problem] = []
        self.notes: list[Note] = []

    def add(self, key: str, message: str) -> None:
        """Keep one problem of a command-line option, or of a key of a file."""
        self.found.append(Problem(where=self.where, key=key, message=message))

    def note(self, kind: NoteKind, text: str, subject: str = "") -> None:
        """Keep one note."""
        self.notes.append(Note(kind=kind, text=text, subject=subject))

    def read(self, reader: Callable[[], Value]) -> Value | None:
        """Return what ``reader`` returns, or keep its problems."""
        try:
            return reader()
        except InputError as error:
            self.found.extend(error.problems)
            return None

    def parsed(self, option: str, text: str | None, parse: Callable[[str], Value]) -> Value | None:
        """Read the text of an option, or keep the ValueError that says what is wrong with it."""
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.add(option, str(error))
            return None

    def count(self, option: str, text: str | None) -> int | None:
        """Read a count such as 4M, or keep what is wrong with it."""
        # NumPy comes with it, which the command line does without until it has a question.
        from planner.units import parse_count

        return self.parsed(option, text, parse_count)

    def finish(self) -> None:
        """Raise InputError with every problem kept."""
        InputError.check(self.found)
