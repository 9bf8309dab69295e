"""Reads TrainingArguments in JSON or YAML: every key with its line, and what they decide."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.documents.json_nodes import parse_json
from planner.documents.schema import Path, wrongs
from planner.documents.tree import keys_at_top, parsed_object, parsed_yaml
from planner.errors import InputError
from planner.formats.adapters import LIGER
from planner.formats.decision import decided_in
from planner.formats.format import Finding, Reading, SourceText, Value, listed
from planner.formats.front_ends.tools import tool_of
from planner.formats.settings import Settings, decided, finding_at, flag, given, repeated_keys
from planner.formats.trainer import keys
from planner.formats.trainer.mapping import GROUPED, REPLICATED, of_mesh, section_of
from planner.spelling import alike, did_you_mean

VARIABLE = "PARALLELISM_CONFIG_"
MODELS = ("model_name_or_path", "model_name", "model_id", "model")
PEFT: Mapping[str, tuple[object, ...]] = {
    "use_peft": (True,),
    "finetuning_type": ("lora", "freeze", "oft"),
    "tuner_type": ("lora",),
    "train_type": ("lora",),
    "load_in_4bit": (True,),
    "load_in_8bit": (True,),
}
"""Arguments of TRL, LLaMA-Factory and ms-swift after which only adapters are trained."""
_EXPONENT = re.compile(r"\d{1,9}e[+-]?\d{1,3}")
_TELLING = re.compile(rf"""^['"]?{keys.BATCH}['"]?\s*:""", re.MULTILINE)
_MISSPELT = 0.87
"""How alike a key is to the one that was meant. Others may be of the dataclasses that a script
reads from the same file, as HfArgumentParser does."""


def recognise(source: SourceText) -> bool:
    """JSON or YAML with a batch size per device, or JSON with several of the arguments."""
    if not _is_json(source):
        try:
            is_likely = bool(_TELLING.search(source.text))
            names = {*_content(source)[0]} if is_likely else set()
        except InputError:
            return False
        return keys.BATCH in names and tool_of(names) is None
    names = keys_at_top(source.path, source.text)
    if tool_of(names) is not None:
        return False
    return keys.BATCH in names or ("output_dir" in names and len(names & {*keys.known()}) > 1)


def _is_json(source: SourceText) -> bool:
    return source.text.lstrip().startswith("{")


def read(source: SourceText) -> Reading:
    """Read a file; InputError where it is no object of JSON, or mapping of YAML."""
    content, places = _content(source)
    settings = {".".join(_in_full(path)): place for path, place in places.items()}
    findings = [*_texts(source), *_wrong(source.path, content, places)]
    found = decided_in(section_of(settings).table, settings)
    is_bare = section_of(settings) is REPLICATED
    is_shared = not content.keys() <= keys.known().keys()
    is_shared &= "recompute_layers_per_stage" not in found
    return Reading(
        format="trainer",
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(findings, key=lambda each: each.line)),
        assumes=("zero_stage",) * is_bare + ("recompute",) * is_shared,
        named_model=next((settings[key] for key in MODELS if key in settings), None),
        unpriced=_adapters(settings),
        batching=_batching(settings),
        traits=LIGER if flag(settings, keys.LIGER) else (),
    )


def _batching(settings: Settings) -> Value | None:
    """Documents of about one length together; else the script's collator decides."""
    is_grouped = given(settings, keys.SAMPLING) == GROUPED
    return decided(settings, keys.SAMPLING, "grouped") if is_grouped else None


def _content(source: SourceText) -> tuple[dict[str, Any], dict[Path, Value]]:
    """The object of a file, and every value by its path; raises InputError."""
    if _is_json(source):
        tree = parsed_object(source.path, source.text)
        places = {
            path: Value(value=entry.value, key=".".join(path), line=entry.line)
            for path, entry in tree.members.items()
        }
        return tree.value, places
    text = parsed_yaml(source.path, source.text)
    if not isinstance(text.value, dict):
        raise InputError.single(source.path, "line 1", "keys with values are needed")
    entries = {tuple(map(str, path)): entry for path, entry in text.entries.items()}
    places = {
        path: Value(value=as_number(entry.value), key=".".join(path), line=entry.line)
        for path, entry in entries.items()
    }
    return {str(key): as_number(value) for key, value in text.value.items()}, places


def as_number(value: object) -> object:
    """The value; as a number what YAML 1.1 takes for text, ``1e-4``, as HfArgumentParser does."""
    is_number = isinstance(value, str) and _EXPONENT.fullmatch(value)
    return float(value) if is_number else value  # type: ignore[arg-type]


def _adapters(settings: Settings) -> str:
    """Why the model is not trained as a whole, if it is not."""
    for key, values in PEFT.items():
        value = given(settings, key)
        if value is not None and value in values:
            return f"{key} {value}: adapters are trained, and plans train all parameters"
    return ""


def launched(reading: Reading, environment: Settings) -> Reading:
    """With the mesh that ParallelismConfig reads from the environment."""
    sizes = {
        f"{keys.MESH}.{name.removeprefix(VARIABLE).lower()}": replace(each, value=int(each.value))
        for name, each in environment.items()
        if name.startswith(VARIABLE) and str(each.value).isdigit() and len(each.value) < 9
    }
    if not sizes:
        return reading
    mesh = {keys.MESH: Value(value={}, key=keys.MESH), **sizes}
    return replace(reading, decisions={**reading.decisions, **dict(of_mesh(mesh))})


def _in_full(path: Path) -> Path:
    """Keys of ``fsdp_config`` may be written as Accelerate's file has them."""
    if len(path) < 2:
        return path
    prefix = keys.known().get(path[0], {}).get("prefix", "")
    return (path[0], path[1].removeprefix(prefix), *path[2:])


def _texts(source: SourceText) -> Iterator[Finding]:
    """Duplicate keys, and what is no plain JSON, which is all HfArgumentParser reads."""
    is_json = _is_json(source)
    tree = (parsed_object if is_json else parsed_yaml)(source.path, source.text)
    says = "given twice, first in line {first}; the last one counts"
    yield from repeated_keys("trainer.duplicate_key", source.path, tree.duplicates, says)
    if not is_json:
        return
    try:
        parse_json(source.path, source.text, is_plain=True)
    except InputError as error:
        (problem,) = error.problems
        place = Value(value=None, key="", line=int(problem.key.removeprefix("line ")))
        reason = problem.message.removeprefix("not JSON: ")
        message = f"no plain JSON, which parse_json_file reads: {reason}; no comments allowed"
        yield finding_at("trainer.bad_value", source.path, place, message)


def _wrong(
    path: str, content: Mapping[str, Any], places: Mapping[Path, Value]
) -> Iterator[Finding]:
    """Unknown keys, and values of the wrong kind."""
    foreign: list[str] = []
    old: list[str] = []
    whole = {
        key: {_in_full((key, name))[1]: each for name, each in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in content.items()
    }
    spelled = {_in_full(at): place for at, place in places.items()}
    for key in keys.WHOLE:
        if isinstance(value := content.get(key), float) and value.is_integer():
            message = f"given {value!r}, which stays so; a whole number is allowed"
            yield finding_at("trainer.bad_value", path, places[(key,)], message)
    for wrong in wrongs(keys.schema(), whole):
        place, name = spelled[wrong.path], wrong.path[-1]
        if wrong.allowed:
            message = f"given {repr(place.value)[:60]}; {wrong.allowed}"
            yield finding_at("trainer.bad_value", path, place, message)
        elif len(wrong.path) > 1:
            known = list(wrong.schema["properties"])
            hint = did_you_mean(name, known) or f"{len(known)} keys are known"
            message = f"unknown key of {wrong.path[0]}; {hint}"
            yield finding_at("trainer.unknown_key", path, place, message)
        elif name in keys.replaced():
            old.append(name)
        elif reason := _mistaken(name):
            yield finding_at("trainer.unknown_key", path, place, reason)
        else:
            foreign.append(name)
    if old:
        shown = [f"{key} ({keys.replaced()[key] or 'nothing'} in its place)" for key in old]
        message = f"for a transformers older than 5: {listed(shown)}"
        yield finding_at("trainer.made_for", path, places[(old[0],)], message, severity="note")
    if foreign:
        what = "no key" if len(foreign) == 1 else "no keys"
        rest = "sound where the script's own have them"
        message = f"{listed(foreign)}: {what} of TrainingArguments; {rest}"
        yield finding_at(
            "trainer.unknown_key", path, places[(foreign[0],)], message, severity="note"
        )


def _mistaken(key: str) -> str | None:
    """What is wrong with a key that was meant for TrainingArguments; None where it was not."""
    known = tuple(keys.known())
    is_near = alike(key, known, _MISSPELT)
    return f"unknown key of TrainingArguments; {did_you_mean(key, known)}" if is_near else None
