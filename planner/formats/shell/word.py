"""A word of shell text with the places of its characters."""

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

Span = tuple[int, int]
Quoting = Literal["bare", "single", "double", "inside", "mixed"]
"""No quotes, a whole quoted text, a part of one, or something of several kinds."""


class Quote(NamedTuple):
    """A quoted text: its sign, and where what stands between the signs begins and ends."""

    sign: str
    start: int
    end: int


class Part(NamedTuple):
    """Characters that are made in one place."""

    text: str
    place: Span
    """Where they stand in the file; of a variable's value without blanks, the variable."""
    origin: Span
    """Where they are made: of a variable's value, in the word that assigns it."""
    quote: Quote | None = None
    """What they stand in where they are made."""
    is_known: bool = True
    """False for what could not be resolved, as written; it is never split."""

    def cut(self, start: int, end: int) -> "Part":
        """Some of its characters; those that stand for others share their place."""
        first, last = self.origin
        if last - first != len(self.text):
            return self._replace(text=self.text[start:end])
        origin = (first + start, first + end)
        place = origin if self.place == self.origin else self.place
        return self._replace(text=self.text[start:end], place=place, origin=origin)


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word as a command gets it."""

    parts: tuple[Part, ...]
    written: Span | None = None
    """The written word that it comes from, quotes included; None where that is one of several."""
    is_whole: bool = False
    """Whether all of what is written stands for this word alone."""

    @cached_property
    def text(self) -> str:
        """Its characters."""
        return "".join(part.text for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What in it could not be resolved, as written."""
        return tuple(part.text for part in self.parts if not part.is_known)

    @property
    def site(self) -> Span | None:
        """The written word, where it stands for this word alone."""
        return self.written if self.is_whole else None

    @property
    def origin(self) -> Span | None:
        """Where the text is made, without its quotes; None where it is not in one piece."""
        return in_one_piece(part.origin for part in self.parts)

    @property
    def quote(self) -> Quote | None:
        """What its last character stands in where it is made."""
        return self.parts[-1].quote if self.parts else None

    @property
    def quoting(self) -> Quoting:
        """How the text is quoted where it is made."""
        quotes = {part.quote for part in self.parts}
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
        return self.site or in_one_piece(part.place for part in self.parts)

    @property
    def start(self) -> int:
        """Where it begins in the file."""
        return self.written[0] if self.written else min((p.place[0] for p in self.parts), default=0)

    @property
    def end(self) -> int:
        """Behind it in the file, its quotes included; of what words are split from, inside them."""
        if self.written is not None:
            return self.written[1]
        last = max((part.place[1] for part in self.parts), default=0)
        is_all = (
            self.quote is not None and self.start <= self.quote.start and last == self.quote.end
        )
        return last + is_all

    def cut(self, start: int, end: int) -> Iterator[Part]:
        """Some of its characters."""
        at = bisect_right(self._starts, start) - 1
        while at < len(self.parts) and self._starts[at] < end:
            part, first = self.parts[at], self._starts[at]
            first, last = max(start - first, 0), min(end - first, len(part.text))
            yield part if last - first == len(part.text) else part.cut(first, last)
            at += 1

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(part.text) for part in self.parts)]


def in_one_piece(spans: Iterable[Span]) -> Span | None:
    """All of a file that places take up; None where there is something between them."""
    found = sorted(set(spans))
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


def split(parts: Iterable[Part]) -> Iterator[Part | None]:
    """The parts without their blanks, None in place of these."""
    for part in parts:
        if not part.is_known:
            yield part
            continue
        for found in re.finditer(r"(\s+)|\S+", part.text):
            yield None if found[1] else part.cut(*found.span())


def gathered(parts: Iterable[Part | None]) -> Iterator[tuple[Part, ...]]:
    """The parts of each word of those that None separates."""
    word: list[Part] = []
    for part in parts:
        if part is not None:
            word.append(part)
        elif word:
            yield tuple(word)
            word = []
    if word:
        yield tuple(word)


def split_words(word: Word) -> tuple[Word, ...]:
    """A word that stands without quotes, as its words."""
    return tuple(Word(parts=parts) for parts in gathered(split(word.parts)))
