"""Reads NeMo's YAML: its settings, what they decide, and what is wrong."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.documents.yaml_text import parsed
from planner.errors import InputError
from planner.formats.finding import Finding
from planner.formats.format import OwnModel, Reading, SourceText, Value
from planner.formats.megatron.decisions import decisions_of, left_open
from planner.formats.megatron.described import described
from planner.formats.nemo.keys import (
    CARRIED,
    DEVICES,
    NAME,
    NODES,
    OPTIONS,
    activation_of,
    as_options,
    option_value,
)
from planner.formats.nemo.priced import (
    batching_of,
    length_of,
    other_model,
    supposes,
    traits_of,
    unpriced,
)
from planner.formats.nemo.resolve import resolved
from planner.formats.settings import as_whole, finding_at, given

ENDS = (".yaml", ".yml")
_TELLS = (
    re.compile(r"^model:\s*(#.*)?$", re.M),
    re.compile(r"^trainer:\s*(#.*)?$", re.M),
    re.compile(
        r"^ +(tensor_model_parallel_size|megatron_amp_O2|mcore_gpt|micro_batch_size):", re.M
    ),
)


def recognise(source: SourceText) -> bool:
    """Whether a file has a trainer and a model that Megatron's layers make up."""
    is_yaml = source.path.lower().endswith(ENDS)
    return is_yaml and all(each.search(source.text) for each in _TELLS)


def read(source: SourceText) -> Reading:
    """Understand a file; InputError where it is no YAML mapping."""
    settings, unknown, findings = _settings(source)
    if why := other_model(settings):
        return _of_other(source, settings, why)
    options = as_options(settings, unknown)
    num_gpus = _num_gpus(settings)
    decisions = decisions_of(options, num_gpus)
    length, is_filled = length_of(settings)
    decisions.pop("seq_len", None)
    if length is not None and is_filled:
        decisions["seq_len"] = length
    is_open = left_open(options)
    counts = [key for key in (DEVICES, NODES) if key in unknown]
    if counts:
        is_open["num_gpus"] = settings[counts[0]]
    return Reading(
        format=NAME,
        path=source.path,
        settings=settings,
        decisions=decisions,
        findings=findings,
        left_open=is_open,
        unpriced=unpriced(settings),
        traits=tuple(traits_of(settings)),
        longest=None if is_filled else length,
        batching=batching_of(settings),
        supposes=tuple(supposes(settings)),
        own_model=_model(settings, options),
    )


def _of_other(source: SourceText, settings: Mapping[str, Value], why: str) -> Reading:
    """A file for a model that is no decoder, of which nothing is said but that."""
    key, _, what = why.partition(": ")
    place = settings.get(key.partition(" ")[0], Value(value=None, key=key))
    message = f"{what}: nothing of the file is checked"
    finding = finding_at("job.unpriced", source.path, place, message, "note")
    return Reading(
        format=NAME,
        path=source.path,
        settings={},
        decisions={},
        findings=(finding,),
        made_for="NeMo's other models",
        unpriced=why,
    )


def _settings(
    source: SourceText,
) -> tuple[dict[str, Value], frozenset[str], tuple[Finding, ...]]:
    """Values by key, keys whose values nobody knows, and what is wrong."""
    text = parsed(source.path, source.text)
    if not isinstance(text.value, dict):
        raise InputError.single(source.path, "line 1", "keys with values are needed")
    places = {
        ".".join(map(str, path)): Value(
            value=each.value, key=".".join(map(str, path)), line=each.line
        )
        for path, each in text.entries.items()
        if not each.inner
    }
    findings = [
        finding_at(
            f"{NAME}.duplicate_key",
            source.path,
            Value(value=None, key=".".join(map(str, each.path)), line=each.line),
            "given twice, which OmegaConf refuses",
        )
        for each in text.duplicates
    ]
    settings, unknown = resolved(places)
    for key in OPTIONS:
        if key in settings:
            try:
                settings[key] = replace(settings[key], value=option_value(key, settings[key].value))
            except ValueError as error:
                settings[key] = replace(settings[key], value=None)
                findings.append(
                    finding_at(f"{NAME}.bad_value", source.path, settings[key], str(error))
                )
    findings += _notes(source, settings, unknown)
    return settings, unknown, tuple(findings)


def _notes(
    source: SourceText, settings: Mapping[str, Value], unknown: frozenset[str]
) -> Iterator[Finding]:
    """Keys that decide something and are left to the command line."""
    hidden = [key for key in (DEVICES, NODES, *CARRIED.values()) if key in unknown]
    if hidden:
        more = ", ".join(hidden[1:6])
        message = f"given elsewhere{f', as are {more}' if more else ''}; not known"
        place = settings[hidden[0]]
        yield finding_at(f"{NAME}.unresolved", source.path, place, message, "note")


def _num_gpus(settings: Mapping[str, Value]) -> Value | None:
    """Devices of a node times nodes."""
    devices, nodes = given(settings, DEVICES), given(settings, NODES)
    each = len(devices) if isinstance(devices, list) else as_whole(devices)
    number = 1 if NODES not in settings else as_whole(nodes)
    if not each or not number or each < 1 or number < 1:
        return None
    place = settings[DEVICES]
    return Value(value=each * number, key=place.key, line=place.line)


def _model(settings: Mapping[str, Value], options: Mapping[str, Value]) -> OwnModel | None:
    """The model that the file describes."""
    own = described(options)
    if own is None:
        return None
    changed = own.spec
    if activation_of(settings) in ("geglu", "reglu"):
        changed = replace(changed, gated_mlp=True, activation="silu")
    name = f"the file's model ({changed.num_layers} layers of {changed.hidden_size})"
    return replace(own, spec=replace(changed, name=name))
