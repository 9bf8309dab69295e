"""A word of shell text with the places of its characters."""

import re
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from planner.frameworks.shell.tokens import Span


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word as a command gets it."""

    text: str
    spans: tuple[Span, ...]
    """Place of every character; those of a variable's value share the place of the variable."""
    unknown: tuple[str, ...] = ()
    """What in it could not be resolved, as written."""
    site: Span | None = None
    """The written word, where it stands for this word alone."""

    @property
    def place(self) -> Span | None:
        """What to replace in the file to change this word; None where it is not in one piece."""
        if self.site is not None:
            return self.site
        spans = sorted(set(self.spans))
        joined = all(left[1] == right[0] for left, right in pairwise(spans))
        return (spans[0][0], spans[-1][1]) if spans and joined else None

    @property
    def start(self) -> int:
        """Where it begins in the file."""
        return self.site[0] if self.site else min(self.spans, default=(0, 0))[0]


def split_words(word: Word) -> tuple[Word, ...]:
    """A word that holds a whole command line, as its words."""
    found = [m.span() for m in re.finditer(r"\S+", _masked(word))]
    unknown = _unknown_at(word)
    return tuple(
        Word(
            text=word.text[start:end],
            spans=word.spans[start:end],
            unknown=tuple(name for _, name in unknown[_from(unknown, start) : _from(unknown, end)]),
        )
        for start, end in found
    )


def _unknown_at(word: Word) -> list[tuple[int, str]]:
    """Where in the text what is not resolved stands; it is named in this order."""
    found, at = [], 0
    for name in word.unknown:
        place = word.text.find(name, at)
        if place >= 0:
            found.append((place, name))
            at = place + len(name)
    return found


def _from(unknown: list[tuple[int, str]], place: int) -> int:
    return bisect_left(unknown, (place, ""))


def _masked(word: Word) -> str:
    """The text without the blanks inside an expansion that is not resolved."""
    if not any(re.search(r"\s", name) for name in word.unknown):
        return word.text
    spans = [(-1, -1), *word.spans, (-1, -1)]
    return "".join(
        "x" if char.isspace() and span[1] - span[0] > 1 and span in (before, after) else char
        for char, before, span, after in zip(word.text, spans, spans[1:], spans[2:], strict=False)
    )
