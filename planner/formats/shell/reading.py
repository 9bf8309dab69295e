"""What the options of a file of words say, and what is wrong with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.formats.format import Finding, Severity, Value
from planner.formats.settings import finding_at
from planner.formats.shell.edit import Arguments, Entry
from planner.formats.shell.launched import launcher_settings
from planner.formats.shell.torchrun import torchrun_findings
from planner.formats.shell.words import Lines

SHOWN = 12
"""Options that a note lists."""


@dataclass(kw_only=True)
class WordsReader:
    """Settings and findings of a file, as they come."""

    format: str
    path: str
    settings: dict[str, Value] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def report(self, entry: Entry, rule: str, message: str, severity: Severity = "error") -> None:
        """Note what is wrong with an option."""
        self.report_at(entry.name[:120], entry.line, rule, message, severity)

    def report_at(
        self, key: str, line: int, rule: str, message: str, severity: Severity = "error"
    ) -> None:
        """Note what is wrong with a word of a line."""
        place = Value(value=None, key=key, line=line)
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
        starts: dict[str, int] = {}
        for entry in entries:
            if entry.name in starts:
                between = sorted((starts[entry.name], entry.word.start))
                self._again(entry, any(between[0] < place < between[1] for place in branches))
            starts[entry.name] = entry.word.start
            found = None
            try:
                found = None if entry.unknown else value(entry)
            except ValueError as error:
                self.report(entry, "bad_value", str(error))
            self.settings[entry.name] = Value(value=found, key=entry.name, line=entry.line)

    def _again(self, entry: Entry, in_branches: bool) -> None:
        line = self.settings[entry.name].line
        if in_branches:
            message = f"given in two branches; this one is checked, the other is in line {line}"
            self.report(entry, "duplicate_key", message, "note")
        else:
            message = f"given again; the last one counts, another is in line {line}"
            self.report(entry, "duplicate_key", message, "warning")

    def note_open(self, entries: Sequence[Entry]) -> None:
        """What variables leave open, in one note: a script that gets its sizes has many."""
        if not entries:
            return
        first, shown = entries[0], ", ".join(dict.fromkeys(each.name for each in entries[:SHOWN]))
        shown += ", ..." * (len(entries) > SHOWN)
        names = ", ".join(dict.fromkeys(first.unknown or first.word.unknown))[:80]
        message = f"{names} is not set in the file, or branches differ; taken as not known"
        if len(entries) > 1:
            message = (
                f"{len(entries)} options are taken as not known, whose variables the file does not "
                f"set, or on which branches differ: {shown}"
            )
        self.report(first, "unresolved", message, "note")

    def take_launcher(self, arguments: Arguments, lines: Lines) -> dict[str, Value]:
        """What the launcher's own words say, and the first that it does not know."""
        self.findings += torchrun_findings(arguments.launcher, lines, self.path, self.format)
        return launcher_settings(arguments.launcher, lines)
