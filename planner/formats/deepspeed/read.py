"""Reads a DeepSpeed JSON file: every key with its line, what it decides, what is wrong."""

from collections.abc import Iterator
from typing import Any

from planner.documents.json_text import Node, Path, Plain, duplicates, parse_json, walk
from planner.documents.schema import entry_of, wrongs
from planner.errors import InputError
from planner.formats.deepspeed.decisions import decide
from planner.formats.deepspeed.known import AUTO, removed_keys, schema
from planner.formats.deepspeed.unknown import is_comment, is_foreign, why_foreign, why_unknown
from planner.formats.finding import Finding, Severity
from planner.formats.format import Reading, SourceText, Value

TELLING = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_optimization",
    "zero_allow_untested_optimizer",
)
"""Keys that no other file has at its top."""


def read(source: SourceText, *, fills_auto: bool = False) -> Reading:
    """Read a file; ``fills_auto``: Trainer or Accelerate will fill in what is "auto".

    Raises InputError where the text is no JSON object.
    """
    root = parse_json(source.text, source.path)
    if root.members is None:
        raise InputError.single(source.path, "line 1", "an object in braces is needed")
    settings = {
        ".".join(path): Value(value=member.node.value, key=".".join(path), line=member.line)
        for path, member in walk(root)
    }
    findings = [*_duplicates(source, root), *_members(source, root, fills_auto)]
    findings.sort(key=lambda finding: finding.line)
    return Reading(
        format="deepspeed",
        path=source.path,
        settings=settings,
        decisions=decide(settings),
        findings=tuple(findings),
    )


def recognise(source: SourceText) -> bool:
    """Whether the text is a JSON object with a key that only DeepSpeed's files have."""
    if source.text.lstrip()[:1] not in ("{", "/", "#"):
        return False
    try:
        root = parse_json(source.text, source.path)
    except InputError:
        return False
    return any(root.find(key) for key in TELLING)


def _finding(
    source: SourceText, rule: str, path: Path, line: int, message: str, severity: Severity = "error"
) -> Finding:
    return Finding(
        rule=f"deepspeed.{rule}",
        severity=severity,
        message=message,
        path=source.path,
        key=".".join(path),
        line=line,
    )


def _duplicates(source: SourceText, root: Node) -> Iterator[Finding]:
    for found in duplicates(root):
        message = f"stands twice, first on line {found.first_line}; DeepSpeed refuses that"
        yield _finding(source, "duplicate_key", found.path, found.line, message)


def _members(source: SourceText, root: Node, fills_auto: bool) -> Iterator[Finding]:
    """Unknown keys, values of the wrong kind, and what is left open."""
    lines = {path: member.line for path, member in walk(root)}
    foreign: list[Path] = []
    for wrong in wrongs(schema(), root.value):
        path, line = wrong.path, lines[wrong.path]
        if not wrong.allowed:
            foreign += [path] if _is_the_scripts(path) else []
            yield from _unknown(source, path, line, wrong.schema["properties"])
        elif wrong.value != AUTO or "enum" in wrong.schema:
            message = f"a value that DeepSpeed cannot use; given {_shown(wrong.value)}"
            yield _finding(source, "bad_value", path, line, f"{message}, {wrong.allowed}")
    if foreign:
        message = why_foreign([path[0] for path in foreign])
        first = foreign[0]
        yield _finding(source, "unknown_key", first, lines[first], message, "warning")
    left_open = [
        (path, member.line)
        for path, member in walk(root)
        if member.node.scalar == AUTO and _may_be_open(path)
    ]
    if left_open and not fills_auto:
        yield _auto(source, left_open)


def _may_be_open(path: Path) -> bool:
    """Whether Trainer and Accelerate fill in a key: a known one without a choice of words."""
    entry = entry_of(schema(), path)
    return entry is not None and "enum" not in entry


def _auto(source: SourceText, places: list[tuple[Path, int]]) -> Finding:
    """One finding for all values that are left open."""
    path, line = min(places, key=lambda place: place[1])
    others = "" if len(places) == 1 else f", here and at {len(places) - 1} other key(s),"
    message = f'"auto"{others} is filled in by Trainer or Accelerate only'
    return _finding(source, "auto_value", path, line, message, "warning")


def _is_the_scripts(path: Path) -> bool:
    """A key for another reader of the file, one that says something."""
    return is_foreign(path) and not is_comment(path) and path[0] not in removed_keys()


def _unknown(source: SourceText, path: Path, line: int, known: dict[str, Any]) -> Iterator[Finding]:
    if ".".join(path) in removed_keys() or is_foreign(path) or is_comment(path):
        return
    yield _finding(source, "unknown_key", path, line, why_unknown(path, known))


def _shown(value: Plain) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
