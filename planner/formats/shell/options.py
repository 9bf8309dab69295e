"""The options of a file of words: what they say, and what is wrong with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from planner.formats.format import Finding, Located, Severity
from planner.formats.settings import finding_at
from planner.formats.shell.launch import launcher_settings, torchrun_findings
from planner.formats.shell.word import Command, Lines, Word

# Options that a note lists.
SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An option of a file with the words of its value."""

    name: str
    word: Word
    values: tuple[Word, ...] = ()
    joined: str | None = None  # the value where it is written behind an equals sign
    line: int

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts of the value that could not be resolved."""
        own = self.word.unknown if self.joined is not None else ()
        return (*own, *(name for value in self.values for name in value.unknown))

    @property
    def texts(self) -> list[str]:
        """Words of the value."""
        return [self.joined] if self.joined is not None else [word.text for word in self.values]


Launch = tuple[Command, Sequence[Entry]]
# The one that is read, and all that the file has in its order; none of a list of words.
Launches = tuple[Launch, Sequence[Launch]]


def grouped(
    words: Sequence[Word],
    lines: Lines,
    is_option: Callable[[str], bool],
    most: Callable[[str], int | None],
) -> tuple[list[Entry], list[Word]]:
    """Options with their values, and the words that belong to none.

    ``most`` says how many words an option takes without an equals sign; None: all up to the next.
    """
    starts = [at for at, word in enumerate(words) if is_option(word.text)]
    found, strays = list[Entry](), [*words[: starts[0] if starts else None]]
    for at, end in pairwise([*starts, len(words)]):
        word, behind = words[at], words[at + 1 : end]
        name, sign, joined = word.text.partition("=")
        count = 0 if sign else most(name)
        values, line = tuple(behind[:count]), lines.at(word.start)
        value = joined if sign else None
        found.append(Entry(name=name, word=word, values=values, joined=value, line=line))
        strays += behind[len(values) :]
    return found, strays


@dataclass(kw_only=True)
class WordsReader:
    """Settings and findings of a file, as they come."""

    format: str
    path: str
    settings: dict[str, Located] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def report(self, entry: Entry, rule: str, message: str, severity: Severity = "error") -> None:
        """Note what is wrong with an option."""
        self.report_at(entry.name[:120], entry.line, rule, message, severity)

    def report_at(
        self, key: str, line: int, rule: str, message: str, severity: Severity = "error"
    ) -> None:
        """Note what is wrong with a word of a line."""
        place = Located(value=None, key=key, line=line)
        self.findings.append(
            finding_at(f"{self.format}.{rule}", self.path, place, message, severity)
        )

    def take(
        self,
        entries: Sequence[Entry],
        value: Callable[[Entry], object],
        branches: Sequence[int] = (),
    ) -> None:
        """Values by option, the last one of each; a ValueError says what is wrong with one.

        One that is not resolved is None. ``branches`` are the places where a script goes on with
        another branch.
        """
        before: dict[str, Entry] = {}
        for entry in entries:
            if other := before.get(entry.name):
                first, last = sorted((other.word.start, entry.word.start))
                is_in_turn = any(first < place < last for place in branches)
                severity: Severity = "note" if is_in_turn else "warning"
                says = "given again; the last one counts, another"
                if is_in_turn:
                    says = "given in two branches; this one is checked, the other"
                self.report(entry, "duplicate_key", f"{says} is in line {other.line}", severity)
            before[entry.name] = entry
            found = None
            try:
                found = None if entry.unknown else value(entry)
            except ValueError as error:
                self.report(entry, "bad_value", str(error))
            self.settings[entry.name] = Located(value=found, key=entry.name, line=entry.line)

    def note_open(self, entries: Sequence[Entry]) -> None:
        """Report what variables leave open in one note: a script given its sizes has many."""
        if not entries:
            return
        first, shown = entries[0], ", ".join(dict.fromkeys(each.name for each in entries[:SHOWN]))
        names = ", ".join(dict.fromkeys(first.unknown or first.word.unknown))[:80]
        message = f"{names} is not set in the file, or branches differ; taken as not known"
        if len(entries) > 1:
            message = (
                f"{len(entries)} options are taken as not known, whose variables the file does not "
                f"set, or on which branches differ: {shown}{', ...' * (len(entries) > SHOWN)}"
            )
        self.report(first, "unresolved", message, "note")

    def take_launcher(self, command: Command, lines: Lines) -> dict[str, Located]:
        """Return the settings of the launcher's words; report the first that is not known."""
        self.findings += torchrun_findings(command.launcher, lines, self.path, self.format)
        return launcher_settings(command.launcher, lines)
