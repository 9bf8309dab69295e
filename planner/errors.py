"""Errors a user can meet, and the exit code each ends the program with.

::

    PlannerError
    ├── InputError        exit 2: files, names, options that cannot be used
    │                     (3 where options are sound one by one and leave nothing together)
    ├── NothingFitsError  exit 3: no legal configuration fits
    └── ExpressError      exit 4: the framework cannot express the plan

Anything else is a defect of the program: a short message, exit 70.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with the input, addressed by file and key."""

    where: str
    key: str
    message: str
    leaves_nothing: bool = False  # options that are sound, one by one, contradict each other

    def __str__(self) -> str:
        """Render as ``file::key.path: what is wrong``."""
        return f"{self.where}::{self.key}: {self.message}"


class PlannerError(Exception):
    """Base of every error that is shown to a user without a traceback."""

    exit_code = 2


class InputError(PlannerError):
    """The input cannot be used; carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        if self.problems and all(problem.leaves_nothing for problem in self.problems):
            self.exit_code = NothingFitsError.exit_code
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def single(cls, where: str, key: str, message: str) -> "InputError":
        """Return an error with one problem."""
        return cls([Problem(where=where, key=key, message=message)])


class NothingFitsError(PlannerError):
    """No legal configuration fits; the message says which limits bind and what would fit."""

    exit_code = 3


class ExpressError(PlannerError):
    """The framework cannot express the plan."""

    exit_code = 4
