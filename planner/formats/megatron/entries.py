"""Megatron's words as options with their values, and what is wrong with them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.formats.finding import Finding, Severity
from planner.formats.format import Value
from planner.formats.megatron.options import (
    is_option,
    load_options,
    typed,
)
from planner.formats.megatron.owned import MODEL, OWNED
from planner.formats.shell.edit import Entry
from planner.formats.shell.word import Word

FORMAT = "megatron"
SHOWN = 12
"""Options that a note lists."""


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Options in order, and words that belong to none."""

    options: tuple[Entry, ...]
    strays: tuple[Entry, ...]


def entries_of(words: Sequence[Word], line_at: Callable[[int], int]) -> Entries:
    """Group words as Megatron's parser does; ``line_at`` gives the line of a place."""
    options: list[Entry] = []
    strays: list[Entry] = []
    known, at = load_options(), 0
    while at < len(words):
        word = words[at]
        at += 1
        name, sign, joined = word.text.partition("=")
        line = line_at(word.start)
        if not is_option(word.text):
            strays.append(Entry(word=word, values=(), name=word.text, line=line))
            continue
        end = at
        option = known.get(name)
        if not sign and (option is None or option.takes_values):
            most = 1 if option and not option.nargs else len(words)
            while end < len(words) and end - at < most and not is_option(words[end].text):
                end += 1
        values = tuple(words[at:end])
        at = end
        options.append(
            Entry(word=word, values=values, name=name, joined=joined if sign else None, line=line)
        )
    return Entries(options=tuple(options), strays=tuple(strays))


def settings_of(
    entries: Entries, path: str, branches: Sequence[int] = ()
) -> tuple[dict[str, Value], list[Finding]]:
    """Values by option, the last one of each as in Megatron's parser, and what is wrong with them.

    ``branches`` are the places where a script goes on with another branch.
    """
    settings: dict[str, Value] = {}
    starts: dict[str, int] = {}
    findings: list[Finding] = []
    left_open: list[Entry] = []
    known = load_options()
    for entry in entries.options:
        option = known.get(entry.name)
        if option is None:
            left_open += [entry] if entry.word.unknown else []
            continue
        if option.name in settings:
            between = sorted((starts[option.name], entry.word.start))
            in_branches = any(between[0] < place < between[1] for place in branches)
            findings.append(_again(path, entry, settings[option.name].line, in_branches))
        starts[option.name] = entry.word.start
        value = None
        if entry.unknown and entry.name in OWNED | MODEL:
            left_open.append(entry)
        elif not entry.unknown:
            try:
                value = typed(option, entry.texts)
            except ValueError as error:
                findings.append(finding(path, entry, "bad_value", str(error)))
        settings[option.name] = Value(value=value, key=option.name, line=entry.line)
    left_open += [entry for entry in entries.strays if entry.word.unknown]
    return settings, [*findings, *_strays(entries, path), *_left_open(left_open, path)]


def _left_open(entries: Sequence[Entry], path: str) -> Iterator[Finding]:
    """What variables leave open, in one note: a script that gets its sizes has many."""
    if not entries:
        return
    first, shown = entries[0], ", ".join(dict.fromkeys(each.name for each in entries[:SHOWN]))
    names = ", ".join(dict.fromkeys(first.unknown or first.word.unknown))[:80]
    message = f"{names} is not set in the file, or branches differ; taken as not known"
    if len(entries) > 1:
        message = (
            f"{len(entries)} options are taken as not known, whose variables the file does not "
            f"set, or on which branches differ: {shown}{', ...' if len(entries) > SHOWN else ''}"
        )
    yield finding(path, first, "unresolved", message, "note")


def _again(path: str, entry: Entry, first: int, in_branches: bool) -> Finding:
    if in_branches:
        message = f"given in two branches; this one is checked, the other is in line {first}"
        return finding(path, entry, "duplicate_key", message, "note")
    message = f"given again; the last one counts, another is in line {first}"
    return finding(path, entry, "duplicate_key", message, "warning")


def _strays(entries: Entries, path: str) -> Iterator[Finding]:
    """Words without an option; those that are left of one text in a line are one mistake."""
    known = (entry for entry in entries.strays if not entry.word.unknown)
    for _, found in groupby(known, key=lambda entry: entry.line):
        entry, *more = found
        if more:
            shown = " ".join(each.name for each in (entry, *more))[:80]
            yield finding(path, entry, "unknown_key", f"words that belong to no option: {shown}")
        else:
            yield finding(path, entry, "unknown_key", "a word that belongs to no option")


def finding(
    path: str, entry: Entry, rule: str, message: str, severity: Severity = "error"
) -> Finding:
    """A finding at an option."""
    return Finding(
        rule=f"{FORMAT}.{rule}",
        severity=severity,
        message=message,
        path=path,
        key=entry.name[:120],
        line=entry.line,
    )
