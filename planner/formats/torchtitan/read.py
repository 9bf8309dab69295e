"""Reads torchtitan's command-line words, and its TOML files before 0.3.

What such a file decides is read, by no rule of the newer release. Its keys are those of
torchtitan/config/job_config.py of v0.1 to v0.2.2, and torchtitan/config_manager.py of 2024.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from planner.documents.schema import wrongs
from planner.errors import ExpressError, InputError, did_you_mean
from planner.formats.format import Finding, Located, ParsedConfig, SourceText, first_line
from planner.formats.settings import Settings, decided, finding_at, flag, given, model_named, word
from planner.formats.shell import launch
from planner.formats.shell.launch import Entry, Launches, WordsReader, grouped, launches_in, strays
from planner.formats.shell.word import NPROC_PER_NODE, Command, Lines, Word, launcher_values
from planner.formats.torchtitan import keys
from planner.formats.torchtitan.keys import (
    NAME,
    OWN_MODULE,
    POLICY,
    SCHEDULE,
    SCHEDULE_CSV,
    SCHEDULE_NAMES,
    SELECTORS,
)
from planner.formats.torchtitan.mapping import DECIDING, decisions_of
from planner.limits import brief

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
        lambda found: 1 + any(launcher_values(found[0].launcher)),
        is_list=_is_option(first_line(source.text).split(" ")[0]),
    )


def _starts(commands: Iterable[Command]) -> list[Command]:
    """Torchtitan's words of commands, behind the program; else those of the most options."""
    found: list[Command] = []
    most, others = 0, Command(words=())
    for command in commands:
        words = command.words
        program = next((at for at, word in enumerate(words) if _ENTRY.search(word.text)), None)
        options = [at for at, word in enumerate(words) if _is_option(word.text)]
        if program is not None:
            found.append(command.behind(program))
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
    behind = list(dropwhile(lambda each: each.name != POLICY, entries))
    return [each for each in behind if not each.name.startswith(POLICY)]


def _options(words: Sequence[Word]) -> list[Entry]:
    def most(name: str) -> int | None:
        if not name.startswith("--"):
            return 0
        entry = keys.option_of(_key(name)[0])
        if entry is None or keys.takes_several(entry):
            return None
        return int(entry.get("type") != "boolean")

    def named(entry: Entry) -> Entry:
        policy = _POLICY_WORD.fullmatch(entry.word.text)
        key = POLICY if policy else _key(entry.name)[0]
        joined = policy[1] if policy else entry.joined
        return replace(entry, name=key, joined=joined, spelled=entry.word.text.partition("=")[0])

    return [named(each) for each in grouped(words, _is_option, most)]


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
        is_named = all(re.search(rf"(?<!\S)--{name}\b", text) for name in SELECTORS)
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
    own = found.environment if _is_wrapped(found) else {}
    names_old = any(re.match(r"--job\.config[-_]file(=|$)", word.text) for word in found.words)
    if names_old or "CONFIG_FILE" in own:
        number = launch.number_of(own[PROCESSES].text) if PROCESSES in own else None
        of_job = f", with --gpus {number} for {PROCESSES}" if number else ""
        raise InputError.single(source.path, "file", f"{OLD}; check the TOML file itself{of_job}")
    reader = WordsReader(format=NAME, source=source, keeps_open=False)
    known = [each for each in entries if _is_known(reader, each)]
    reader.take(known, _value)
    message = "stands behind the activation-checkpoint word; all options stand before it"
    for entry in misplaced(known):
        if not entry.unknown:
            reader.report(entry, "misplaced_option", message)
    for stray in strays(found.words, entries):
        if not stray.unknown:
            entry = Entry(name=stray.text, word=stray)
            reader.report(entry, "bad_value", "belongs to no option")
    _take_variables(reader, found)
    if entries or found.program:
        _report_config(reader)
    _report_schedule(reader)
    launched = reader.take_launcher(found) | _processes(found, reader.lines)
    return ParsedConfig(
        format=NAME,
        path=source.path,
        settings=reader.settings | launched,
        decisions=decisions_of(reader.settings, launch.processes(launched)),
        findings=tuple(reader.findings),
        left_open=launch.open_processes(launched),
        named_model=(
            model_named(word(reader.settings, "config"), reader.settings["config"])
            if keys.config_of(reader.settings).is_known
            else None
        ),
        # What a compiler repeats to keep within a budget is its own choice.
        assumes=("recompute",) * (word(reader.settings, POLICY) == "memory_budget"),
    )


def _processes(found: Command, lines: Lines) -> dict[str, Located]:
    """Return what torchtitan's script takes for the processes of a node."""
    if not _is_wrapped(found) or PROCESSES not in found.environment:
        return {}
    number = found.environment[PROCESSES]
    return {
        NPROC_PER_NODE: Located(
            value=launch.number_of(number.text), key=PROCESSES, line=lines.at(number.start)
        )
    }


def refuse_processes(source: SourceText, num_gpus: int) -> None:
    """Raise ExpressError where the variable of torchtitan's script starts other processes."""
    ((found, _), _), lines = entries_in(source), Lines(source.text)
    own = _processes(found, lines)
    count = launch.processes(launch.launcher_settings(found.launcher, lines) | own)
    if own and count and count.value != num_gpus:
        raise ExpressError(
            f"{source.path}: with {PROCESSES} of {own[NPROC_PER_NODE].value} the script starts "
            f"{count.value} processes, the plan needs {num_gpus}; change {PROCESSES} first"
        )


def _is_known(reader: WordsReader, entry: Entry) -> bool:
    """Return True if torchtitan has an option; report what it has not, and what is left open."""
    key = entry.name
    if keys.option_of(key) is None:
        known = [f"--{name}" for name in keys.options() if name != POLICY]
        hint = did_you_mean(f"--{key}", known) or "torchtitan 0.3 has no such option"
        if key == f"{POLICY}.mode":
            hint = "the policy is a word of its own, such as activation-checkpoint:full"
        reader.report(entry, "unknown_key", f"unknown option; {hint}")
        return False
    if entry.unknown and key in SELECTORS:
        reader.settings[key] = reader.placed(entry, "")
    if entry.unknown and key in DECIDING:
        reader.report(
            entry,
            "open_variable",
            f"{' '.join(entry.texts)}: the variable is not set in this file",
            "note",
        )
    return True


def _value(entry: Entry) -> object:
    is_policy, known = entry.name == POLICY, keys.option_of(entry.name) or {}
    texts = [text.replace("-", "_") if is_policy else text for text in entry.texts]
    return keys.value_of(known, texts, is_negated=_key(entry.spelled)[1])


def _take_variables(reader: WordsReader, found: Command) -> None:
    for name, key in SCRIPT_VARIABLES.items():
        variable = found.environment.get(name)
        place = variable or (found.program if _is_wrapped(found) else None)
        if key not in reader.settings and place is not None:
            is_known = variable is not None and not variable.unknown
            entry = Entry(name=name, word=place)
            reader.settings[key] = reader.placed(entry, place.text if is_known else "")
            if not is_known:
                message = f"{name} is not set in this file, nor is --{key}"
                reader.report(entry, "open_variable", message, "note")


def _report_config(reader: WordsReader) -> None:
    """A config that torchtitan does not have; one of the user's own is not looked into."""
    module, name = (word(reader.settings, key) for key in SELECTORS)
    if not module or not name or keys.config_named(module, name).is_known:
        return
    place = reader.settings["config"]
    own = keys.modules().get(module.removeprefix("torchtitan.models."))
    if own is not None:
        hint = did_you_mean(name, own) or f"it has {', '.join(own)}"
        message = f"torchtitan {module} has no config {name} that is known here; {hint}"
        reader.report(place, "unknown_config", message, "warning")
    elif module != OWN_MODULE:
        message = f"{module}.{name} is not looked into: torchtitan's general defaults are taken"
        hint = did_you_mean(module, keys.modules())
        reader.report(place, "own_config", f"{message}; {hint}".removesuffix("; "), "note")


def _report_schedule(reader: WordsReader) -> None:
    for key in (SCHEDULE, SCHEDULE_CSV):
        place = reader.settings.get(key, Located(value="", key=key))
        is_other = key == SCHEDULE_CSV or keys.schedule_named(str(place.value)) == "other"
        if place.value and is_other:
            modelled = ", ".join(SCHEDULE_NAMES.values())
            message = f"{place.value} is not modelled; modelled are {modelled}"
            reader.report(place, "schedule_not_modelled", message, "note")


OLD = (
    "is for torchtitan before 0.3, which took its settings from a TOML file; "
    "0.3 takes --module and --config, and options for what differs"
)
# A setting that only such a file has: the profile of its release.
RELEASE = "release"


def is_old(text: str) -> bool:
    """Return True if a file is such a TOML file, by sections that they have and others do not."""
    names = {match[1] for match in re.finditer(r"(?m)^\[(\w+)\]\s*(?:#.*)?$", text)}
    return names >= {"model", "training"} and bool(
        names & {"job", "parallelism", "activation_checkpoint"}
    )


def read_old(source: SourceText) -> ParsedConfig:
    """Read what such a file decides; keys that say nothing of a plan are not looked at."""
    try:
        data = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError.single(source.path, "file", f"is no TOML: {error}") from None
    return read_settings(source.path, data, _lines_of(source.text))


def _profile(said: Settings) -> str:
    """Return the generation of a file; not compiled unless it says so.

    Degrees stand in a section of their own since 2025, when losses were compiled.
    """
    is_compiled = flag(said, "compile.enable") or flag(said, "training.compile")
    parts = given(said, "compile.components") or ("model", "loss")
    if not is_compiled or "model" not in parts:
        return "2024-eager"
    is_new = any(key.startswith("parallelism.") for key in said) and "loss" in parts
    return "2025" if is_new else "2024"


def read_settings(path: str, data: Mapping[str, Any], lines: Mapping[str, int]) -> ParsedConfig:
    """Return the decisions of such a file, or of what a run prints.

    ``lines`` has their places by ``section.key``.
    """
    said = {
        (key := f"{section}.{name}"): Located(value=value, key=key, line=lines[key])
        for section, values in data.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }
    settings: dict[str, Located] = {}
    findings: list[Finding] = []
    for key, place in said.items():
        if name := _renamed(key):
            if wrong := wrongs(keys.option_of(name) or {}, place.value):
                message = f"{brief(place.value)} given; {wrong[0].allowed}"
                findings.append(finding_at(f"{NAME}.bad_value", path, place, message))
            else:
                settings[name] = place
    # Selective checkpointing of every n-th layer in full, its default then.
    option = "activation_checkpoint.selective_ac_option"
    chosen = said.get(option, Located(value="2", key=option))
    is_selective = word(said, "activation_checkpoint.mode", "selective") == "selective"
    if is_selective and chosen.value != "op":
        mode = "activation_checkpoint.mode"
        settings[POLICY] = Located(value=chosen.value, key=mode, line=lines[mode])
    settings[RELEASE] = Located(value=_profile(said), key=RELEASE)
    # The present release may have a config of the model's name and flavour; its defaults are not
    # the file's.
    model, place = word(said, "model.name"), decided(said, "model.flavor", OWN_MODULE)
    flavor = re.sub(r"[^a-z0-9]+", "_", word(said, "model.flavor").lower())
    shape = keys.config_named(model, f"{model}_{flavor}").model
    settings["module"] = place
    settings["config"] = replace(place, value=f"{NAME}_{shape.get('num_layers', 0)}_layers")
    decisions = decisions_of(settings, shape=shape) | {"profile": settings[RELEASE]}
    layers, policy = decisions.get("layers_per_stage"), word(settings, POLICY, "none")
    if layers and policy.isdecimal():
        recomputed = tuple(number // max(int(policy), 1) for number in layers.value)
        decisions["recompute_layers_per_stage"] = replace(chosen, value=recomputed)
    if "parallelism.expert_tensor_parallel_degree" in said:
        decisions["etp"] = said["parallelism.expert_tensor_parallel_degree"]
    if given(said, "model.converters"):
        decisions.pop("precision", None)
    # The loss may be compiled beside eager blocks: profile 2025.
    has_loss = flag(said, "compile.enable") and "loss" in (given(said, "compile.components") or ())
    return ParsedConfig(
        format=NAME,
        path=path,
        settings=settings,
        decisions=decisions,
        findings=tuple(findings),
        traits=(("kernels.loss", "compiled"), ("kernels.loss_traffic_bytes", 16.0))
        if has_loss
        else (),
        assumes=()
        if policy in ("none", "selective", "full") or "recompute_layers_per_stage" in decisions
        else ("recompute",),
        named_model=model_named(f"{model}_{flavor}", place),
    )


def _lines_of(text: str) -> Mapping[str, int]:
    """Lines by ``section.key``; 0 where a key is written in another way."""
    lines, section = defaultdict[str, int](int), ""
    for number, line in enumerate(text.splitlines(), 1):
        if opened := re.match(r"\s*\[([\w.]+)\]", line):
            section = opened[1]
        elif assigned := re.match(r"\s*(\w+)\s*=", line):
            lines[f"{section}.{assigned[1]}"] = number
    return lines


def _renamed(key: str) -> str:
    """The present name of a key that decides; empty where it has none."""
    section, _, name = key.partition(".")
    # Other names moved between sections only.
    other = {
        "activation_checkpoint.mode": POLICY,
        "training.batch_size": "training.local_batch_size",
        "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    }.get(key, "")
    moves = section in ("parallelism", "training", "experimental")
    moved = (f"{new}.{name}" for new in ("parallelism", "training") if moves)
    return next((each for each in (other, *moved) if each in DECIDING), "")
