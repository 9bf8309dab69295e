"""The settings that a run prints at its start, read as a file of its framework would be."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InputError
from planner.formats.bridge.read import read_dumped as read_bridge
from planner.formats.format import Located, ParsedConfig, SourceText
from planner.formats.megatron.read import read_dumped as read_megatron
from planner.formats.registry import load_format
from planner.formats.torchtitan.old import read_dumped as read_torchtitan
from planner.limits import MAX_FILE_BYTES

_OPENS, _CLOSES = re.compile(r"-{5,} arguments -{5,}"), re.compile(r"-{5,} end of arguments -{5,}")
_ATTRIBUTE = re.compile(r"(?:^|\s)(\w+) \.{2,} ?(.*?)(?: *\.{3,}(?:default|updated))?\s*$")
MAX_ATTRIBUTE = 1_000  # characters of a line of arguments that are looked at
_JSON = re.compile(r"\bjson = (\{.*)")
_GROUP = re.compile(r"\[(\w+)\](?: Non-default values \(.*\))?:\s*$")
_FIELD = re.compile(r"(?:^|\s)(\w+): (.*?)(?: +\(Mcore default: .*\))?\s*$")
_TITAN = re.compile(r"Running with (?:args|configs?): (\{.*)")


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The settings that a run printed at its start."""

    reading: ParsedConfig
    framework: str  # whose traits hold


def dump_in(path: str, lines: Sequence[str]) -> tuple[Dump | None, tuple[str, ...]]:
    """The first dump that can be read, and what is wrong with others."""
    notes: list[str] = []
    for opens, read in _READERS:
        at = _line_of(lines, opens)
        if at is None:
            continue
        try:
            return read(path, lines, at), tuple(notes)
        except InputError as error:
            notes.append(f"line {at}: {error.problems[0].message}")
    return None, tuple(notes)


def _unusable(path: str, why: str) -> InputError:
    return InputError.single(path, "layout", why)


def _line_of(lines: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    return next((at for at, line in enumerate(lines, 1) if pattern.search(line)), None)


def _megatron(path: str, lines: Sequence[str], first: int) -> Dump:
    last = _line_of(lines[first:], _CLOSES)
    if last is None:
        raise _unusable(path, "the arguments have no end: they are truncated, and not used")
    given = {}
    for at, line in enumerate(lines[first : first + last - 1], first + 1):
        if match := _ATTRIBUTE.search(line[:MAX_ATTRIBUTE]):
            given[match[1]] = Located(value=match[2].strip(), key=match[1], line=at)
    found = read_megatron(path, given)
    if found is None:
        raise _unusable(path, "arguments of an old Megatron: --config says the layout")
    return Dump(reading=found[0], framework=found[1])


def _bridge(path: str, lines: Sequence[str], first: int) -> Dump:
    given: dict[str, Located] = {}
    group = ""
    for at, line in enumerate(lines[first:], first + 1):
        if match := _GROUP.search(line[:MAX_ATTRIBUTE]):
            group = match[1]
        elif group and (match := _FIELD.search(line[:MAX_ATTRIBUTE])):
            key = f"{group}.{match[1]}"
            given.setdefault(key, Located(value=match[2], key=key, line=at))
        # the last group
        elif group == "rng" and "=====" in line:
            break
    reading = read_bridge(path, given)
    if reading is None:
        raise _unusable(path, "the configuration is truncated, and not used")
    return Dump(reading=reading, framework="megatron")


def _nemo(path: str, _lines: Sequence[str], _first: int) -> Dump:
    raise _unusable(path, "NeMo 1.x's YAML is not covered: --config says the layout")


def _titan(path: str, lines: Sequence[str], at: int) -> Dump:
    reading = read_torchtitan(path, _braces(path, lines, at, _TITAN), at)
    return Dump(reading=reading, framework="torchtitan")


def _deepspeed(path: str, lines: Sequence[str], at: int) -> Dump:
    # blank lines before it, so that the reader's lines are the log's
    text = "\n" * (at - 1) + json.dumps(_braces(path, lines, at, _JSON), indent=4)
    reading = load_format("deepspeed").read(SourceText(path=path, text=text))
    return Dump(reading=replace(reading, path=path), framework="deepspeed")


def _braces(path: str, lines: Sequence[str], at: int, opens: re.Pattern[str]) -> dict[str, Any]:
    """The JSON object that begins in a line, on one or several."""
    match = opens.search(lines[at - 1])
    assert match is not None
    text = "\n".join([match[1], *lines[at:]])[:MAX_FILE_BYTES]
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise _unusable(path, "the settings are truncated, and not used")
    return data


_READERS: tuple[tuple[re.Pattern[str], Callable[[str, Sequence[str], int], Dump]], ...] = (
    (_OPENS, _megatron),
    (re.compile(r"Configuration Summary \(Non-Default Values"), _bridge),
    (re.compile(r"\*{5,} Experiment configuration \*{5,}"), _nemo),
    (_TITAN, _titan),
    (_JSON, _deepspeed),
)
