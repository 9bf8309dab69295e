"""Words and commands of shell text, each character with the places that it has in the file."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

Span = tuple[int, int]


class Char(NamedTuple):
    """A character of a word; of an empty text in quotes, which is a word too, none."""

    text: str
    place: Span  # Place in the file; for a variable's value without blanks, that of the variable
    origin: Span  # Place where it is defined: for a variable's value, in the word that assigns it
    is_known: bool = True
    """False in what could not be resolved: that stands as it is written, and is never split."""


# Of a text: None in the place of blanks that separate words.
Chars = Iterator[Char | None]


@dataclass(frozen=True)
class Word:
    """A word as a command gets it."""

    chars: tuple[Char, ...]
    site: Span | None = None
    """The written word, quotes included, where all of it stands for this word alone."""

    @cached_property
    def text(self) -> str:
        """Its characters."""
        return "".join(char.text for char in self.chars)

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Parts that could not be resolved, as written."""
        runs = groupby(self.chars, key=lambda char: (char.is_known, char.place))
        unknown = (run for (is_known, _), run in runs if not is_known)
        return tuple("".join(char.text for char in run) for run in unknown)

    @property
    def origin(self) -> Span | None:
        """Place where the text is defined, without its quotes; None if it is not in one piece."""
        return in_one_piece(char.origin for char in self.chars)

    @property
    def place(self) -> Span | None:
        """Place to edit in the file to change this word; None if it is not in one piece."""
        return self.site or in_one_piece(char.place for char in self.chars)

    @property
    def start(self) -> int:
        """Position in the file where the word begins."""
        starts = [char.place[0] for char in self.chars]
        return self.site[0] if self.site else min(starts, default=0)

    @property
    def end(self) -> int:
        """Behind it in the file."""
        ends = [char.place[1] for char in self.chars]
        return self.site[1] if self.site else max(ends, default=0)

    def cut(self, start: int, end: int) -> "Word":
        """Some of its characters."""
        chars = [char for char in self.chars if char.text]
        return Word(tuple(chars[start:end]))


def in_one_piece(spans: Iterable[Span]) -> Span | None:
    """All of a file that places take up; None where there is something between them."""
    found = sorted(set(spans))
    gaps = [(left, right) for (_, left), (right, _) in pairwise(found) if left != right]
    if gaps or not found:
        return None
    (start, _), (_, end) = found[0], found[-1]
    return start, end


def split(chars: Iterable[Char]) -> Chars:
    """The characters without blanks, None in place of these."""
    for each in chars:
        if each.text:
            yield None if each.is_known and each.text.isspace() else each


def gathered(chars: Chars) -> Iterator[tuple[Char, ...]]:
    """The characters of each word of those that None separates."""
    for is_gap, run in groupby(chars, key=lambda each: each is None):
        if not is_gap:
            yield tuple(each for each in run if each)


def split_words(word: Word) -> tuple[Word, ...]:
    """A word that stands without quotes, as its words."""
    if word.text and not re.search(r"\s", word.text):
        return (word,)
    return tuple(map(Word, gathered(split(word.chars))))


def spaced(words: Iterable[Word]) -> Iterator[Char]:
    """Words in one line; a blank between two stands where the file has something between them."""
    end = 0
    for word in words:
        gap = (end, word.start) if 0 < end < word.start else (0, 0)
        yield Char(" ", gap, gap)
        yield from word.chars
        end = word.end


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words of a command, or those behind its program; and what starts it."""

    words: tuple[Word, ...]
    launcher: tuple[Word, ...] = ()
    """Words before them: of what starts the shell, sbatch's in comments, torchrun and its own."""
    program: Word | None = None
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables set for it alone, and those that its shell exports."""
    is_list: bool = False  # True if the file consists of words alone, and no commands
    is_kept: bool = False
    """True if a variable contains the command line and nothing seems to run it."""
    end: int | None = None
    """Behind its last written word; None where that stands for the words of several commands."""

    @property
    def start(self) -> int:
        """Position of the program in the file, or of the words."""
        written = (self.program, *self.words)
        return min((word.start for word in written if word), default=0)

    def behind(self, at: int) -> "Command":
        """Return the command whose program is the word at this index, with the words after it."""
        launcher = self.launcher + self.words[:at]
        program, *after = self.words[at:]
        return replace(self, words=tuple(after), launcher=launcher, program=program)


class Lines:
    """Starts of the lines of a text."""

    def __init__(self, text: str) -> None:
        ends = (found.end() for found in re.finditer("\n", text))
        self.starts = [0, *ends]

    def at(self, place: int) -> int:
        """The line of a place, from 1."""
        return bisect_right(self.starts, place)
