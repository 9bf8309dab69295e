"""The options of a file of words: what they say, and what is wrong with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from planner.errors import InputError
from planner.formats.format import Finding, Located, Severity, SourceText, listed
from planner.formats.settings import finding_at
from planner.formats.shell.launch import launcher_settings, unknown_options
from planner.formats.shell.script import read_script, read_words
from planner.formats.shell.word import Command, Lines, Word


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An option of a file with the words of its value."""

    name: str
    word: Word
    values: tuple[Word, ...] = ()
    joined: str | None = None  # the value where it is written behind an equals sign
    spelled: str = ""  # as the file has it, where that is not the name

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts of the value that could not be resolved."""
        words = self.values if self.joined is None else (self.word,)
        return tuple(name for word in words for name in word.unknown)

    @property
    def texts(self) -> list[str]:
        """Words of the value."""
        if self.joined is not None:
            return [self.joined]
        return [word.text for word in self.values]


Launch = tuple[Command, Sequence[Entry]]
# The one that is read, and all that the file has in its order; none of a list of words.
Launches = tuple[Launch, Sequence[Launch]]


def launches_in(
    source: SourceText,
    starts: Callable[[Iterable[Command]], Iterable[Command]],
    options: Callable[[Sequence[Word]], list[Entry]],
    weight: Callable[[Launch], int],
    *,
    is_list: bool,
    lacking: str = "",
) -> Launches:
    """The launches of a program in a script, or the options of a file that is a list of words.

    ``starts`` finds the program in commands, or in those that variables hold where no other has
    any ``weight``. The one that is read has most. Raises InputError, with what is ``lacking`` where
    there is none.
    """
    if is_list:
        words = read_words(source)
        return (Command(words=words, is_list=True), options(words)), ()
    script = read_script(source)

    def launches(commands: Iterable[Command]) -> Iterator[Launch]:
        for command in starts(commands):
            environment = {**script.environment, **command.environment}
            yield replace(command, environment=environment), options(command.words)

    found = list(launches(script.commands))
    if not any(map(weight, found)):
        found = list(launches(script.kept()))
    if not any(map(weight, found)):
        lines = Lines(source.text)
        places = (f"{what} in line {lines.at(at)}" for at, what in script.unread)
        unread = f"; not looked into: {listed([*places])}" if script.unread else ""
        raise InputError.single(source.path, "", f"{lacking}{unread}")
    return max(found, key=weight), found


def strays(words: Sequence[Word], entries: Sequence[Entry]) -> list[Word]:
    """Words that belong to no option."""
    taken = {id(word) for entry in entries for word in (entry.word, *entry.values)}
    return [word for word in words if id(word) not in taken]


def grouped(
    words: Sequence[Word],
    is_option: Callable[[str], bool],
    most: Callable[[str], int | None],
) -> list[Entry]:
    """Options with their values.

    ``most`` says how many words an option takes without an equals sign; None: all up to the next.
    """
    starts = [at for at, word in enumerate(words) if is_option(word.text)]
    found: list[Entry] = []
    for at, end in pairwise([*starts, len(words)]):
        word, *behind = words[at:end]
        name, sign, joined = word.text.partition("=")
        if sign:
            found.append(Entry(name=name, word=word, joined=joined))
        else:
            values = tuple(behind[: most(name)])
            found.append(Entry(name=name, word=word, values=values))
    return found


@dataclass(kw_only=True)
class WordsReader:
    """Settings and findings of a file, as they come."""

    format: str
    source: SourceText
    settings: dict[str, Located] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    keeps_open: bool = True
    """The value of an option that is not resolved, or wrong, is None; False: as if not given."""

    @cached_property
    def lines(self) -> Lines:
        """Lines of the file."""
        return Lines(self.source.text)

    def placed(self, entry: Entry, value: object = None) -> Located:
        """A value with the place of its option."""
        key = entry.spelled or entry.name
        return Located(value=value, key=key[:120], line=self.lines.at(entry.word.start))

    def report(
        self, at: Entry | Located, rule: str, message: str, severity: Severity = "error"
    ) -> None:
        """Note what is wrong with an option or a word."""
        place = self.placed(at) if isinstance(at, Entry) else at
        found = finding_at(f"{self.format}.{rule}", self.source.path, place, message, severity)
        self.findings.append(found)

    def take(
        self,
        entries: Sequence[Entry],
        value: Callable[[Entry], object],
        branches: Sequence[int] = (),
    ) -> None:
        """Values by option, the last one of each; a ValueError says what is wrong with one.

        ``branches`` are the places where a script goes on with another branch.
        """
        before: dict[str, Entry] = {}
        for entry in entries:
            if other := before.get(entry.name):
                line = self.lines.at(other.word.start)
                first, last = sorted((other.word.start, entry.word.start))
                is_in_turn = any(first < place < last for place in branches)
                severity: Severity = "warning"
                says = "given again; the last one counts, another"
                if is_in_turn:
                    severity = "note"
                    says = "given in two branches; this one is checked, the other"
                self.report(entry, "duplicate_key", f"{says} is in line {line}", severity)
            before[entry.name] = entry
            found, is_open = None, bool(entry.unknown)
            try:
                found = None if is_open else value(entry)
            except ValueError as error:
                is_open = True
                self.report(entry, "bad_value", str(error))
            if self.keeps_open or not is_open:
                self.settings[entry.name] = self.placed(entry, found)

    def note_open(self, entries: Sequence[Entry]) -> None:
        """Report what variables leave open in one note: a script given its sizes has many."""
        if not entries:
            return
        first, names = entries[0], dict.fromkeys(each.name for each in entries)
        if len(entries) > 1:
            message = (
                f"{len(entries)} options are taken as not known, whose variables the file does not "
                f"set, or on which branches differ: {listed([*names])}"
            )
        else:
            parts = ", ".join(dict.fromkeys(first.unknown or first.word.unknown))
            message = f"{parts[:80]} is not set in the file, or branches differ; taken as not known"
        self.report(first, "unresolved", message, "note")

    def take_launcher(self, command: Command) -> dict[str, Located]:
        """Return the settings of the launcher's words; report the first that is not known."""
        for word, hint in unknown_options(command.launcher):
            message = f"torchrun has no such option; {hint}".removesuffix("; ")
            entry = Entry(name=word.text.partition("=")[0], word=word)
            self.report(entry, "unknown_key", message)
        return launcher_settings(command.launcher, self.lines)
