"""Edits of files of words: an option is changed where its value is made, taken out, or added.

What is written is read again: an edit that would change another word is not made.
"""

import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import dropwhile, islice, product

from planner.errors import ExpressError, InputError
from planner.formats.format import SourceText
from planner.formats.shell.launched import KEPT, launcher_settings, processes, processes_edit
from planner.formats.shell.syntax import branches_in, quote_at
from planner.formats.shell.word import Span, Word, respelled
from planner.formats.shell.words import Lines, line_numbers

MAX_LAUNCHES = 8
"""Of a program in one script; more are not edited."""
_LINE_END = re.compile(r"[ \t]*\\?\r?\n")
Edit = tuple[int, int, str]
Wanted = Mapping[str, Sequence[str]]
"""By the name of an option all its words, none where it goes."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An option of a file with the words of its value."""

    name: str
    word: Word
    values: tuple[Word, ...] = ()
    joined: str | None = None
    """The value where it is written behind an equals sign."""
    line: int

    @property
    def unknown(self) -> tuple[str, ...]:
        """What in the value could not be resolved."""
        own = self.word.unknown if self.joined is not None else ()
        return (*own, *(name for value in self.values for name in value.unknown))

    @property
    def texts(self) -> list[str]:
        """Words of the value."""
        return [self.joined] if self.joined is not None else [word.text for word in self.values]

    @property
    def last(self) -> Word:
        """The word behind which the option ends."""
        return self.values[-1] if self.values else self.word


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a file hands to a program."""

    words: tuple[Word, ...]
    launcher: tuple[Word, ...] = ()
    """Before the program: torchrun and its own words."""
    program: Word | None = None
    environment: Mapping[str, Word] = field(default_factory=dict)
    is_list: bool = False
    """Whether the file holds words alone, and no commands."""
    is_kept: bool = False
    """Whether they are those of a command line that a variable holds and nothing seems to run."""
    is_read_twice: bool = False
    """Whether another shell reads them again: ``eval``, ``bash -c``."""
    end: int | None = None
    """Behind the command, where what stands there is not shared with another."""
    launches: "tuple[Launch, ...]" = ()
    """All that start the program, this one among them, where several do: in branches, in turn."""
    unlike: tuple[int, ...] = ()
    """Lines of those with other decisions or numbers of processes."""

    @property
    def start(self) -> int:
        """Where the program stands in the file, or its words."""
        return min(word.start for word in (*filter(None, [self.program]), *self.words))


Launch = tuple[Arguments, Sequence[Entry]]
Options = Callable[[SourceText], Launch]
"""Finds what a file hands on, and the options in it; raises InputError."""


class _StuckError(Exception):
    """No edit of a word is safe."""


def among(
    chosen: Launch, found: Iterable[Launch], deciding: Container[str], lines: Lines
) -> Launch:
    """A launch with all that start its program; options and variables that decide should agree."""
    arguments, entries = chosen
    name = arguments.program and arguments.program.text
    same = [each for each in found if each[0].program and each[0].program.text == name]
    if len(same) < 2:
        return chosen
    unlike = {lines.at(each[0].start) for each in same if _differ(each, chosen, deciding, lines)}
    return replace(arguments, launches=tuple(same), unlike=tuple(sorted(unlike))), entries


def _differ(left: Launch, right: Launch, deciding: Container[str], lines: Lines) -> bool:
    """Whether two launches decide otherwise, or start other numbers of processes."""
    both = (left, right)
    decided = [{e.name: e.texts for e in own if e.name in deciding} for _, own in both]
    variables = [
        {name: word.text for name, word in each.environment.items() if name in deciding}
        for each, _ in both
    ]
    found = [processes(launcher_settings(each.launcher, lines)) for each, _ in both]
    return (
        decided[0] != decided[1]
        or variables[0] != variables[1]
        or len({each.value for each in found if each}) > 1
    )


def edited(
    source: SourceText, options: Options, wanted: Wanted, num_gpus: int, *, last: str = ""
) -> str:
    """The file with options as they are wanted, and launchers that start so many processes.

    ``last`` is the option that ends the list: others count before it only. Raises ExpressError
    with the words to write by hand where no edit is safe, and InputError.
    """
    launch = options(source)
    before = _usable(source, launch, wanted)
    order = range(len(before))
    for uses_origin, places in product((True, False), dict.fromkeys((order, order[::-1]))):
        made = source
        try:
            for at in places:
                arguments, entries = _launch_at(at, options(made))
                splice = _Splice(
                    text=made.text,
                    arguments=arguments,
                    entries=entries,
                    wanted=wanted,
                    last=last,
                    uses_origin=uses_origin,
                )
                launched = processes_edit(made, arguments.launcher, num_gpus)
                made = replace(made, text=_applied(made.text, [*launched, *splice.edits()]))
            if _hold(made, options, before, wanted, num_gpus):
                return made.text
        except (_StuckError, InputError):
            continue
    raise ExpressError(
        f"{source.path}: its options stand inside quotes or are computed; "
        f"write them as plain words: {_by_hand(wanted)}"
    )


def _usable(source: SourceText, launch: Launch, wanted: Wanted) -> Sequence[Launch]:
    """The launches to edit; raises ExpressError where it is not known which are meant."""
    arguments, lines = launch[0], line_numbers(source.text)
    if arguments.is_kept:
        raise ExpressError(f"{source.path}: {KEPT}")
    if arguments.unlike:
        here, others = lines.at(arguments.start), ", ".join(map(str, arguments.unlike))
        raise ExpressError(
            f"{source.path}: line {others} starts the program of line {here} too, with other "
            f"decisions or processes; to repair line {here}, write there {_by_hand(wanted)}"
        )
    found = _launches(launch)
    if len(found) > MAX_LAUNCHES:
        message = f"starts the program {len(found)} times; edit it by hand: {_by_hand(wanted)}"
        raise ExpressError(f"{source.path}: {message}")
    return found


def _launches(launch: Launch) -> Sequence[Launch]:
    return launch[0].launches or (launch,)


def _launch_at(at: int, launch: Launch) -> Launch:
    """One of the launches; raises _StuckError where an edit has lost it."""
    found = _launches(launch)
    if at >= len(found):
        raise _StuckError
    return found[at]


def _by_hand(wanted: Wanted) -> str:
    words = " ".join(shlex.join(each) for each in wanted.values() if each)
    gone = " ".join(name for name, each in wanted.items() if not each)
    return f"{words}{f'; without {gone}' if gone else ''}"


def _applied(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits; where they overlap the result is read as something else."""
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[at : max(start, at)], new]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def _hold(
    source: SourceText,
    options: Options,
    before: Sequence[Launch],
    wanted: Wanted,
    num_gpus: int,
) -> bool:
    """Whether a file, read again, has what is wanted once in each launch, all else as it was."""
    after, lines = _launches(options(source)), line_numbers(source.text)
    return len(before) == len(after) and all(
        _has(new, old[1], wanted, num_gpus, lines) for old, new in zip(before, after, strict=True)
    )


def _has(
    launch: Launch, before: Sequence[Entry], wanted: Wanted, num_gpus: int, lines: Lines
) -> bool:
    arguments, after = launch
    found = [each for each in after if each.name in wanted]
    count = processes(launcher_settings(arguments.launcher, lines))
    return (
        _others(after, wanted) == _others(before, wanted)
        and sorted(each.name for each in found) == sorted(name for name, ws in wanted.items() if ws)
        and all(_says(each, wanted[each.name]) for each in found)
        and (count is None or count.value == num_gpus)
    )


def _others(entries: Sequence[Entry], wanted: Wanted) -> list[tuple[str, list[str]]]:
    return [(each.name, each.texts) for each in entries if each.name not in wanted]


def _says(entry: Entry, words: Sequence[str]) -> bool:
    """Whether an option is these words already."""
    is_named = entry.joined is not None or entry.word.text == words[0]
    return is_named and entry.texts == _values(words) and not entry.unknown


def _values(words: Sequence[str]) -> list[str]:
    """The value in an option's words."""
    return [*re.split("[=:]", words[0], maxsplit=1)[1:], *words[1:]]


@dataclass(frozen=True, kw_only=True)
class _Splice:
    """The edits of a text that make its options those that are wanted."""

    text: str
    arguments: Arguments
    entries: Sequence[Entry]
    wanted: Wanted
    last: str
    uses_origin: bool
    """Whether a value is changed where it is made, and not where it is used."""

    def edits(self) -> Iterator[Edit]:
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

    def _change(self, entry: Entry, words: Sequence[str]) -> Iterator[Edit]:
        texts, places = list(words), (entry.word, *entry.values)
        values = _values(words)
        if entry.joined is not None and len(values) == 1:
            texts = [entry.word.text.removesuffix(entry.joined) + values[0]]
        for word, text in zip(places, texts, strict=False):
            if word.text != text or word.unknown:
                yield self._respelled(word, text)
        if len(texts) > len(places):
            more = (self._quoted(entry.last, text) for text in texts[len(places) :])
            yield entry.last.end, entry.last.end, "".join(f" {text}" for text in more)
        yield from self._removal(places[len(texts) :])

    def _respelled(self, word: Word, text: str) -> Edit:
        edit = respelled(word, text) if self.uses_origin else None
        if edit is not None and self._depth(edit[0]) <= self._depth(word.start):
            return edit
        return (*_place(word), self._quoted(word, text))

    def _quoted(self, word: Word, text: str) -> str:
        """A text as it is written in place of a word, or behind it."""
        quoted, sign = shlex.quote(text), self._sign(word)
        if not self.arguments.is_read_twice:
            return text if sign and word.written is None else quoted
        if sign == '"':
            return re.sub(r'(["\\$`])', r"\\\1", quoted)
        if sign == "'" and "'" in text:
            return quoted.replace("'", r"'\''")
        return f'"{text}"' if sign == "'" and quoted != text else quoted

    def _sign(self, word: Word) -> str:
        """What the place behind a word is quoted with."""
        last = word.parts[-1] if word.parts else None
        if last and last.place != last.origin:
            return quote_at(self.text, last.place[0])
        return word.quote.sign if word.quote else ""

    def _removal(self, words: Sequence[Word]) -> Iterator[Edit]:
        places = [_place(word) for word in words]
        if places and not self.text[places[0][1] : places[-1][0]].strip(" \t"):
            places = [(places[0][0], places[-1][1])]
        for start, end in places:
            yield (*_with_blanks(self.text, start, end), "")

    def _addition(self, entries: Sequence[Entry], added: Wanted) -> Iterator[Edit]:
        """New options go behind the last option that stays, of those in the fewest branches."""
        gone = {self.last, *(name for name, words in self.wanted.items() if not words)}
        stay = [each for each in entries if each.name not in gone]
        if not stay:
            yield self._first(entries, added)
            return
        depths = [self._depth(each.word.start) for each in stay]
        behind = stay[len(depths) - 1 - depths[::-1].index(min(depths))].last
        gap = "\n" if self.arguments.is_list and "\n" in self.text.rstrip() else " "
        is_end = self._is_end(behind, gone)
        for name, words in added.items():
            if name == self.last and not is_end:
                at, text = self._behind_all(), shlex.join(words)
            else:
                at, text = behind.end, " ".join(self._quoted(behind, word) for word in words)
            yield at, at, gap + text

    def _is_end(self, word: Word, gone: Container[str]) -> bool:
        """Whether nothing that stays follows a word."""
        going = {id(w) for e in self.entries if e.name in gone for w in (e.word, *e.values)}
        rest = dropwhile(lambda each: each is not word, self.arguments.words)
        return all(id(each) in going for each in islice(rest, 1, None))

    def _behind_all(self) -> int:
        if self.arguments.end is None:
            raise _StuckError
        return self.arguments.end

    def _first(self, entries: Sequence[Entry], added: Wanted) -> Edit:
        """Before the first option there is, behind the program, or at the end of a list."""
        text = " ".join(map(shlex.join, added.values()))
        if entries:
            start, _ = _place(entries[0].word)
            return start, start, f"{text} "
        program = self.arguments.program
        at = program.end if program else len(self.text.rstrip())
        return at, at, f" {text}" if at else text

    @cached_property
    def _branches(self) -> Sequence[Span]:
        return () if self.arguments.is_list else branches_in(self.text)

    def _depth(self, at: int) -> int:
        """In how many branches a place lies."""
        return sum(start <= at < end for start, end in self._branches)


def _place(word: Word) -> Span:
    if word.place is None:
        raise _StuckError
    return word.place


def _with_blanks(text: str, start: int, end: int) -> Span:
    """A word with the blanks before it, or with its line where it stands alone in it."""
    first, after = len(text[:start].rstrip(" \t")), _LINE_END.match(text, end)
    is_first = first == 0 or text[first - 1] == "\n"
    is_continued = text[:first].endswith(("\\\n", "\\\r\n"))
    if is_first and after and is_continued == after[0].lstrip().startswith("\\"):
        return first, after.end()
    return (first, end) if not is_first and text[first - 1] not in "(\"'" else (start, end)
