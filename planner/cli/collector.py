"""Keeps the problems of all options, so that they are reported at once."""

from collections.abc import Callable
from typing import TypeVar

from planner.errors import InputError, Problem
from planner.units import parse_count

Value = TypeVar("Value")


class Collector:
    """Runs readers and keeps the problems of all of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, where: str, message: str) -> None:
        """Note one problem of a command-line option."""
        self.problems.append(Problem(where="command line", key=where, message=message))

    def read(self, reader: Callable[[], Value]) -> Value | None:
        """Return what ``reader`` returns, or note its problems."""
        try:
            return reader()
        except InputError as error:
            self.problems.extend(error.problems)
            return None

    def parsed(self, option: str, text: str | None, parse: Callable[[str], Value]) -> Value | None:
        """Read the text of an option, or note the ValueError that says what is wrong with it."""
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.add(option, str(error))
            return None

    def count(self, option: str, text: str | None) -> int | None:
        """Read a count such as 4M, or note what is wrong with it."""
        return self.parsed(option, text, parse_count)

    def finish(self) -> None:
        """Raise when anything was noted."""
        if self.problems:
            raise InputError(dict.fromkeys(self.problems))
