"""Reads an Accelerate configuration file: every key with its line, and what they decide."""

import re
from collections.abc import Iterator, Mapping

from planner.documents.yaml_text import YamlText, parsed
from planner.errors import InputError
from planner.formats.accelerate import script
from planner.formats.accelerate.fsdp import FSDP1, is_first
from planner.formats.accelerate.keys import known_keys, wrong_kind
from planner.formats.accelerate.section import Section, num_started
from planner.formats.accelerate.sections import BY_TYPE, OF_FRAMEWORK
from planner.formats.deepspeed.keys import schema as of_deepspeed
from planner.formats.finding import Finding
from planner.formats.format import Reading, SourceText, Value
from planner.formats.settings import Settings, decided, word
from planner.spelling import did_you_mean

NAME = "accelerate"
PRECISIONS = ("bf16", "fp16", "fp8")
SAGEMAKER = "AMAZON_SAGEMAKER"
_TELLING = re.compile(r"""^[{\s"']*(distributed_type|compute_environment)["']?\s*:""", re.MULTILINE)
_REPLICATED = re.compile(r"NO|MULTI_\w+")


def recognise(source: SourceText) -> bool:
    """A mapping with one of the two keys Accelerate always writes."""
    if not _TELLING.search(source.text):
        return False
    try:
        value = parsed(source.path, source.text).value
    except InputError:
        return False
    return isinstance(value, dict) and bool({"distributed_type", "compute_environment"} & {*value})


def read(source: SourceText) -> Reading:
    """Read a file; InputError where it is no YAML mapping, or SageMaker's."""
    text = parsed(source.path, source.text)
    if not isinstance(text.value, dict):
        message = f"is no mapping of keys; given {type(text.value).__name__}"
        raise InputError.single(source.path, "text", message)
    if text.value.get("compute_environment") == SAGEMAKER:
        message = f"{SAGEMAKER} starts machines of its own; files for LOCAL_MACHINE are read"
        raise InputError.single(source.path, "compute_environment", message)
    settings: dict[str, Value] = {}
    findings = list(_duplicates(source.path, text))
    for path, entry in text.entries.items():
        key = ".".join(map(str, path))
        if len(path) > 2 or (len(path) == 2 and path[0] not in known_keys().sections):
            continue
        full = _full(str(path[0]), str(path[1])) if len(path) == 2 else key
        if full in settings and len(path) == 2:
            message = f"given twice, also as {settings[full].key}; the last one counts"
            findings.append(_finding("duplicate_key", message, source.path, key, entry.line))
        settings[full] = Value(value=entry.value, key=key, line=entry.line)
    findings += _wrong(source.path, settings)
    settings = {k: v for k, v in settings.items() if k not in known_keys().sections}
    return Reading(
        format=NAME,
        path=source.path,
        settings=settings,
        decisions=script.decisions(source.text) | decisions(settings),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _full(section: str, key: str) -> str:
    return f"{section}.{known_keys().sections[section].full(key)}"


def _finding(rule: str, message: str, path: str, key: str, line: int) -> Finding:
    return Finding(
        rule=f"{NAME}.{rule}", severity="error", message=message, path=path, key=key, line=line
    )


def _duplicates(path: str, text: YamlText) -> Iterator[Finding]:
    for each in text.duplicates:
        key = ".".join(map(str, each.path))
        yield _finding("duplicate_key", "given twice; the last one counts", path, key, each.line)


def _wrong(path: str, settings: Mapping[str, Value]) -> Iterator[Finding]:
    """Unknown keys, which Accelerate misses inside a section, and values of the wrong kind."""
    known = known_keys()
    for full, value in settings.items():
        section, _, name = full.partition(".")
        if section not in known.sections or not name:
            section, name = "", full
        kinds = known.sections[section].keys if section else known.top
        if name not in kinds:
            hint = _hint(section, name)
            message = f"unknown key of {section or 'the file'}; {hint}"
            yield _finding("unknown_key", message, path, value.key, value.line)
        elif allowed := wrong_kind(kinds[name], value.value):
            given = repr(value.value)
            given = given if len(given) < 60 else f"{given[:57]}..."
            message = f"given {given}; allowed is {allowed}"
            yield _finding("bad_value", message, path, value.key, value.line)


def _hint(section: str, name: str) -> str:
    """Where an unknown key may belong."""
    deepspeed = of_deepspeed()["properties"]
    if section == "deepspeed_config" and (
        name in deepspeed or name in deepspeed["zero_optimization"]["properties"]
    ):
        return "DeepSpeed's own keys go into the file that deepspeed_config_file names"
    known = known_keys()
    kinds = known.sections[section].keys if section else known.top
    return did_you_mean(name, list(kinds)) or f"{len(kinds)} keys are known"


def section_of(settings: Settings) -> Section | None:
    """The part of the file that holds, by its ``distributed_type``."""
    kind = word(settings, "distributed_type", "NO").upper()
    kind = "NO" if kind == "FALSE" else kind
    if kind == FSDP1.distributed_type and is_first(settings):
        return FSDP1
    return (
        BY_TYPE["MULTI_GPU" if _REPLICATED.fullmatch(kind) else kind]
        if (_REPLICATED.fullmatch(kind) or kind in BY_TYPE)
        else None
    )


def part(settings: Settings) -> str | None:
    """Title of the section that shards; None where none does."""
    section = section_of(settings)
    return None if section is None or section is BY_TYPE["MULTI_GPU"] else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    section = section_of(settings)
    own = (name for name, kind in OF_FRAMEWORK.items() if section is BY_TYPE[kind])
    return next(own, None)


def decisions(settings: Settings) -> dict[str, Value]:
    """What the file decides, by the names of DECISIONS."""
    section = section_of(settings)
    found = section.decisions(settings) if section else {}
    processes = num_started(settings)
    if processes > 0:
        found["num_gpus"] = decided(settings, "num_processes", processes)
    precision = word(settings, "mixed_precision", "no").lower()
    if precision in PRECISIONS:
        found["precision"] = decided(settings, "mixed_precision", precision)
    return found
