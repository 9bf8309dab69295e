"""TOML files of torchtitan before 0.3: what they decide is read, by no rule of the newer release.

Source: torchtitan/config/job_config.py of v0.1 to v0.2.2, torchtitan/config_manager.py of 2024.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.documents.schema import wrongs
from planner.errors import InputError
from planner.formats.format import Located, ParsedConfig, SourceText
from planner.formats.settings import decided, finding_at, flag, given, word
from planner.formats.shell.launch import number_of
from planner.formats.shell.word import Word
from planner.formats.torchtitan.keys import NAME, OWN_MODULE, POLICY, config_named, option_of
from planner.formats.torchtitan.mapping import DECIDING, decisions_of
from planner.limits import brief

OLD = (
    "is for torchtitan before 0.3, which took its settings from a TOML file; "
    "0.3 takes --module and --config, and options for what differs"
)
# A setting that only such a file has: the profile of its release.
RELEASE = "release"


def is_old(text: str) -> bool:
    """Return True if a file is such a TOML file, by sections that all of them have."""
    names = {match[1] for match in re.finditer(r"(?m)^\[(\w+)\]\s*(?:#.*)?$", text)}
    return names >= {"model", "training"} and bool(names & {"job", "parallelism"})


def refuse_old(path: str, words: Sequence[Word], environment: Mapping[str, Word]) -> None:
    """Raise InputError where words, or a variable of torchtitan's script, name such a file."""
    names_one = any(re.match(r"--job\.config[-_]file(=|$)", word.text) for word in words)
    if names_one or "CONFIG_FILE" in environment:
        number = number_of(environment["NGPU"].text) if "NGPU" in environment else None
        of_job = f", with --gpus {number} for NGPU" if number else ""
        raise InputError.single(path, "file", f"{OLD}; check the TOML file itself{of_job}")


def read_old(source: SourceText) -> ParsedConfig:
    """Read what such a file decides; keys that say nothing of a plan are not looked at."""
    try:
        data = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError.single(source.path, "file", f"is no TOML: {error}") from None
    return _reading(source.path, data, _lines_of(source.text))


def read_dumped(path: str, data: Mapping[str, Any], line: int) -> ParsedConfig:
    """Read the settings that a run prints at its start, one mapping on one line."""
    return _reading(path, data, defaultdict(lambda: line))


def _reading(path: str, data: Mapping[str, Any], lines: Mapping[str, int]) -> ParsedConfig:
    """Return the decisions of such a file; ``lines`` has their places by ``section.key``."""
    said: dict[str, Located] = {}
    for section, values in data.items():
        if not isinstance(values, Mapping):
            continue
        for name, value in values.items():
            key = f"{section}.{name}"
            said[key] = Located(value=value, key=key, line=lines[key])
    settings = {_renamed(key): place for key, place in said.items()}
    settings.pop("", None)
    findings = []
    for name, place in list(settings.items()):
        wrong = next(iter(wrongs(option_of(name) or {}, place.value)), None)
        if wrong:
            del settings[name]
            message = f"{brief(place.value)} given; {wrong.allowed}"
            findings.append(finding_at(f"{NAME}.bad_value", path, place, message))
    # Selective checkpointing of every n-th layer, its default then, is none that is known now.
    option = "activation_checkpoint.selective_ac_option"
    chosen = said.get(option, Located(value="2", key=option))
    is_selective = word(said, "activation_checkpoint.mode", "selective") == "selective"
    if is_selective and chosen.value != "op":
        settings[POLICY] = chosen
    # Degrees stand in a section of their own since 2025.
    is_compiled = flag(said, "compile.enable") or flag(said, "training.compile")
    year = "2024" if is_compiled else "2024-eager"
    if any(key.startswith("parallelism.") for key in said):
        year = "2025"
    settings[RELEASE] = Located(value=year, key=RELEASE)
    # The present release may have a config of the model's name and flavour; its defaults are not
    # the file's.
    model, place = word(said, "model.name"), decided(said, "model.flavor", OWN_MODULE)
    flavor = re.sub(r"[^a-z0-9]+", "_", word(said, "model.flavor").lower())
    shape = config_named(model, f"{model}_{flavor}").model
    settings["module"] = place
    settings["config"] = replace(place, value=f"{NAME}_{shape.get('num_layers', 0)}_layers")
    # Of every n-th layer plans have no policy.
    is_other = word(settings, POLICY, "none") not in ("none", "selective", "full")
    decisions = decisions_of(settings, shape=shape) | {"profile": settings[RELEASE]}
    if "parallelism.expert_tensor_parallel_degree" in said:
        decisions["etp"] = said["parallelism.expert_tensor_parallel_degree"]
    if given(said, "model.converters"):
        decisions.pop("precision", None)
    return ParsedConfig(
        format=NAME,
        path=path,
        settings=settings,
        decisions=decisions,
        findings=tuple(findings),
        assumes=("recompute",) * is_other,
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
