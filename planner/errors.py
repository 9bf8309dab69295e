"""Errors a user can meet with the exit code of each, and the names that were meant.

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
from difflib import get_close_matches
from functools import lru_cache


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

    @classmethod
    def check(cls, problems: Iterable[Problem]) -> None:
        """Raise the error with these problems, each once, where there are any."""
        found = tuple(dict.fromkeys(problems))
        if found:
            raise cls(found)


class NothingFitsError(PlannerError):
    """No legal configuration fits; the message says which limits bind and what would fit."""

    exit_code = 3


class ExpressError(PlannerError):
    """The framework cannot express the plan."""

    exit_code = 4


# Characters of a name; what is longer was not mistyped.
MAX_LENGTH = 100


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` known names close to ``name``, the closest first.

    Case is ignored; names that contain ``name`` follow those that are spelled alike.
    """
    if len(name) > MAX_LENGTH:
        return []
    return list(_nearest(name, tuple(known), count))


@lru_cache(maxsize=4096)
def _nearest(name: str, known: tuple[str, ...], count: int) -> tuple[str, ...]:
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower, n=count, cutoff=0.6)
    inside = sorted(text for text in by_lower if wanted and wanted in text and text not in close)
    return tuple(by_lower[text] for text in [*close, *inside][:count])


def alike(name: str, known: Iterable[str], likeness: float) -> str | None:
    """Return the known name most like ``name`` if the likeness, up to 1, is at least so large."""
    close = get_close_matches(name[:MAX_LENGTH], known, n=1, cutoff=likeness)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean a, b?`` or, when nothing is close, an empty text."""
    close = nearest(name, known)
    return f"did you mean {', '.join(close)}?" if close else ""


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean a, b?`` or, when nothing is close, all names that are allowed."""
    names = list(known)
    return did_you_mean(name, names) or f"allowed are {', '.join(names) or 'none'}"


def unknown(kind: str, given: str, known: Iterable[str], hint: str = "") -> str:
    """Return that a name is unknown, what is allowed, and the hint or what may be meant."""
    names = tuple(known)
    text = f"unknown {kind} {given!r}; allowed are {', '.join(names)}"
    hint = hint or did_you_mean(given, names)
    return f"{text}. {hint}" if hint else text
