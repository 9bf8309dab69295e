"""A word of shell text with the places of its characters."""

import re
import shlex
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from planner.formats.shell.syntax import Quote, Span

Quoting = Literal["bare", "single", "double", "inside", "mixed"]
"""No quotes, a whole quoted text, a part of one, or something of several kinds."""


class Origin(NamedTuple):
    """Where the file holds a character, and the quotes that it stands in."""

    start: int
    end: int
    quote: Quote | None


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
    origins: tuple[Origin, ...] = ()
    """Where every character is made: for a variable's value, in the word that assigns it."""

    @property
    def origin(self) -> Span | None:
        """Where the text is made, without its quotes; None where it is not in one piece."""
        return _in_one_piece({(each.start, each.end) for each in self.origins})

    @property
    def quoting(self) -> Quoting:
        """How the text is quoted where it is made."""
        quotes = {each.quote for each in self.origins}
        if quotes <= {None}:
            return "bare"
        quote = quotes.pop()
        if quotes or quote is None:
            return "mixed"
        if self.origin != (quote.start, quote.end):
            return "inside"
        return "single" if quote.sign == "'" else "double"

    @property
    def place(self) -> Span | None:
        """What to replace in the file to change this word; None where it is not in one piece."""
        if self.site is not None:
            return self.site
        return _in_one_piece(set(self.spans))

    @property
    def end(self) -> int:
        """Behind it in the file, its quotes included; of what words are split from, inside them."""
        if self.site is not None:
            return self.site[1]
        first, last = (f(self.spans, default=(0, 0)) for f in (min, max))
        quote = self.origins[-1].quote if self.origins else None
        is_whole = quote is not None and first[0] <= quote.start and last[1] == quote.end
        return last[1] + is_whole

    @property
    def start(self) -> int:
        """Where it begins in the file."""
        return self.site[0] if self.site else min(self.spans, default=(0, 0))[0]


def _in_one_piece(spans: set[Span]) -> Span | None:
    found = sorted(spans)
    joined = all(left[1] == right[0] for left, right in pairwise(found))
    return (found[0][0], found[-1][1]) if found and joined else None


def respelled(word: Word, text: str) -> tuple[int, int, str] | None:
    """What to write where the word's text is made, so that it becomes another text.

    None where it is not made in one piece, or where the quotes around it cannot hold the text: what
    stands in a part of a quoted text is split into words, or read by another shell.
    """
    if word.origin is None:
        return None
    quoted = shlex.quote(text)
    if quoted == text:
        return (*word.origin, text)
    if word.quoting == "bare":
        return (*word.origin, quoted)
    if word.quoting == "single" and "'" not in text:
        return (*word.origin, text)
    if word.quoting == "double":
        return (*word.origin, re.sub(r'(["\\$`])', r"\\\1", text))
    return None


def split_words(word: Word) -> tuple[Word, ...]:
    """A word that holds a whole command line, as its words."""
    found = [m.span() for m in re.finditer(r"\S+", _masked(word))]
    unknown = _unknown_at(word)
    return tuple(
        Word(
            text=word.text[start:end],
            spans=word.spans[start:end],
            origins=word.origins[start:end],
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
