"""The command of a script that starts OpenRLHF, and its options."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.errors import InputError
from planner.formats.format import SourceText, Value
from planner.formats.shell.launched import launcher_settings, number_of, processes
from planner.formats.shell.word import Word, number_or_text
from planner.formats.shell.words import Lines, line_numbers, read_script, read_words
from planner.formats.verl.program import Program, programs
from planner.formats.verl.starts import OPENRLHF

HEREDOC = re.compile(
    r"^[ \t]*read\b[^\n]*<<-?\s*['\"]?(\w+)['\"]?[ \t]*\n(.*?)\n[ \t]*\1\b", re.M | re.S
)
"""A command that ``read`` puts into a variable, as OpenRLHF's own scripts do."""
PER_NODE, NODES = "--num_gpus", "--num_nodes"
"""Of DeepSpeed's launcher."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a script hands to a program of OpenRLHF."""

    program: Program
    settings: Mapping[str, Value]
    open_keys: tuple[Value, ...]
    """Options whose values the shell decides."""
    num_gpus: Value | None


def content_of(source: SourceText) -> Content:
    """Read the first command; InputError where none starts training with OpenRLHF."""
    lines = line_numbers(source.text)
    for words in (*_commands(source), *_read(source)):
        found = _program(words)
        if found is not None:
            at, program = found
            given = _options(words[at + 1 :], lines)
            return Content(
                program=program,
                settings={name: each for name, each in given.items() if each.value is not None},
                open_keys=tuple(each for each in given.values() if each.value is None),
                num_gpus=_processes(words[:at], lines),
            )
    raise InputError.single(source.path, "file", "no command starts training with OpenRLHF")


def _commands(source: SourceText) -> Iterator[Sequence[Word]]:
    for each in read_script(source).commands:
        yield (*each.outer, *each.words)


def _read(source: SourceText) -> Iterator[Sequence[Word]]:
    """Words of here-documents that ``read`` takes, with their lines."""
    for found in HEREDOC.finditer(source.text):
        start = found.start(2)
        blank = re.sub(r"[^\n]", " ", source.text[:start])
        text = blank + found[2]
        yield read_words(SourceText(path=source.path, text=text))


def _program(words: Sequence[Word]) -> tuple[int, Program] | None:
    for at, word in enumerate(words):
        found = OPENRLHF.module.fullmatch(word.text.rpartition(" ")[2])
        for each in programs(__package__):
            if found and found[1] in each.modules:
                return at, each
    return None


def _options(words: Sequence[Word], lines: Lines) -> dict[str, Value]:
    """Values by option, without its dashes; None of one that is not known."""
    found: dict[str, Value] = {}
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, sign, joined = word.text[2:].partition("=")
        after = words[at + 1] if at + 1 < len(words) else None
        is_flag = after is None or after.text.startswith("--")
        hides = word.unknown or (not sign and after and not is_flag and after.unknown)
        text = joined if sign else "" if is_flag or after is None else after.text
        value: Any = None if hides else True if not text else number_or_text(text)
        found[name] = Value(value=value, key=f"--{name}", line=lines.at(word.start))
    return found


def _processes(words: Sequence[Word], lines: Lines) -> Value | None:
    """Those of DeepSpeed's launcher where it names them, else torchrun's or Slurm's."""
    stated = {
        name: (number_of(right.text), left)
        for left, right in pairwise(words)
        for name in (PER_NODE, NODES)
        if left.text == name
    }
    if PER_NODE not in stated:
        return processes(launcher_settings(words, lines))
    per_node, place = stated[PER_NODE]
    nodes, _ = stated.get(NODES, (1, place))
    if not per_node or not nodes:
        return None
    return Value(value=per_node * nodes, key=PER_NODE, line=lines.at(place.start))
