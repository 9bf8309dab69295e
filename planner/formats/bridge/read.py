"""Reads recipe overrides: a file of them, or a launch script that hands them on."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import InputError
from planner.formats.bridge.keys import (
    GROUPS,
    OPTIONS,
    PRECISION,
    as_options,
    is_known,
    option_value,
)
from planner.formats.finding import Finding, Severity
from planner.formats.format import Reading, SourceText, Value
from planner.formats.megatron.interpret import DIRECT, decisions_of
from planner.formats.shell.launched import launcher_settings, processes
from planner.formats.shell.torchrun import torchrun_findings
from planner.formats.shell.word import Word
from planner.formats.shell.words import (
    Lines,
    command_lines,
    line_numbers,
    read_script,
    read_words,
)
from planner.spelling import alike, did_you_mean

NAME = "bridge"
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_FIRST = re.compile(r"\s*(?:#[^\n]*\n\s*)*['\"]?\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=")
_MISTYPED = re.compile(r"\s\+{0,2}(?:model|train)\.\w+=")
_OTHER = re.compile(r"\s\+{0,2}(?:trainer|exp_manager)\.\w+=")
"""Overrides of NeMo before Megatron-Bridge."""
RECIPE = "run_recipe.py"
_TELLING = tuple(key for key in OPTIONS if key.startswith(("model.", "train.")))


@dataclass(frozen=True, kw_only=True)
class Override:
    """A word ``key=value``."""

    word: Word
    key: str
    text: str
    line: int


def recognise(source: SourceText) -> bool:
    """Whether a file holds overrides of decisions, or runs a recipe with any."""
    text = source.text
    if _OTHER.search(text) or source.path.endswith((".yaml", ".yml")):
        return False
    runs_recipe = RECIPE in text and _MISTYPED.search(text) is not None
    return (runs_recipe or any(f"{key}=" in text for key in _TELLING)) and "\x00" not in text


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The overrides of a file."""

    found: list[Override]
    launcher: tuple[Word, ...] = ()
    """All words of the command, where one hands them on."""
    is_kept: bool = False
    """Whether a variable holds them and no command seems to take them."""


def overrides_in(source: SourceText) -> Overrides:
    """The overrides of a file; raises InputError."""
    lines = line_numbers(source.text)
    first = _FIRST.match(source.text)
    if first and is_known(first[1]):
        return Overrides(found=_overrides(read_words(source), lines))
    script = read_script(source)
    commands = [words for command in script.commands for words in command_lines(command)]
    is_kept = not any(_overrides(words, lines) for words in commands)
    if is_kept:
        commands = list(script.lines_in_variables())
    best = max(commands, key=lambda words: len(_overrides(words, lines)), default=())
    found = _overrides(best, lines)
    if not found:
        raise InputError.single(source.path, "", "no command has overrides such as model.KEY=VALUE")
    return Overrides(found=found, launcher=tuple(best), is_kept=is_kept)


def _overrides(words: Sequence[Word], lines: Lines) -> list[Override]:
    found = [(word, _OVERRIDE.fullmatch(word.text)) for word in words]
    return [
        Override(word=word, key=match[2], text=match[3], line=lines.at(word.start))
        for word, match in found
        if match and not word.text.startswith("-") and ("." in match[2] or match[2] == PRECISION)
    ]


def read(source: SourceText) -> Reading:
    """Understand a file; raises InputError where it holds no override."""
    overrides = overrides_in(source)
    found, launcher = overrides.found, overrides.launcher
    settings: dict[str, Value] = {}
    findings: list[Finding] = []

    for each in found:
        findings += _findings(source.path, each, settings.get(each.key))
        settings[each.key] = Value(value=_value(each), key=each.key, line=each.line)
    lines = line_numbers(source.text)
    launched = launcher_settings(launcher, lines)
    findings += torchrun_findings(launcher, lines, source.path, NAME)
    decisions = decisions_of(as_options(settings), processes(launched))
    if "optimizer.optimizer" not in settings:
        decisions.pop("optimizer", None)
    return Reading(
        format=NAME,
        path=source.path,
        settings=settings | launched,
        decisions=decisions,
        findings=tuple(findings),
        left_open={
            DIRECT[OPTIONS[each.key]]: settings[each.key]
            for each in found
            if each.word.unknown and OPTIONS.get(each.key) in DIRECT
        },
    )


def _findings(path: str, each: Override, before: Value | None) -> Iterator[Finding]:
    """What is wrong with an override; ``before`` gave the same key."""

    def say(rule: str, message: str, severity: Severity = "error") -> Finding:
        return Finding(
            rule=f"{NAME}.{rule}",
            severity=severity,
            message=message,
            path=path,
            key=each.key[:120],
            line=each.line,
        )

    if not is_known(each.key):
        yield say("unknown_key", *_unknown(each.key))
    if before is not None:
        message = f"given again; the last counts, another is in line {before.line}"
        yield say("duplicate_key", message, "warning")
    if each.key not in OPTIONS:
        return
    if each.word.unknown:
        message = f"{', '.join(each.word.unknown)[:80]} is not set in the file"
        yield say("unresolved", message, "note")
        return
    try:
        option_value(each.key, each.text)
    except ValueError as error:
        yield say("bad_value", str(error))


def _unknown(key: str) -> tuple[str, Severity]:
    """What is wrong with a key that is not known; models of some recipes have further ones."""
    hint = did_you_mean(key[:100], [*OPTIONS, PRECISION])
    is_near = alike(key, OPTIONS, 0.85)
    if key.startswith("model.") and not is_near:
        return "is no key of Megatron's models; the recipe's own may have it", "warning"
    groups = ", ".join(GROUPS.split()[:8])
    return f"unknown key; {hint or f'groups are {groups}, ...'}", "error"


def _value(each: Override) -> object:
    """What an override sets; None where that cannot be known."""
    if each.word.unknown:
        return None
    if each.key in OPTIONS:
        try:
            return option_value(each.key, each.text)
        except ValueError:
            return None
    if each.key == "model.num_query_groups":
        is_small = each.text.isascii() and each.text.isdigit() and len(each.text) < 9
        return int(each.text) if is_small else None
    return each.text
