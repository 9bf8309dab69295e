"""The settings that a run prints at its start, read as a file of its framework would be."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.errors import InputError
from planner.formats.bridge.dumped import read_dumped as read_bridge
from planner.formats.format import SourceText, Value
from planner.formats.megatron.dumped import read_dumped as read_megatron
from planner.formats.registry import load_format
from planner.formats.torchtitan.old import read_dumped as read_torchtitan
from planner.limits import MAX_FILE_BYTES
from planner.logs.record import Dump

_OPENS, _CLOSES = re.compile(r"-{5,} arguments -{5,}"), re.compile(r"-{5,} end of arguments -{5,}")
_ATTRIBUTE = re.compile(r"(?:^|\s)(\w+) \.{2,} ?(.*?)(?: *\.{3,}(?:default|updated))?\s*$")
MAX_ATTRIBUTE = 1_000
"""Characters of a line of arguments that are looked at."""
_JSON = re.compile(r"\bjson = (\{.*)")
_SUMMARY = re.compile(r"Configuration Summary \(Non-Default Values")
_GROUP = re.compile(r"\[(\w+)\](?: Non-default values \(.*\))?:\s*$")
_FIELD = re.compile(r"(?:^|\s)(\w+): (.*?)(?: +\(Mcore default: .*\))?\s*$")
_LAST_GROUP = "rng"
_NEMO = re.compile(r"\*{5,} Experiment configuration \*{5,}")
_TITAN = re.compile(r"Running with (?:args|configs?): (\{.*)")


def dump_in(path: str, lines: Sequence[str]) -> tuple[Dump | None, tuple[str, ...]]:
    """The first dump that can be read, and what is wrong with others."""
    notes: list[str] = []
    for read in (_megatron, _bridge, _nemo, _titan, _deepspeed):
        found, said = read(path, lines)
        notes += said
        if found:
            return found, tuple(notes)
    return None, tuple(notes)


def _megatron(path: str, lines: Sequence[str]) -> tuple[Dump | None, list[str]]:
    first = _place(lines, _OPENS)
    if first is None:
        return None, []
    last = _place(lines[first:], _CLOSES)
    if last is None:
        return None, [f"line {first}: the arguments have no end: they are truncated, and not used"]
    given = {}
    for at, line in enumerate(lines[first : first + last - 1], first + 1):
        match = _ATTRIBUTE.search(line[:MAX_ATTRIBUTE])
        if match:
            given[match[1]] = Value(value=match[2].strip(), key=match[1], line=at)
    found = read_megatron(path, given)
    if found is None:
        return None, [f"line {first}: arguments of an old Megatron: --config says the layout"]
    return Dump(reading=found[0], framework=found[1]), []


def _bridge(path: str, lines: Sequence[str]) -> tuple[Dump | None, list[str]]:
    first = _place(lines, _SUMMARY)
    if first is None:
        return None, []
    given: dict[str, Value] = {}
    group = ""
    for at, line in enumerate(lines[first:], first + 1):
        if match := _GROUP.search(line[:MAX_ATTRIBUTE]):
            group = match[1]
        elif group and (match := _FIELD.search(line[:MAX_ATTRIBUTE])):
            key = f"{group}.{match[1]}"
            given.setdefault(key, Value(value=match[2], key=key, line=at))
        elif group == _LAST_GROUP and "=====" in line:
            break
    reading = read_bridge(path, given)
    if reading is None:
        return None, [f"line {first}: the configuration is truncated, and not used"]
    return Dump(reading=reading, framework="megatron"), []


def _nemo(_path: str, lines: Sequence[str]) -> tuple[None, list[str]]:
    first = _place(lines, _NEMO)
    if first is None:
        return None, []
    return None, [f"line {first}: NeMo 1.x's YAML is not covered: --config says the layout"]


def _titan(path: str, lines: Sequence[str]) -> tuple[Dump | None, list[str]]:
    at = _place(lines, _TITAN)
    if at is None:
        return None, []
    data = _braces(lines, at, _TITAN)
    if data is None:
        return None, [f"line {at}: the settings are truncated, and not used"]
    try:
        return Dump(reading=read_torchtitan(path, data, at), framework="torchtitan"), []
    except InputError as error:
        return None, [f"line {at}: {error.problems[0].message}"]


def _deepspeed(path: str, lines: Sequence[str]) -> tuple[Dump | None, list[str]]:
    at = _place(lines, _JSON)
    if at is None:
        return None, []
    data = _braces(lines, at, _JSON)
    if data is None:
        return None, [f"line {at}: the settings are truncated, and not used"]
    text = "\n" * (at - 1) + json.dumps(data, indent=4)
    try:
        reading = load_format("deepspeed").read(SourceText(path=path, text=text))
    except InputError as error:
        return None, [f"line {at}: {error.problems[0].message}"]
    return Dump(reading=replace(reading, path=path), framework="deepspeed"), []


def _place(lines: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    """The number of the first line that has a pattern."""
    return next((at for at, line in enumerate(lines, 1) if pattern.search(line)), None)


def _braces(lines: Sequence[str], at: int, opens: re.Pattern[str]) -> dict[str, Any] | None:
    """The JSON object that begins in a line, on one or several; None where it has no end."""
    match = opens.search(lines[at - 1])
    assert match is not None
    text = "\n".join([match[1], *lines[at:]])[:MAX_FILE_BYTES]
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
