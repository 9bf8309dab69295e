"""Conversion of a ``config.json`` to a model file: its family, its keys, every problem at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.catalog.figures import Source, validation_problems
from planner.catalog.hf.family import Family, Raw, families
from planner.catalog.model_file import ModelKeys, Provenance, broken_rules, read_model
from planner.catalog.models import ModelDetails, to_spec
from planner.documents.file import is_file, is_folder
from planner.documents.tree import load_json
from planner.errors import InputError, Problem, did_you_mean
from planner.limits import name_of, one_line
from planner.notes import Problems

NAME = "config.json"
_PART = "text_config"


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The keys of one family as they stand in a file."""

    where: str
    kind: str  # a type of families.yaml
    written: Mapping[str, Any]
    prefix: str = ""  # what stands before a key, where a part of the file gives the shape
    notes: tuple[str, ...]  # how the type was understood

    @property
    def family(self) -> Family:
        """What is known of the type."""
        return families()[self.kind]

    @cached_property
    def spelled(self) -> Mapping[str, str]:
        """Keys in the family's main spelling, and their spelling in the file."""
        found: dict[str, str] = {}
        for key in self.written:
            main = self.family.aliases.get(key, key)
            if main not in found or key == main:
                found[main] = key
        return found

    @cached_property
    def keys(self) -> Mapping[str, Any]:
        """Values by keys in the family's main spelling."""
        return {main: self.written[key] for main, key in self.spelled.items()}

    def problem(self, problem: Problem) -> Problem:
        """Return the problem with the key as it stands in the file."""
        key, _, rest = problem.key.partition(".")
        index = rest if rest.isdigit() else ""
        path = self.prefix + self.spelled.get(key, key)
        path += f".{index}" if index else ""
        return replace(problem, where=self.where, key=path)

    def in_their_words(self, problem: Problem) -> Problem:
        """Return the problem of a model file in the words of the config."""
        words = self.family.words
        longest_first = sorted(map(re.escape, words), key=len, reverse=True)
        pattern = re.compile(rf"(?<![\w.])({'|'.join(longest_first)})(?!\w)")

        def reworded(text: str) -> str:
            return pattern.sub(lambda match: words[match[0]], text)

        key, message = reworded(problem.key), reworded(problem.message)
        if "head_dim" not in self.family.keys:
            message = message.replace(" and head_dim is left out", "")
            message = message.replace(", or give head_dim", "")
        if key in self.family.keys and key not in self.keys:
            message += f"; left out, taken as {self.kind} has it"
        return self.problem(Problem(where=self.where, key=key, message=message))


def read_config(path: Path) -> ModelDetails:
    """Return the model of a ``config.json`` or a folder with one; InputError with every problem."""
    source = path / NAME if is_folder(path) else path
    if source != path and not is_file(source) and not source.is_symlink():
        message = f"no such file; the folder {path} holds no {NAME}"
        raise InputError.single(str(source), "file", message)
    data = load_json(source)
    given = _found(data, str(source))
    problems = Problems()
    problems.found += _wrong_keys(given)
    made = problems.read(partial(_model_file, given))
    problems.finish()
    assert made is not None
    file, names = made
    notes = tuple(_notes(names, given, data))
    provenance = Provenance(
        basis="read",
        note="; ".join((f"as transformers' {given.family.class_name}", *notes)),
        sources=(Source(path=str(source)),),
    )
    # a folder's name where the file has the usual one
    folder = source.resolve().parent.name if source.name == NAME else ""
    name = name_of(folder or source.stem)
    file = file.model_copy(
        update={
            "name": name,
            "family": given.kind,
            "provenance": provenance,
            **_for_files(given.written),
        }
    )
    return ModelDetails(spec=to_spec(file, name), path=source, file=file, notes=notes)


def _for_files(keys: Mapping[str, Any]) -> dict[str, float]:
    """Rotary positions and the epsilon of norms, as far as a file says them in a plain way."""
    scaling = keys.get("rope_parameters") or keys.get("rope_scaling")
    scaling = scaling if isinstance(scaling, dict) else {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    base = keys.get("rope_theta", scaling.get("rope_theta"))
    said = {
        "rotary_base": base if kind in ("default", "llama3") else None,
        "rotary_factor": scaling.get("factor") if kind == "llama3" else None,
        "rotary_share": keys.get("partial_rotary_factor", scaling.get("partial_rotary_factor")),
        "norm_eps": keys.get("rms_norm_eps"),
    }
    return {
        name: float(each)
        for name, each in said.items()
        if isinstance(each, float | int) and 0 < each < 1e12
    }


def _wrong_keys(given: _Given) -> Iterator[Problem]:
    """Keys given in two spellings, or that change the layers to what the planner does not model."""
    for key, value in given.written.items():
        main = given.family.aliases.get(key)
        if main and key != given.spelled[main] and value != given.keys[main]:
            message = f"is {given.spelled[main]} in other words; given {str(value)[:60]!r}"
            message += f" beside {str(given.keys[main])[:60]!r}, allowed one of them"
            yield Problem(where=given.where, key=given.prefix + key, message=message)
    for key, only in given.family.only.items():
        value = given.keys.get(key, only.allowed[0])
        if value not in only.allowed:
            allowed = " or ".join(str(each) for each in only.allowed)
            message = f"{only.why}; given {str(value)[:60]!r}, allowed {allowed}"
            yield given.problem(Problem(where=given.where, key=key, message=message))
    if given.keys.get("pruned_heads"):
        message = "layers with fewer heads are not modelled; allowed {}"
        yield Problem(where=given.where, key=f"{given.prefix}pruned_heads", message=message)


def _model_file(given: _Given) -> tuple[ModelKeys, Raw]:
    """The model file, and the names of the family that it is computed from; raises InputError."""
    family, where = given.family, given.where
    known = {key: given.keys[key] for key in given.keys if key in family.keys}
    try:
        config = family.config_class.model_validate(known)
    except ValidationError as error:
        problems = validation_problems(error, family.config_class, where)
        wrong = {str(details["loc"][0]) for details in error.errors()}
        defaults = {key: each.default for key, each in family.keys.items()}
        given_or_usual = defaults | known
        right = {key: given_or_usual[key] for key in given_or_usual.keys() - wrong}
        between = broken_rules(family.raw(family.names(right)), where)
        found = [*map(given.problem, problems), *map(given.in_their_words, between)]
        raise InputError(found) from None
    names = family.names({key: getattr(config, key) for key in family.keys})
    InputError.check(map(given.problem, family.findings(names)))
    raw = family.raw(names)
    try:
        return read_model(raw, where), names
    except InputError as error:
        raise InputError(map(given.in_their_words, error.problems)) from None


def _notes(names: Raw, given: _Given, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the file was interpreted, where its keys do not make that plain."""
    family = given.family
    yield from given.notes
    yield from family.noted(names)
    if data.get("auto_map"):
        yield f"auto_map: code of its own is not read; taken as {family.class_name}"
    # of heads for classes, which files of any family may have
    own = {"id2label", "num_labels", *family.keys, *family.only}
    others = set[str]().union(*(family.keys for family in families().values()))
    unread = sorted(key for key in others - own if given.keys.get(key) is not None)
    if unread:
        yield f"{family.class_name} does not read {', '.join(unread)}"


def _found(data: Mapping[str, Any], where: str) -> _Given:
    """The part of a file that is of a known family; raises InputError without one."""
    model_type, inner = data.get("model_type"), data.get(_PART)
    kind = model_type if isinstance(model_type, str) and model_type in families() else None
    if kind and families()[kind].text_part_only:
        inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise InputError.single(where, _PART, f"must be an object; given {str(inner)[:60]!r}")
    elif kind is None and isinstance(inner, dict):
        kind = _kind(inner)
    else:
        inner = None
    if kind and isinstance(inner, dict):
        # also keys that stand outside the part
        outer = {key: data[key] for key in ("tie_word_embeddings",) if key in data}
        note = f"{_PART}.* only: the text part of {one_line(str(model_type)[:60])}"
        notes = (note, *(() if model_type == kind else _read_as(inner, kind)))
        written, prefix = {**outer, **inner}, f"{_PART}."
        return _Given(where=where, kind=kind, written=written, prefix=prefix, notes=notes)
    kind = _kind(data)
    if kind is None:
        raise InputError.single(where, "model_type", _unknown(data))
    return _Given(where=where, kind=kind, written=data, notes=_read_as(data, kind))


def _kind(keys: Mapping[str, Any]) -> str | None:
    """The family by type, or by the class that the file says it is of."""
    model_type, names = keys.get("model_type"), keys.get("architectures")
    if isinstance(model_type, str):
        for kind, family in families().items():
            if model_type == kind or model_type in family.read_as_this:
                return kind
    elif model_type is not None:
        return None
    name = names[0] if isinstance(names, list) and names else None
    whole = (kind for kind, family in families().items() if not family.text_part_only)
    return next((kind for kind in whole if name == families()[kind].class_name), None)


def _read_as(keys: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Return how the type was interpreted if it is not that of the family."""
    model_type = keys.get("model_type")
    if model_type == kind:
        return ()
    if model_type in families()[kind].read_as_this:
        of_whole = " its language model only," if "vision_config" in keys else ""
        return (f"{model_type}:{of_whole} read as {kind}",)
    given = one_line(str(model_type)[:60])
    missing = "no model_type" if model_type is None else f"model_type {given}"
    return (f"{missing}: read as {kind}, whose class its architectures name",)


def _unknown(data: Mapping[str, Any]) -> str:
    """Return advice about a model_type that is missing or of no known family."""
    known = f"known are {', '.join(families())}"
    other = (
        "or write a model file in YAML with at least num_layers, hidden_size, num_heads, "
        "vocab_size, max_seq_len (docs/models.md)"
    )
    if "model_type" not in data:
        return f"is missing, such as llama; planner check reads files of a job; {other}"
    model_type = data["model_type"]
    if not isinstance(model_type, str):
        return f"must be a word; given {str(model_type)[:60]!r}; {known}"
    hint = "" if data.get("architectures") else did_you_mean(model_type, families())
    parts = (f"unknown; given {model_type[:60]!r}", hint, known, other)
    return "; ".join(part for part in parts if part)
