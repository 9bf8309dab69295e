"""Reads torchtitan's command-line words: settings with their lines, and what is wrong."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from planner.formats.finding import Finding, Severity
from planner.formats.format import Reading, SourceText, Value
from planner.formats.shell.launched import (
    PER_NODE,
    launcher_settings,
    number_of,
    processes,
)
from planner.formats.shell.torchrun import torchrun_findings
from planner.formats.shell.word import Word
from planner.formats.shell.words import Lines, line_numbers
from planner.formats.torchtitan.decisions import DECIDING, decisions_of
from planner.formats.torchtitan.known import (
    OWN_MODULE,
    POLICY,
    Setting,
    config_named,
    modules,
    option_of,
    options,
    policies,
)
from planner.formats.torchtitan.layout import SCHEDULE_NAMES, schedule_named
from planner.formats.torchtitan.old import OLD, is_old, refuse_old
from planner.formats.torchtitan.words import POLICY_WORD, Words, is_option, words_of
from planner.spelling import did_you_mean

NAME = "torchtitan"
SELECTORS = ("module", "config")
POLICY_WORDS = "activation-checkpoint:full"
OTHER_KINDS = (".yaml", ".yml", ".json", ".toml", ".md")
"""Files that may hold a command of torchtitan among other things."""
_SCRIPT_VARIABLES = {"MODULE": "module", "CONFIG": "config"}
"""What torchtitan's own run_train.sh takes from the environment."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option with its values, or the word that chooses a policy, as the file has it."""

    key: str
    """As torchtitan spells it in Python: ``training.seq_len``."""
    word: Word
    inline: str | None
    """What stands behind ``=`` in the same word."""
    values: tuple[Word, ...]
    is_negated: bool = False
    follows_policy: bool = False

    @property
    def spelled(self) -> str:
        """The option as the file spells it."""
        return self.word.text.partition("=")[0]

    @property
    def texts(self) -> list[str]:
        """All its values."""
        inline = [] if self.inline is None else [self.inline]
        return inline + [word.text for word in self.values]

    @property
    def is_open(self) -> bool:
        """Whether a value holds a variable that the file does not set."""
        return any(word.unknown for word in (self.word, *self.values))


def options_in(words: Sequence[Word]) -> tuple[list[Option], list[Word]]:
    """Group words into options; and the words that belong to none."""
    found: list[Option] = []
    strays: list[Word] = []
    position, follows = 0, False
    while position < len(words):
        word = words[position]
        position += 1
        policy = POLICY_WORD.fullmatch(word.text)
        if policy:
            name = policy[1].replace("-", "_")
            found.append(Option(key=POLICY, word=word, inline=name, values=()))
            follows = True
        elif word.text.startswith("--"):
            end = _end_of_values(words, position)
            option, rest = _option(word, words[position:end], follows=follows)
            found.append(option)
            strays += rest
            position = end
        else:
            strays.append(word)
    return found, strays


def _end_of_values(words: Sequence[Word], start: int) -> int:
    end = start
    while end < len(words) and not is_option(words[end].text):
        end += 1
    return end


def _option(word: Word, rest: Sequence[Word], *, follows: bool) -> tuple[Option, Sequence[Word]]:
    name, equals, inline = word.text[2:].partition("=")
    key = name.replace("-", "_")
    section, _, last = key.rpartition(".")
    positive = f"{section}.{last.removeprefix('no_')}"
    is_negated = last.startswith("no_") and (option_of(positive) or {}).get("kind") == "flag"
    key = positive if is_negated else key
    kind = "str" if key in SELECTORS else (option_of(key) or {"kind": "words"})["kind"]
    count = len(rest) if kind == "words" else 0 if kind == "flag" or equals else 1
    option = Option(
        key=key,
        word=word,
        inline=inline if equals else None,
        values=tuple(rest[:count]),
        is_negated=is_negated,
        follows_policy=follows,
    )
    return option, rest[count:]


def recognise(source: SourceText) -> bool:
    """Whether a file starts torchtitan or holds its words: a module, a config, its options."""
    text = source.text
    if is_old(text):
        return True
    if source.path.endswith(OTHER_KINDS) or re.search(r"^\s*[\[{]", text):
        return False
    if re.search(r"torchtitan[./]train\b|run_train\.sh|--job\.config[-_]file", text):
        return _starts_torchtitan(source)
    sections = r"(?:parallelism|training|activation[-_]checkpoint)"
    return bool(
        re.search(rf"(?<!\S)--{sections}\.[a-z]|(?<!\S)activation[-_]checkpoint:", text)
        or (re.search(r"(?<!\S)--module\b", text) and re.search(r"(?<!\S)--config\b", text))
    )


def _starts_torchtitan(source: SourceText) -> bool:
    """Whether a script starts torchtitan, not only names it; one that is broken may."""
    try:
        program = words_of(source).program
    except InputError:
        return True
    return program is not None


def read(source: SourceText) -> Reading:
    """Read words in a script, a file of arguments or a list; raises InputError."""
    if is_old(source.text):
        raise InputError.single(source.path, "file", OLD)
    found, lines = words_of(source), line_numbers(source.text)
    refuse_old(source.path, found)
    reader = _Reader(path=source.path, lines=lines)
    given, strays = options_in(found.words)
    for option in given:
        reader.take(option)
    for word in strays:
        if not word.unknown:
            line = lines.at(word.start)
            reader.report("bad_value", "error", word.text, line, "belongs to no option")
    reader.take_variables(found)
    if given or found.program:
        reader.check_config()
    reader.check_schedule()
    launched = launcher_settings(found.launcher, lines)
    if found.is_wrapped and "NGPU" in found.environment:
        number = found.environment["NGPU"]
        line = lines.at(number.start)
        launched[PER_NODE] = Value(value=number_of(number.text), key="NGPU", line=line)
    reader.findings += torchrun_findings(found.launcher, lines, source.path, NAME)
    return Reading(
        format=NAME,
        path=source.path,
        settings=reader.settings | launched,
        decisions=decisions_of(reader.settings, processes(launched)),
        findings=tuple(reader.findings),
    )


class _Reader:
    """Settings and findings, as they come."""

    def __init__(self, *, path: str, lines: Lines) -> None:
        self.path, self.lines = path, lines
        self.settings: dict[str, Value] = {}
        self.findings: list[Finding] = []

    def report(self, rule: str, severity: Severity, key: str, line: int, message: str) -> None:
        finding = Finding(
            rule=f"{NAME}.{rule}",
            severity=severity,
            message=message,
            path=self.path,
            key=key,
            line=line,
        )
        self.findings.append(finding)

    def take(self, option: Option) -> None:
        key, spelled, line = option.key, option.spelled, self.lines.at(option.word.start)
        facts = {"kind": "str"} if key in SELECTORS else option_of(key)
        if key == POLICY:
            facts = {"kind": "choice", "choices": list(policies())}
        if facts is None:
            known = [f"--{name}" for name in (*SELECTORS, *options())]
            hint = did_you_mean(f"--{key}", known) or "torchtitan 0.3 has no such option"
            if key == f"{POLICY}.mode":
                hint = f"the policy is a word of its own, such as {POLICY_WORDS}"
            return self.report("unknown_key", "error", spelled, line, f"unknown option; {hint}")
        if option.is_open:
            if key not in DECIDING:
                return None
            message = f"{' '.join(option.texts)}: the variable is not set in this file"
            if key in SELECTORS:
                self.settings[key] = Value(value="", key=spelled, line=line)
            return self.report("open_variable", "note", spelled, line, message)
        if option.follows_policy and not key.startswith(POLICY):
            message = "stands behind the activation-checkpoint word; all options stand before it"
            self.report("misplaced_option", "error", spelled, line, message)
        try:
            value = _value(facts, option)
        except ValueError as error:
            return self.report("bad_value", "error", spelled, line, str(error))
        if key in self.settings:
            before = self.settings[key].line
            message = f"given twice, first in line {before}; torchtitan takes the last"
            self.report("duplicate_key", "warning", spelled, line, message)
        self.settings[key] = Value(value=value, key=spelled, line=line)
        return None

    def take_variables(self, found: Words) -> None:
        """Take what torchtitan's script reads from the environment."""
        for name, key in _SCRIPT_VARIABLES.items():
            variable = found.environment.get(name)
            if key in self.settings or (variable is None and not found.is_wrapped):
                continue
            place = variable or found.program
            assert place is not None
            line = self.lines.at(place.start)
            if variable is None or variable.unknown:
                message = f"{name} is not set in this file, nor is --{key}"
                self.report("open_variable", "note", name, line, message)
            text = variable.text if variable and not variable.unknown else ""
            self.settings[key] = Value(value=text, key=name, line=line)

    def check_config(self) -> None:
        """A config that torchtitan does not have; one of the user's own is not looked into."""
        names = [str(self.settings[key].value) for key in SELECTORS if key in self.settings]
        if len(names) < len(SELECTORS) or not all(names) or config_named(*names).is_known:
            return
        module, name = names
        value = self.settings["config"]
        own = modules().get(module.removeprefix("torchtitan.models."))
        if own is not None:
            hint = did_you_mean(name, own) or f"it has {', '.join(own)}"
            message = f"torchtitan {module} has no config {name} that is known here; {hint}"
            self.report("unknown_config", "warning", value.key, value.line, message)
        elif module != OWN_MODULE:
            message = f"{module}.{name} is not looked into: torchtitan's general defaults are taken"
            if hint := did_you_mean(module, modules()):
                message += f"; {hint}"
            self.report("own_config", "note", value.key, value.line, message)

    def check_schedule(self) -> None:
        """Schedules that torch has and the planner does not model."""
        value = self.settings.get("parallelism.pipeline_parallel_schedule")
        csv = self.settings.get("parallelism.pipeline_parallel_schedule_csv")
        for each in (value, csv):
            known = each is value and (each is None or schedule_named(str(each.value)) != "other")
            if each is not None and each.value and not known:
                names = ", ".join(SCHEDULE_NAMES.values())
                message = f"{each.value} is not modelled; modelled are {names}"
                self.report("schedule_not_modelled", "note", each.key, each.line, message)


def _value(facts: Mapping[str, Any], option: Option) -> Setting:
    """The value of an option; ValueError says what is wrong with it."""
    texts, kind = option.texts, facts["kind"]
    if kind == "flag":
        if texts:
            raise ValueError(f"{texts[0]!r} given; a switch takes no value, --no-... turns it off")
        return not option.is_negated
    if not texts:
        raise ValueError("needs a value; none given")
    if facts.get("optional") and texts == ["None"]:
        return None
    if kind == "words":
        return [text.split(",") for text in texts]
    return _converted(kind, texts[0], facts.get("choices", ()))


def _converted(kind: str, text: str, choices: Iterable[str]) -> Setting:
    if kind == "choice" and text not in choices:
        raise ValueError(f"{text!r} given; allowed are {', '.join(choices)}")
    if kind == "list":
        return text.split(",")
    if kind not in ("int", "float"):
        return text
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        words = "a whole number" if kind == "int" else "a number"
        raise ValueError(f"{text[:80]!r} given; needs {words}") from None
