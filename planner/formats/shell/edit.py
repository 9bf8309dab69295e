"""Edits of files of words: an option is changed where its value is made, taken out, or added.

What is written is read again: an edit that would change another word is not made.
"""

import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from planner.documents.edit import Splice, spliced
from planner.errors import ExpressError, InputError
from planner.formats.format import SourceText
from planner.formats.shell.launch import (
    Entry,
    Launch,
    Launches,
    launcher_settings,
    processes,
    processes_edit,
    strays,
)
from planner.formats.shell.word import Command, Lines, Span, Word, branches_in

_LINE_END = re.compile(r"[ \t]*\\?\r?\n")
# By the name of an option all its words, none where it goes.
Wanted = Mapping[str, Sequence[str]]


def _within_single(text: str) -> str:
    """A text as another shell reads it, between single quotes."""
    quoted = shlex.quote(text)
    if "'" in text:
        return quoted.replace("'", r"'\''")
    return text if quoted == text else f'"{text}"'


class _StuckError(Exception):
    """No edit of a word is safe."""


def edited(
    source: SourceText,
    options: Callable[[SourceText], Launches],
    wanted: Wanted,
    num_gpus: int,
    deciding: Container[str],
    last: str = "",
) -> str:
    """The file with options as they are wanted, and launchers that start so many processes.

    ``options`` finds the launches in a file. All of the program are edited; options and variables
    that are ``deciding`` should agree in them. ``last`` is the option that ends the list: others
    count before it only. Raises InputError, and ExpressError where no edit is safe.
    """
    words = " ".join(shlex.join(each) for each in wanted.values() if each)
    gone = " ".join(name for name, each in wanted.items() if not each)
    by_hand = f"{words}{f'; without {gone}' if gone else ''}"
    found = options(source)
    before = _launches(found)
    if why := _refused(source, found[0], before, deciding, by_hand):
        raise ExpressError(f"{source.path}: {why}")
    # Which spelling a place needs depends on the quotes around it and on how often it is read: the
    # first that is read again as the text is taken. Quotes of its own come before none, lest names
    # of files take the place of a pattern.
    spellings: list[Callable[[str], str]] = [
        shlex.quote,
        str,
        _within_single,
        # As another shell reads it, between double quotes.
        lambda text: re.sub(r'(["\\$`])', r"\\\1", shlex.quote(text)),
    ]
    for uses_origin, spelled in product((True, False), spellings):
        # Launches may share words: an edit of one must not be made again for the next.
        edits: dict[Splice, None] = {}
        try:
            for command, entries in before:
                edit = _Edits(
                    source.text,
                    command,
                    entries,
                    wanted,
                    last,
                    uses_origin,
                    spelled,
                )
                own = [*processes_edit(source, command.launcher, num_gpus), *edit.all()]
                # A variable that makes two options stays: each is written where it is used.
                if len(set(own)) < len(own):
                    raise _StuckError
                edits |= dict.fromkeys(own)
            made = replace(source, text=spliced(source.text, edits))
            after = _launches(options(made))
        except (_StuckError, InputError):
            continue
        if len(before) != len(after):
            continue
        pairs = zip(before, after, strict=True)
        if all(_has(new, entries, wanted, num_gpus) for (_, entries), new in pairs):
            return made.text
    raise ExpressError(
        f"{source.path}: its options stand inside quotes or are computed; "
        f"write them as plain words: {by_hand}"
    )


def _launches(found: Launches) -> Sequence[Launch]:
    """All that start the program of the one that is read, this one among them."""
    chosen, others = found
    program = chosen[0].program
    same = [
        launch
        for launch in others
        if program and launch[0].program and launch[0].program.text == program.text
    ]
    return same or [chosen]


def _refused(
    source: SourceText,
    chosen: Launch,
    found: Sequence[Launch],
    deciding: Container[str],
    by_hand: str,
) -> str:
    """Why launches are not edited; empty where they are."""
    if chosen[0].is_kept:
        how = "how it is run is not understood; edit it by hand"
        return f"the command line stands in a variable, and {how}"
    unlike = [each[0].start for each in found if _differ(each, chosen, deciding)]
    if unlike:
        lines = Lines(source.text)
        here = lines.at(chosen[0].start)
        others = ", ".join(map(str, sorted(set(map(lines.at, unlike)))))
        return (
            f"line {others} starts the program of line {here} too, with other decisions or "
            f"processes; to repair line {here}, write there {by_hand}"
        )
    # People do not expect more launches to be edited at once.
    if len(found) > 8:
        return f"starts the program {len(found)} times; edit it by hand: {by_hand}"
    return ""


def _differ(left: Launch, right: Launch, deciding: Container[str]) -> bool:
    """Return True if two launches differ in decisions or in numbers of processes."""
    said, counts = [], set[int | None]()
    for command, entries in (left, right):
        options = {each.name: each.texts for each in entries}
        variables = {name: [word.text] for name, word in command.environment.items()}
        both = (options | variables).items()
        said.append({name: texts for name, texts in both if name in deciding})
        counts.add(_num_processes(command))
    return said[0] != said[1] or len(counts - {None}) > 1


def _num_processes(command: Command) -> int | None:
    found = processes(launcher_settings(command.launcher, Lines("")))
    return found.value if found else None


def _has(launch: Launch, before: Sequence[Entry], wanted: Wanted, num_gpus: int) -> bool:
    """Return True if a launch has what is wanted once, and all else as it was."""
    command, after = launch
    if _num_processes(command) not in (None, num_gpus):
        return False
    found = [each for each in after if each.name in wanted]
    others = [(each.name, each.texts) for each in after if each.name not in wanted]
    old_others = [(each.name, each.texts) for each in before if each.name not in wanted]
    names = sorted(name for name, words in wanted.items() if words)
    is_same = others == old_others and sorted(each.name for each in found) == names
    return is_same and all(_says(each, wanted[each.name]) for each in found)


def _says(entry: Entry, words: Sequence[str]) -> bool:
    is_named = entry.joined is not None or entry.word.text == words[0]
    return is_named and entry.texts == _values(words) and not entry.unknown


def _values(words: Sequence[str]) -> list[str]:
    first, *others = words
    _, *joined = re.split("[=:]", first, maxsplit=1)
    return joined + others


@dataclass(frozen=True)
class _Edits:
    """The edits of a text that make the options of a launch those that are wanted."""

    text: str
    command: Command
    entries: Sequence[Entry]
    wanted: Wanted
    last: str
    uses_origin: bool  # True if a value is changed where it is defined, and not where it is used
    spelled: Callable[[str], str]  # a text as it is written

    def all(self) -> Iterator[Splice]:
        """Every edit; raises _StuckError."""
        names = [each.name for each in self.entries]
        end = names.index(self.last) + 1 if self.last in names else len(names)
        there: set[str] = set()
        for at, entry in enumerate(self.entries):
            if entry.name not in self.wanted:
                continue
            words = self.wanted[entry.name]
            if not words or entry.name in there or at >= end:
                yield from self._removal((entry.word, *entry.values))
                continue
            there.add(entry.name)
            if not _says(entry, words):
                yield from self._change(entry, words)
        added = {name: ws for name, ws in self.wanted.items() if ws and name not in there}
        if added:
            yield from self._addition(self.entries[:end], added)

    def _change(self, entry: Entry, words: Sequence[str]) -> Iterator[Splice]:
        texts, places = list(words), (entry.word, *entry.values)
        values = _values(words)
        if entry.joined is not None and len(values) == 1:
            texts = [entry.word.text.removesuffix(entry.joined) + values[0]]
        for word, text in zip(places, texts, strict=False):
            if word.text != text or word.unknown:
                yield self._respelled(word, text)
        if len(texts) > len(places):
            end = places[-1].end
            yield end, end, "".join(f" {self.spelled(text)}" for text in texts[len(places) :])
        yield from self._removal(places[len(texts) :])

    def _respelled(self, word: Word, text: str) -> Splice:
        """The edit that makes a word another text: where it is made, or else where it is used."""
        made, site = word.origin, word.site
        if made and self.uses_origin:
            # What is made where it stands is written anew with its quotes, not between them.
            stands_there = site and site[0] <= made[0] and made[1] <= site[1]
            if not stands_there and self._depth(made[0]) <= self._depth(word.start):
                return (*made, self.spelled(text))
        return (*self._place(word), self.spelled(text))

    def _removal(self, words: Sequence[Word]) -> Iterator[Splice]:
        places = list(map(self._place, words))
        if places:
            (first, end_of_first), (start_of_last, last) = places[0], places[-1]
            if not self.text[end_of_first:start_of_last].strip(" \t"):
                places = [(first, last)]
        for start, end in places:
            yield (*self._with_blanks(start, end), "")

    def _addition(self, entries: Sequence[Entry], added: Wanted) -> Iterator[Splice]:
        """New options go behind the last option that stays, of those in the fewest branches."""
        gone = {name for name, words in self.wanted.items() if not words} | {self.last}
        stay = [each for each in entries if each.name not in gone]
        if not stay:
            # Behind the program, or at the start of a list.
            text = " ".join(map(shlex.join, added.values()))
            program = self.command.program
            if program:
                yield program.end, program.end, f" {text}"
            elif self.command.is_list:
                yield 0, 0, f"{text} "
            else:
                raise _StuckError
            return
        chosen = min(reversed(stay), key=lambda each: self._depth(each.word.start))
        behind = (chosen.word, *chosen.values)[-1]
        gap = "\n" if self.command.is_list and "\n" in self.text.rstrip() else " "
        rest = strays(self.command.words, [each for each in self.entries if each.name in gone])
        for name, words in added.items():
            at, text = behind.end, " ".join(map(self.spelled, words))
            if name == self.last and rest[-1] is not behind:
                if self.command.end is None:
                    raise _StuckError
                at, text = self.command.end, shlex.join(words)
            yield at, at, gap + text

    @cached_property
    def _branches(self) -> Sequence[Span]:
        return () if self.command.is_list else branches_in(self.text)

    def _depth(self, at: int) -> int:
        return sum(start <= at < end for start, end in self._branches)

    @staticmethod
    def _place(word: Word) -> Span:
        if word.place is None:
            raise _StuckError
        return word.place

    def _with_blanks(self, start: int, end: int) -> Span:
        """A word with the blanks before it, or with its line where it stands alone in it."""
        text = self.text
        first = len(text[:start].rstrip(" \t"))
        after = _LINE_END.match(text, end)
        is_first = first == 0 or text[first - 1] == "\n"
        is_continued = text[:first].endswith(("\\\n", "\\\r\n"))
        if is_first and after and is_continued == after[0].lstrip().startswith("\\"):
            return first, after.end()
        if is_first or text[first - 1] in "(\"'":
            return start, end
        return first, end
