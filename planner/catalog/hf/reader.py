"""From a ``config.json`` to a model file: which family, its keys, every problem at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.catalog.figures import Source, validation_problems
from planner.catalog.hf import classic, encoders, mixtures, modern
from planner.catalog.hf.config import HfConfig, Raw
from planner.catalog.hf.json_file import NAME, config_path, load_json
from planner.catalog.model_file import ModelFile, Provenance
from planner.catalog.model_rules import broken_rules
from planner.catalog.names import did_you_mean
from planner.errors import InputError, Problem

FAMILIES: Mapping[str, type[HfConfig]] = {
    "bert": encoders.Bert,
    "bloom": classic.Bloom,
    "deepseek_v2": mixtures.DeepseekV2,
    "deepseek_v3": mixtures.DeepseekV3,
    "falcon": classic.Falcon,
    "gemma": modern.Gemma,
    "gemma2": modern.Gemma2,
    "gemma3": modern.Gemma3Text,
    "gemma3_text": modern.Gemma3Text,
    "glm4_moe": mixtures.Glm4Moe,
    "gpt2": classic.Gpt2,
    "gpt_neox": classic.GptNeoX,
    "gpt_oss": mixtures.GptOss,
    "gptj": classic.GptJ,
    "llama": modern.Llama,
    "mistral": modern.Mistral,
    "mixtral": mixtures.Mixtral,
    "opt": classic.Opt,
    "phi": classic.Phi,
    "phi3": modern.Phi3,
    "qwen2": modern.Qwen2,
    "qwen2_moe": mixtures.Qwen2Moe,
    "qwen3": modern.Qwen3,
    "qwen3_moe": mixtures.Qwen3Moe,
    "t5": encoders.T5,
    "vit": encoders.Vit,
}
"""``model_type`` of a config and the class that reads it."""
NESTED = {"gemma3": "text_config"}
"""Models of several parts: the part that is read."""
_SHAPE_KEYS = frozenset(key for family in FAMILIES.values() for key in family.model_fields)
_REQUIRED = "num_layers, hidden_size, num_heads, vocab_size, max_seq_len"


@dataclass(frozen=True, kw_only=True)
class HfModel:
    """A config as a model file, the file it came from, and how it was understood."""

    file: ModelFile
    path: Path
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The keys of one family as they stand in a file."""

    where: str
    prefix: str
    model_type: str
    family: type[HfConfig]
    keys: Mapping[str, Any]
    spelled: Mapping[str, str]
    """The spelling in the file of keys that are given in another one."""

    def problem(self, problem: Problem) -> Problem:
        """Return the problem with the key as it stands in the file."""
        key, _, rest = problem.key.partition(".")
        index = rest if rest.isdigit() else ""
        path = self.prefix + ".".join(filter(None, (self.spelled.get(key, key), index)))
        return replace(problem, where=self.where, key=path)

    def in_their_words(self, problem: Problem) -> Problem:
        """Return the problem of a model file in the words of the config."""
        words = {ours.rpartition(".")[2]: theirs for ours, theirs in self.family.WORDS.items()}
        words |= self.family.WORDS
        longest_first = sorted(map(re.escape, words), key=len, reverse=True)
        pattern = re.compile(rf"(?<![\w.])({'|'.join(longest_first)})(?!\w)")

        def reworded(text: str) -> str:
            return pattern.sub(lambda match: words[match[0]], text)

        key, message = reworded(problem.key), reworded(problem.message)
        if "head_dim" not in self.family.model_fields:
            message = message.replace(" and head_dim is left out", "")
            message = message.replace(", or give head_dim", "")
        if key in self.family.model_fields and key not in self.keys:
            message += f"; left out, taken as {self.model_type} has it"
        return self.problem(Problem(where=self.where, key=key, message=message))


def read_config(path: Path) -> HfModel:
    """Return the model of a ``config.json`` or of a folder that holds one.

    Raises InputError with every problem of the file.
    """
    source = config_path(path)
    data = load_json(source)
    given = _given(data, str(source))
    problems = [*_clashes(data, given), *_refused(given)]
    config, wrong = _validated(given)
    problems += wrong
    file = None
    if config is not None:
        found = [finding.problem(given.where) for finding in config.findings()]
        problems += map(given.problem, found)
        if not found:
            file, wrong = _as_model_file(config, given)
            problems += wrong
    if problems or file is None or config is None:
        raise InputError(dict.fromkeys(problems))
    notes = tuple(_notes(config, given, data))
    provenance = Provenance(
        basis="read",
        note="; ".join((f"as transformers' {config.CLASS}", *notes)),
        sources=(Source(path=str(source)),),
    )
    named = {"name": _name(source), "family": given.model_type, "provenance": provenance}
    return HfModel(file=file.model_copy(update=named), path=source, notes=notes)


def _name(path: Path) -> str:
    """The file's name, or its folder's where the file has the usual one."""
    return (path.resolve().parent.name if path.name == NAME else "") or path.stem


def _given(data: Mapping[str, Any], where: str) -> _Given:
    """The family of a file and its keys in the family's main spelling."""
    model_type = data.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        raise InputError.single(where, "model_type", _unknown(data))
    part = NESTED.get(model_type, "")
    nested = data.get(part) if part else data
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise InputError.single(where, part, f"must be an object; given {str(nested)[:60]!r}")
    keys, spelled = {}, {}
    for key, value in nested.items():
        main = family.ALIASES.get(key, key)
        if main not in keys or key == main:
            keys[main] = value
            spelled[main] = key
    return _Given(
        where=where,
        prefix=f"{part}." if part else "",
        model_type=model_type,
        family=family,
        keys=keys,
        spelled=spelled,
    )


def _unknown(data: Mapping[str, Any]) -> str:
    """What to do about a model_type that is missing or of no family here."""
    known = f"known are {', '.join(FAMILIES)}"
    other = f"or write a model file in YAML with at least {_REQUIRED} (docs/models.md)"
    if "model_type" not in data:
        return f"is missing; give it: {known}; {other}"
    model_type = data["model_type"]
    if not isinstance(model_type, str):
        return f"must be a word; given {str(model_type)[:60]!r}; {known}"
    hint = did_you_mean(model_type, FAMILIES)
    text = data.get("text_config")
    if isinstance(text, dict) and text.get("model_type") in list(FAMILIES):
        hint = f"its text_config is {text['model_type']}: plan with that in a file of its own"
    parts = (f"unknown; given {model_type[:60]!r}", hint, known, other)
    return "; ".join(part for part in parts if part)


def _clashes(data: Mapping[str, Any], given: _Given) -> Iterator[Problem]:
    """Keys given in two spellings with two values."""
    nested = data.get(given.prefix.removesuffix(".")) if given.prefix else data
    for key, value in (nested or {}).items():
        main = given.family.ALIASES.get(key)
        if main and key != given.spelled[main] and value != given.keys[main]:
            message = f"is {given.spelled[main]} in other words; given {str(value)[:60]!r}"
            message += f" beside {str(given.keys[main])[:60]!r}, allowed one of them"
            yield Problem(where=given.where, key=given.prefix + key, message=message)


def _refused(given: _Given) -> Iterator[Problem]:
    """Keys that change the layers to what the planner does not model."""
    for key, only in given.family.ONLY.items():
        value = given.keys.get(key, only.allowed[0])
        if value not in only.allowed:
            allowed = " or ".join(str(each) for each in only.allowed)
            message = f"{only.why}; given {str(value)[:60]!r}, allowed {allowed}"
            yield given.problem(Problem(where=given.where, key=key, message=message))
    if given.keys.get("pruned_heads"):
        message = "layers with fewer heads are not modelled; allowed {}"
        yield Problem(where=given.where, key=f"{given.prefix}pruned_heads", message=message)


def _validated(given: _Given) -> tuple[HfConfig | None, list[Problem]]:
    """The keys as their family, or what is wrong with them and between those that are right."""
    known = {key: given.keys[key] for key in given.keys if key in given.family.model_fields}
    try:
        return given.family.model_validate(known), []
    except ValidationError as error:
        problems = validation_problems(error, given.family, given.where)
        wrong = {str(details["loc"][0]) for details in error.errors()}
    right = {
        key: known.get(key, field.default)
        for key, field in given.family.model_fields.items()
        if key not in wrong
    }
    raw: Raw = {"moe": {}}
    for ours, theirs in given.family.WORDS.items():
        section, _, key = ours.rpartition(".")
        (raw[section] if section else raw)[key] = right.get(theirs)
    between = map(given.in_their_words, broken_rules(raw, given.where))
    return None, [*map(given.problem, problems), *between]


def _as_model_file(config: HfConfig, given: _Given) -> tuple[ModelFile | None, list[Problem]]:
    raw = config.raw()
    problems = broken_rules(raw, given.where)
    file = None
    try:
        file = ModelFile.model_validate(raw)
    except ValidationError as error:
        problems += validation_problems(error, ModelFile, given.where)
    return file, [given.in_their_words(problem) for problem in problems]


def _notes(config: HfConfig, given: _Given, data: Mapping[str, Any]) -> Iterator[str]:
    """How the file was understood, where that is not plain from its keys."""
    if given.prefix:
        yield f"{given.prefix}* only: the text part of {given.model_type}"
    yield from config.notes()
    if data.get("auto_map"):
        yield f"auto_map: code of its own is not read; taken as {config.CLASS}"
    own = {*given.family.model_fields, *given.family.ONLY}
    unread = sorted(
        key for key in given.keys if key in _SHAPE_KEYS - own and given.keys[key] is not None
    )
    if unread:
        yield f"{config.CLASS} does not read {', '.join(unread)}"
