"""Reads TrainingArguments in JSON: every key with its line, and what they decide."""

from collections.abc import Iterator, Mapping

from planner.documents.json_text import (
    Node,
    Path,
    duplicates,
    keys_at_top,
    parse_json,
    parse_object,
    walk,
)
from planner.documents.schema import wrongs
from planner.errors import InputError
from planner.formats.decision import decided_in
from planner.formats.finding import Finding, listed
from planner.formats.format import Reading, SourceText, Value
from planner.formats.settings import finding_at
from planner.formats.trainer import keys
from planner.formats.trainer.decisions import section_of
from planner.spelling import alike, did_you_mean

_MISSPELT = 0.87
"""How alike a key is to the one that was meant. Others may be of the dataclasses that a script
reads from the same file, as HfArgumentParser does."""


def recognise(source: SourceText) -> bool:
    """A JSON object with a batch size per device, or with several of the arguments."""
    is_json = source.text.lstrip().startswith("{")
    names = keys_at_top(source.text, source.path) if is_json else set()
    return keys.BATCH in names or ("output_dir" in names and len(names & {*keys.known()}) > 1)


def read(source: SourceText) -> Reading:
    """Read a file; InputError where it is no JSON object."""
    root = parse_object(source.text, source.path)
    places = {
        path: Value(value=member.node.value, key=".".join(path), line=member.line)
        for path, member in walk(root)
    }
    settings = {".".join(_in_full(path)): place for path, place in places.items()}
    findings = [*_texts(source, root), *_wrong(source.path, root, places)]
    return Reading(
        format="trainer",
        path=source.path,
        settings=settings,
        decisions=decided_in(section_of(settings).table, settings),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _in_full(path: Path) -> Path:
    """Keys of ``fsdp_config`` may be written as Accelerate's file has them."""
    if len(path) < 2:
        return path
    prefix = keys.known().get(path[0], {}).get("prefix", "")
    return (path[0], path[1].removeprefix(prefix), *path[2:])


def _texts(source: SourceText, root: Node) -> Iterator[Finding]:
    """Duplicate keys, and what is no plain JSON, which is all HfArgumentParser reads."""
    for each in duplicates(root):
        place = Value(value=None, key=".".join(each.path), line=each.line)
        message = f"given twice, first in line {each.first_line}; the last one counts"
        yield finding_at("trainer.duplicate_key", source.path, place, message)
    try:
        parse_json(source.text, source.path, is_plain=True)
    except InputError as error:
        (problem,) = error.problems
        place = Value(value=None, key="", line=int(problem.key.removeprefix("line ")))
        reason = problem.message.removeprefix("not JSON: ")
        message = f"no plain JSON, which parse_json_file reads: {reason}; no comments allowed"
        yield finding_at("trainer.bad_value", source.path, place, message)


def _wrong(path: str, root: Node, places: Mapping[Path, Value]) -> Iterator[Finding]:
    """Unknown keys, and values of the wrong kind."""
    foreign: list[str] = []
    whole = {
        key: {_in_full((key, name))[1]: each for name, each in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in root.value.items()
    }
    spelled = {_in_full(at): place for at, place in places.items()}
    for wrong in wrongs(keys.schema(), whole):
        place, name = spelled[wrong.path], wrong.path[-1]
        if wrong.allowed:
            message = f"given {repr(place.value)[:60]}; {wrong.allowed}"
            yield finding_at("trainer.bad_value", path, place, message)
        elif len(wrong.path) > 1:
            known = list(wrong.schema["properties"])
            hint = did_you_mean(name, known) or f"{len(known)} keys are known"
            message = f"unknown key of {wrong.path[0]}; {hint}"
            yield finding_at("trainer.unknown_key", path, place, message)
        elif reason := _mistaken(name):
            yield finding_at("trainer.unknown_key", path, place, reason)
        else:
            foreign.append(name)
    if foreign:
        what = "no key" if len(foreign) == 1 else "no keys"
        rest = "sound where the script's own have them"
        message = f"{listed(foreign)}: {what} of TrainingArguments; {rest}"
        yield finding_at(
            "trainer.unknown_key", path, places[(foreign[0],)], message, severity="warning"
        )


def _mistaken(key: str) -> str | None:
    """What is wrong with a key that was meant for TrainingArguments; None where it was not."""
    if key in keys.replaced():
        instead = keys.replaced()[key]
        return (
            f"transformers removed it; {f'{instead} in its place' if instead else 'leave it out'}"
        )
    known = tuple(keys.known())
    is_near = alike(key, known, _MISSPELT)
    return f"unknown key of TrainingArguments; {did_you_mean(key, known)}" if is_near else None
