"""Reads torchtitan's command-line words: settings with their lines, and what is wrong."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile

from planner.errors import ExpressError, InputError
from planner.formats.format import Located, ParsedConfig, SourceText, first_line
from planner.formats.settings import word
from planner.formats.shell import launch
from planner.formats.shell.options import Entry, Launches, WordsReader, grouped, launches_in, strays
from planner.formats.shell.word import Command, Lines, Word
from planner.formats.torchtitan import keys
from planner.formats.torchtitan.layout import SCHEDULE_NAMES, schedule_named
from planner.formats.torchtitan.mapping import DECIDING, decisions_of
from planner.formats.torchtitan.old import is_old, read_old, refuse_old
from planner.spelling import did_you_mean

# Behind this word of a command stand torchtitan's own.
_ENTRY = re.compile(r"(^|[/.])(torchtitan\.train|train\.py|run_train\.sh)$")
_POLICY_WORD = re.compile(r"activation[-_]checkpoint:(.*)", re.DOTALL)
# What torchtitan's own run_train.sh takes from the environment.
SCRIPT_VARIABLES = {"MODULE": "module", "CONFIG": "config"}
# So does it the number of processes of a node.
PROCESSES = "NGPU"


def entries_in(source: SourceText) -> Launches:
    """Return the launches in a file, with options by torchtitan's names; raises InputError.

    The one that is read is the first that a launcher starts, else the first.
    """
    return launches_in(
        source,
        _starts,
        _options,
        lambda found: 1 + any(launch.launcher_values(found[0].launcher)),
        is_list=_is_option(first_line(source.text).split(" ")[0]),
    )


def _starts(commands: Iterable[Command]) -> list[Command]:
    """Torchtitan's words of commands, behind the program; else those of the most options."""
    found: list[Command] = []
    most, others = 0, Command(words=())
    for command in commands:
        words = command.words
        programs = [at for at, word in enumerate(words) if _ENTRY.search(word.text)]
        options = [at for at, word in enumerate(words) if _is_option(word.text)]
        if programs:
            found.append(command.behind(programs[0]))
        elif len(options) > most:
            most, first = len(options), options[0]
            others = Command(words=words[first:], launcher=words[:first])
    return found or [others]


def _is_option(text: str) -> bool:
    """Return True if a word is an option, or the one that chooses a policy."""
    return text.startswith("--") or bool(_POLICY_WORD.fullmatch(text))


def _is_wrapped(found: Command) -> bool:
    """Return True if the program is torchtitan's script, which takes variables."""
    return found.program is not None and found.program.text.endswith("run_train.sh")


def misplaced(entries: Sequence[Entry]) -> list[Entry]:
    """Options behind the policy's word, which takes them for its own."""
    behind = list(dropwhile(lambda each: each.name != keys.POLICY, entries))
    return [each for each in behind if not each.name.startswith(keys.POLICY)]


def _options(words: Sequence[Word]) -> list[Entry]:
    def most(name: str) -> int | None:
        if not name.startswith("--"):
            return 0
        entry = keys.option_of(_key(name)[0])
        if entry is None or keys.takes_several(entry):
            return None
        return int(entry.get("type") != "boolean")

    found = grouped(words, _is_option, most)
    for at, each in enumerate(found):
        policy = _POLICY_WORD.fullmatch(each.word.text)
        key = keys.POLICY if policy else _key(each.name)[0]
        joined = policy[1] if policy else each.joined
        found[at] = replace(each, name=key, joined=joined)
    return found


def _key(name: str) -> tuple[str, bool]:
    """An option as torchtitan spells it in Python, and whether it is switched off."""
    key = name[2:].replace("-", "_")
    section, _, last = key.rpartition(".")
    positive = f"{section}.{last.removeprefix('no_')}"
    entry = keys.option_of(positive) or {}
    is_off = last.startswith("no_") and entry.get("type") == "boolean"
    return positive if is_off else key, is_off


def recognise(source: SourceText) -> bool:
    """Return True if a file starts torchtitan or has its words: a module, a config, its options."""
    text = source.text
    if is_old(text):
        return True
    # Files of these kinds may hold a command of torchtitan among other things.
    others = (".yaml", ".yml", ".json", ".toml", ".md")
    if source.path.endswith(others) or re.search(r"^\s*[\[{]", text):
        return False
    if not re.search(r"torchtitan[./]train\b|run_train\.sh|--job\.config[-_]file", text):
        option = (
            r"(?<!\S)--(?:parallelism|training|activation[-_]checkpoint)\.[a-z]"
            r"|(?<!\S)activation[-_]checkpoint:"
        )
        is_named = all(re.search(rf"(?<!\S)--{name}\b", text) for name in keys.SELECTORS)
        return is_named or re.search(option, text) is not None
    try:
        # A script that only names it does not start it; one that is broken may.
        (found, _), _ = entries_in(source)
        return found.program is not None
    except InputError:
        return True


def read(source: SourceText) -> ParsedConfig:
    """Read words in a script, a file of arguments or a list; raises InputError."""
    if is_old(source.text):
        return read_old(source)
    (found, entries), _ = entries_in(source)
    environment = found.environment if _is_wrapped(found) else {}
    refuse_old(source.path, found.words, environment)
    reader = WordsReader(format=keys.NAME, source=source)
    lines = reader.lines
    for entry in entries:
        _take(reader, entry)
    message = "stands behind the activation-checkpoint word; all options stand before it"
    for entry in misplaced(entries):
        if keys.option_of(entry.name) and not entry.unknown:
            spelled = entry.word.text.partition("=")[0]
            reader.report_at(spelled, lines.at(entry.word.start), "misplaced_option", message)
    for stray in strays(found.words, entries):
        if not stray.unknown:
            reader.report_at(stray.text, lines.at(stray.start), "bad_value", "belongs to no option")
    _take_variables(reader, found)
    if entries or found.program:
        _report_config(reader)
    for key in (keys.SCHEDULE, keys.SCHEDULE_CSV):
        place = reader.settings.get(key, Located(value="", key=key))
        is_other = key == keys.SCHEDULE_CSV or schedule_named(str(place.value)) == "other"
        if place.value and is_other:
            modelled = ", ".join(SCHEDULE_NAMES.values())
            message = f"{place.value} is not modelled; modelled are {modelled}"
            reader.report_at(place.key, place.line, "schedule_not_modelled", message, "note")
    launched = reader.take_launcher(found) | _processes(found, lines)
    return ParsedConfig(
        format=keys.NAME,
        path=source.path,
        settings=reader.settings | launched,
        decisions=decisions_of(reader.settings, launch.processes(launched)),
        findings=tuple(reader.findings),
        left_open=launch.open_processes(launched),
    )


def _processes(found: Command, lines: Lines) -> dict[str, Located]:
    """Return what torchtitan's script takes for the processes of a node."""
    if not _is_wrapped(found) or PROCESSES not in found.environment:
        return {}
    number = found.environment[PROCESSES]
    place = Located(value=launch.number_of(number.text), key=PROCESSES, line=lines.at(number.start))
    return {launch.NPROC_PER_NODE: place}


def refuse_processes(source: SourceText, num_gpus: int) -> None:
    """Raise ExpressError where the variable of torchtitan's script starts other processes."""
    ((found, _), _), lines = entries_in(source), Lines(source.text)
    own = _processes(found, lines)
    count = launch.processes(launch.launcher_settings(found.launcher, lines) | own)
    if own and count and count.value != num_gpus:
        number = own[launch.NPROC_PER_NODE].value
        starts = f"with {PROCESSES} of {number} the script starts {count.value}"
        needs = f"processes, the plan needs {num_gpus}; change {PROCESSES} first"
        raise ExpressError(f"{source.path}: {starts} {needs}")


def _take(reader: WordsReader, option: Entry) -> None:
    key, settings = option.name, reader.settings
    spelled = option.word.text.partition("=")[0]
    line = reader.lines.at(option.word.start)
    entry = keys.option_of(key)
    if entry is None:
        known = [f"--{name}" for name in keys.options() if name != keys.POLICY]
        hint = did_you_mean(f"--{key}", known) or "torchtitan 0.3 has no such option"
        if key == f"{keys.POLICY}.mode":
            hint = "the policy is a word of its own, such as activation-checkpoint:full"
        reader.report_at(spelled, line, "unknown_key", f"unknown option; {hint}")
        return
    if option.unknown:
        if key in keys.SELECTORS:
            settings[key] = Located(value="", key=spelled, line=line)
        if key in DECIDING:
            message = f"{' '.join(option.texts)}: the variable is not set in this file"
            reader.report_at(spelled, line, "open_variable", message, "note")
        return
    texts = option.texts
    if key == keys.POLICY:
        texts = [text.replace("-", "_") for text in texts]
    try:
        value = keys.value_of(entry, texts, is_negated=_key(spelled)[1])
    except ValueError as error:
        reader.report_at(spelled, line, "bad_value", str(error))
        return
    if key in settings:
        message = f"given twice, first in line {settings[key].line}; torchtitan takes the last"
        reader.report_at(spelled, line, "duplicate_key", message, "warning")
    settings[key] = Located(value=value, key=spelled, line=line)


def _take_variables(reader: WordsReader, found: Command) -> None:
    for name, key in SCRIPT_VARIABLES.items():
        variable = found.environment.get(name)
        place = variable or (found.program if _is_wrapped(found) else None)
        if key in reader.settings or place is None:
            continue
        line = reader.lines.at(place.start)
        text = "" if variable is None or variable.unknown else variable.text
        if variable is None or variable.unknown:
            message = f"{name} is not set in this file, nor is --{key}"
            reader.report_at(name, line, "open_variable", message, "note")
        reader.settings[key] = Located(value=text, key=name, line=line)


def _report_config(reader: WordsReader) -> None:
    """A config that torchtitan does not have; one of the user's own is not looked into."""
    module, name = (word(reader.settings, key) for key in keys.SELECTORS)
    if not module or not name or keys.config_named(module, name).is_known:
        return
    place = reader.settings["config"]
    own = keys.modules().get(module.removeprefix("torchtitan.models."))
    if own is not None:
        hint = did_you_mean(name, own) or f"it has {', '.join(own)}"
        message = f"torchtitan {module} has no config {name} that is known here; {hint}"
        reader.report_at(place.key, place.line, "unknown_config", message, "warning")
    elif module != keys.OWN_MODULE:
        hint = did_you_mean(module, keys.modules())
        message = f"{module}.{name} is not looked into: torchtitan's general defaults are taken"
        message += f"; {hint}" if hint else ""
        reader.report_at(place.key, place.line, "own_config", message, "note")
