"""Reads an Accelerate configuration file: every key with its line, and what they decide."""

import re
from collections.abc import Callable, Iterator, Mapping

from planner.documents.schema import Schema, wrongs
from planner.documents.tree import parsed_yaml
from planner.errors import InputError
from planner.formats.accelerate import keys, script
from planner.formats.accelerate.decisions import section_of
from planner.formats.accelerate.section import top
from planner.formats.decision import decided_in
from planner.formats.deepspeed.keys import schema as of_deepspeed
from planner.formats.format import Finding, Reading, SourceText, Value
from planner.formats.settings import as_flag, as_whole, finding_at, repeated_keys
from planner.spelling import did_you_mean

SAGEMAKER, MEGATRON = "AMAZON_SAGEMAKER", "MEGATRON_LM"
_TELLING = re.compile(r"""^[{\s"']*(distributed_type|compute_environment)["']?\s*:""", re.MULTILINE)


def recognise(source: SourceText) -> bool:
    """A mapping with one of the two keys Accelerate always writes."""
    if not _TELLING.search(source.text):
        return False
    try:
        value = parsed_yaml(source.path, source.text).value
    except InputError:
        return False
    return isinstance(value, dict) and bool({"distributed_type", "compute_environment"} & {*value})


def read(source: SourceText) -> Reading:
    """Read a file; InputError where it is no YAML mapping, or SageMaker's."""
    text = parsed_yaml(source.path, source.text)
    if not isinstance(text.value, dict):
        message = f"is no mapping of keys; given {type(text.value).__name__}"
        raise InputError.single(source.path, "text", message)
    if text.value.get("compute_environment") == SAGEMAKER:
        message = f"{SAGEMAKER} starts machines of its own; files for LOCAL_MACHINE are read"
        raise InputError.single(source.path, "compute_environment", message)
    if str(text.value.get("distributed_type")).upper() == MEGATRON:
        message = f"{MEGATRON} is not covered; scripts with Megatron-LM's own options are"
        raise InputError.single(source.path, "distributed_type", message)
    settings: dict[str, Value] = {}
    findings = list(
        repeated_keys(
            "accelerate.duplicate_key",
            source.path,
            text.duplicates,
            "given twice; the last one counts",
        )
    )
    for path, entry in text.entries.items():
        key = ".".join(map(str, path))
        if len(path) > 2 or (len(path) == 2 and path[0] not in keys.sections()):
            continue
        section = str(path[0])
        full = f"{section}.{keys.in_full(section, str(path[1]))}" if len(path) == 2 else key
        place = Value(value=entry.value, key=key, line=entry.line)
        if full in settings and len(path) == 2:
            message = f"given twice, also as {settings[full].key}; the last one counts"
            findings.append(finding_at("accelerate.duplicate_key", source.path, place, message))
        settings[full] = place
    findings += _wrong(source.path, settings)
    exchange = script.exchange_of(source.text)
    if exchange is not None:
        message = f"{str(exchange.value)[:40]} is not modelled; priced are plain all-reduces"
        rule = "accelerate.exchange_not_modelled"
        findings.append(finding_at(rule, source.path, exchange, message, "note"))
    settings = {key: value for key, value in settings.items() if key not in keys.sections()}
    own = section_of(settings)
    table = own.table if own else top("", "")
    return Reading(
        format="accelerate",
        path=source.path,
        settings=settings,
        decisions=script.decisions(source.text) | decided_in(table, settings),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _wrong(path: str, settings: Mapping[str, Value]) -> Iterator[Finding]:
    """Unknown keys, which Accelerate misses inside a section, and values of the wrong kind."""
    whole = keys.schema()
    found: dict[str, object] = {}
    for full, value in settings.items():
        section, _, name = full.partition(".")
        if section in keys.sections() and not name:
            found[section] = {} if isinstance(value.value, dict) else value.value
        elif section in keys.sections():
            inner = found[section]
            entry = keys.sections()[section]["properties"].get(name, {})
            if isinstance(inner, dict):
                inner[name] = _as_kind(value.value, entry)
        else:
            given = _as_counted(full, value.value)
            found[full] = _as_kind(given, whole["properties"].get(full, {}))
        if full in keys.WHOLE and isinstance(value.value, float):
            message = f"given {value.value!r}; a whole number is allowed"
            yield finding_at("accelerate.bad_value", path, value, message)
    for wrong in wrongs(whole, found):
        place = settings[".".join(wrong.path)]
        section, name = ".".join(wrong.path[:-1]), wrong.path[-1]
        if not wrong.allowed:
            hint = _hint(section, name, wrong.schema["properties"])
            message = f"unknown key of {section or 'the file'}; {hint}"
            yield finding_at("accelerate.unknown_key", path, place, message)
        else:
            given = repr(place.value)
            given = given if len(given) < 60 else f"{given[:57]}..."
            message = f"given {given}; {wrong.allowed}"
            yield finding_at("accelerate.bad_value", path, place, message)


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except (ValueError, OverflowError):
        return None


_KINDS: Mapping[str, Callable[[object], object]] = {
    "boolean": as_flag,
    "integer": as_whole,
    "number": _number,
    "string": str,
}


def _as_counted(key: str, value: object) -> object:
    """1.0 as 1 where Accelerate takes it (utils/launch.py); torchrun, which gets others, does not.

    The rank of a node is read with ``int``, and one node is told by comparing alone.
    """
    if isinstance(value, float) and value.is_integer():
        is_taken = key == keys.RANK or (key == keys.MACHINES and value <= 1)
        return int(value) if is_taken else value
    return value


def _as_kind(value: object, entry: Schema) -> object:
    """A word of the file as Accelerate reads it: true for yes, 8 for "8"."""
    if value is None or isinstance(value, dict | list) or "type" not in entry:
        return value
    found = _KINDS[entry["type"][0]](str(value)) if entry["type"][0] in _KINDS else value
    return str(value) if found is None else found


def _hint(section: str, name: str, known: Mapping[str, object]) -> str:
    """Where an unknown key may belong."""
    deepspeed = of_deepspeed()["properties"]
    is_its = name in deepspeed or name in deepspeed["zero_optimization"]["properties"]
    if section == "deepspeed_config" and is_its:
        return "DeepSpeed's own keys go into the file that deepspeed_config_file names"
    return did_you_mean(name, list(known)) or f"{len(known)} keys are known"
