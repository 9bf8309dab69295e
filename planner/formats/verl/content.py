"""The command of a script that starts one of verl's training programs, and its overrides."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from planner.errors import InputError
from planner.formats.finding import Finding
from planner.formats.format import SourceText, Value
from planner.formats.settings import finding_at
from planner.formats.shell.edit import Entry
from planner.formats.shell.launched import launcher_settings
from planner.formats.shell.reading import WordsReader
from planner.formats.shell.word import Word, number_or_text
from planner.formats.shell.words import Lines, line_numbers, read_script
from planner.formats.verl.megatron import SECTIONS, keys
from planner.formats.verl.program import NAME, Program, known_keys, programs
from planner.formats.verl.starts import VERL
from planner.spelling import alike, did_you_mean

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:[./@][A-Za-z_]\w*)*)=(.*)", re.DOTALL)
MISSPELT = 0.92
"""How alike a key is to the one that was meant."""
OWN_CONFIGS = (
    *("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine"),
    *("dapo_trainer", "dapo_megatron_trainer"),
)
"""Configurations that verl ships for its programs."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a script hands to a program of verl."""

    program: Program
    module: str
    """In full, as the script spells it."""
    settings: dict[str, Value]
    open_keys: frozenset[str]
    """Those whose values the shell decides."""
    launched: dict[str, Value]
    """What torchrun's or Slurm's words say."""
    model: Value | None = None
    """The last part of the model's path, where a variable stands before it alone."""
    config: str = ""
    """The configuration that ``--config-name`` names."""
    findings: tuple[Finding, ...] = field(default=())


def program_of(words: Sequence[Word]) -> tuple[int, Program] | None:
    """Where a command names a program of verl's, and which."""
    for at, word in enumerate(words):
        found = VERL.module.search(word.text)
        for each in programs():
            if found and word.text.endswith(found[0]) and found[1] in each.modules:
                return at, each
    return None


def content_of(source: SourceText) -> Content:
    """Read the command with most overrides; InputError where none starts training with verl."""
    lines = line_numbers(source.text)
    script = read_script(source)
    best: tuple[int, int, Program, Sequence[Word], Sequence[Word]] | None = None
    for command in script.commands:
        found = program_of(command.words)
        if found is not None:
            at, program = found
            number = len(_overrides(command.words[at + 1 :], lines))
            if best is None or number > best[0]:
                best = number, at, program, command.words, command.outer
    if best is None or not best[0]:
        message = "no command starts training with verl and overrides such as data.KEY=VALUE"
        raise InputError.single(source.path, "file", message)
    _, at, program, words, outer = best
    return _content(source, program, at, words, outer)


def _content(
    source: SourceText, program: Program, at: int, words: Sequence[Word], outer: Sequence[Word]
) -> Content:
    lines = line_numbers(source.text)
    reader = WordsReader(format=NAME, path=source.path)
    entries = _overrides(words[at + 1 :], lines)
    reader.take(entries, _value)
    open_ones = [each for each in entries if each.unknown]
    model, config = _model(program, entries), _config(words)
    named = model.key if model else ""
    is_noted = (each.name != named and is_deciding(program, each.name) for each in open_ones)
    reader.note_open(list(compress(open_ones, is_noted)))
    for each in entries:
        _check_key(reader, each, is_own=not config or config in OWN_CONFIGS)
    return Content(
        program=program,
        module=words[at].text,
        settings=reader.settings,
        open_keys=frozenset(each.name for each in open_ones),
        launched=launcher_settings((*outer, *words[:at]), lines),
        model=model,
        config=config,
        findings=(*reader.findings, *_other_config(source, words, config, lines)),
    )


def _model(program: Program, entries: Sequence[Entry]) -> Value | None:
    for each in entries:
        name = (each.joined or "").rpartition("/")[2]
        if each.name == program.key("model") and each.unknown and name and "$" not in name:
            return Value(value=name, key=each.name, line=each.line)
    return None


def is_deciding(program: Program, key: str) -> bool:
    """Whether a key decides memory or time."""
    return key in program.keys or any(key in keys(section) for section in SECTIONS)


def _overrides(words: Sequence[Word], lines: Lines) -> list[Entry]:
    found = [(word, OVERRIDE.fullmatch(word.text)) for word in words]
    return [
        Entry(word=word, name=match[2], joined=match[3], line=lines.at(word.start))
        for word, match in found
        if match and match[1] != "~"
    ]


def _value(entry: Entry) -> object:
    """A value as Hydra has it; lists and mappings stay text."""
    text = (entry.joined or "").strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    word = text.lower()
    if word in ("null", "none", ""):
        return None
    if word in ("true", "false"):
        return word == "true"
    return number_or_text(text)


def _check_key(reader: WordsReader, entry: Entry, *, is_own: bool) -> None:
    """A key that is nearly a known one; others may be of another release."""
    name = entry.name
    if name in known_keys() or not is_own or "override_" in name or "." not in name:
        return
    section, _, last = name.rpartition(".")
    beside = [key for key in known_keys() if key.rpartition(".")[0] == section]
    near = alike(name, sorted(beside), MISSPELT)
    if near and not near.startswith(name) and not name.startswith(near) and _is_typo(near, last):
        message = f"unknown key of verl; {did_you_mean(name, sorted(beside))}"
        reader.report(entry, "unknown_key", message)


def _is_typo(near: str, last: str) -> bool:
    """Whether a name differs in letters, not by a word more or another word or number."""
    own = near.rpartition(".")[2]
    return not re.search(r"\d", last) and own.count("_") == last.count("_")


def _config(words: Sequence[Word]) -> str:
    for at, word in enumerate(words):
        name, sign, text = word.text.partition("=")
        if name in ("--config-name", "-cn"):
            text = text if sign else words[at + 1].text if at + 1 < len(words) else ""
            return text.strip("'\"").removesuffix(".yaml").rpartition("/")[2]
    return ""


def _other_config(
    source: SourceText, words: Sequence[Word], config: str, lines: Lines
) -> tuple[Finding, ...]:
    if not config or config in OWN_CONFIGS:
        return ()
    place = Value(value=None, key="--config-name", line=lines.at(words[0].start))
    message = f"{config[:60]} is not read; what the command leaves out is taken as verl has it"
    return (finding_at(f"{NAME}.other_config", source.path, place, message, "note"),)
