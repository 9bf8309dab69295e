"""Reads a DeepSpeed JSON file: every key with its line, what it decides, what is wrong."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from planner.documents.schema import Path, entry_of, wrongs
from planner.documents.tree import keys_at_top, parsed_object
from planner.formats.decision import decided_in
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.deepspeed.keys import AUTO, SCRIPT, is_for_trainer, listed_in, schema
from planner.formats.format import Finding, Located, ParsedConfig, SourceText, listed
from planner.formats.settings import finding_at, repeated_keys
from planner.spelling import alike, did_you_mean

# Keys that no other file has at its top.
_TELLING = {
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_optimization",
    "zero_allow_untested_optimizer",
}
_COMPILE = "engine.compile() in the script"
# Keys of older releases, and keys that other programs have, with what stands for them.
_REPLACED = {
    "aio.thread_count": "intra_op_parallelism",
    "compile.backend": _COMPILE,
    "compile.disable": _COMPILE,
    "compile.enabled": _COMPILE,
    "compile.kwargs": _COMPILE,
    "fp32_allreduce": "communication_data_type fp32",
    "gradient_accumulation_dtype": "data_types.grad_accum_dtype",
    "max_grad_norm": "gradient_clipping",
    "pipeline.pipeline_parallel_size": "stages",
    "zero3_save_16bit_model": "zero_optimization.gather_16bit_weights_on_model_save",
}
# Sections whose keys, one level too high, are no script's own.
_NUMBERS = ("zero_optimization", "fp16", "bf16", "activation_checkpointing")
# How alike a key at the top is to the one that was meant.
_MISSPELT = 0.83


def recognise(source: SourceText) -> bool:
    """Whether the text is a JSON object with a key that only DeepSpeed's files have."""
    is_json = source.text.lstrip()[:1] in ("{", "/", "#")
    return is_json and bool(_TELLING & keys_at_top(source.path, source.text))


def read(source: SourceText, *, fills_auto: bool = False) -> ParsedConfig:
    """Read a file; ``fills_auto``: Trainer or Accelerate will fill in what is "auto".

    Raises InputError where the text is no JSON object.
    """
    tree = parsed_object(source.path, source.text)
    places = {
        path: Located(value=each.value, key=".".join(path), line=each.line)
        for path, each in tree.members.items()
    }
    settings = {".".join(_new_name(places, path)): place for path, place in places.items()}
    findings = [
        *repeated_keys(
            "deepspeed.duplicate_key",
            source.path,
            tree.duplicates,
            "stands twice, first on line {first}; DeepSpeed refuses that",
        ),
        *_wrong(source.path, tree.value, places),
    ]
    findings += [] if fills_auto else _left_open(source.path, places)
    findings.sort(key=lambda finding: finding.line)
    return ParsedConfig(
        format="deepspeed",
        path=source.path,
        settings=settings,
        decisions=decided_in(TABLE, settings),
        findings=tuple(findings),
    )


def _new_name(places: Mapping[Path, Located], path: Path) -> Path:
    """DeepSpeed reads ``bfloat16`` where there is no ``bf16``."""
    is_old = path[0] == "bfloat16" and ("bf16",) not in places
    return ("bf16", *path[1:]) if is_old else path


def _wrong(where: str, value: object, places: Mapping[Path, Located]) -> Iterator[Finding]:
    """Unknown keys, and values of the wrong kind."""
    foreign: list[Path] = []
    for wrong in wrongs(schema(), value):
        path, place = wrong.path, places[wrong.path]
        if not wrong.allowed:
            if not _is_ignored(path):
                message = _why_unknown(path, wrong.schema["properties"])
                yield finding_at("deepspeed.unknown_key", where, place, message)
            elif len(path) == 1 and not _is_comment(path) and path[0] not in listed_in("removed"):
                foreign.append(path)
        elif wrong.value != AUTO or "enum" in wrong.schema:
            text = repr(wrong.value)
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            message = f"a value that DeepSpeed cannot use; given {shown}, {wrong.allowed}"
            yield finding_at("deepspeed.bad_value", where, place, message)
    if foreign:
        them = "it" if len(foreign) == 1 else "them"
        names = listed([path[0] for path in foreign])
        message = f"{names}: DeepSpeed ignores {them}; sound where the script reads {them}"
        yield finding_at("deepspeed.unknown_key", where, places[foreign[0]], message, "warning")


def _left_open(where: str, places: Mapping[Path, Located]) -> Iterator[Finding]:
    """One finding for all values that Trainer and Accelerate fill in: known, and no choice."""
    autos = [path for path, each in places.items() if is_for_trainer(".".join(path), each.value)]
    entries = {path: entry_of(schema(), path) for path in autos}
    chosen = {path for path, entry in entries.items() if entry is None or "enum" in entry}
    found = [places[path] for path in autos if path not in chosen]
    if found:
        place = min(found, key=lambda place: place.line)
        others = "" if len(found) == 1 else f", here and at {len(found) - 1} other key(s),"
        message = f'"auto"{others} is filled in by Trainer or Accelerate only'
        yield finding_at("deepspeed.auto_value", where, place, message, "warning")


def _is_comment(path: Path) -> bool:
    """A key at the top that says it is none; DeepSpeed ignores what it does not know there."""
    return len(path) == 1 and path[0].lstrip("_/# ").lower()[:7] in ("", "comment")


def _is_ignored(path: Path) -> bool:
    """A removed key, which a rule is about, a comment, or what nobody meant for DeepSpeed."""
    if ".".join(path) in listed_in("removed") or _is_comment(path):
        return True
    if len(path) > 1 or path[0] in _REPLACED:
        return False
    is_near = alike(path[0].lower(), schema()["properties"], _MISSPELT)
    return not is_near and _other_place(path) not in _NUMBERS


def _why_unknown(path: Path, known: Mapping[str, Any]) -> str:
    """What is wrong with a key, and what may have been meant."""
    where = f"in {'.'.join(path[:-1])}" if path[:-1] else "at the top"
    replaced, place = _REPLACED.get(".".join(path)), _other_place(path)
    if replaced:
        hint = f"{replaced} in its place"
    else:
        hint = f"it is a key of {place}" if place else did_you_mean(path[-1], known)
    return f"DeepSpeed knows no key {path[-1]!r} {where}" + (f"; {hint}" if hint else "")


def _other_place(path: Path) -> str:
    """The one section that has a key of this name; empty where none has, or several have."""
    found = _places().get(path[-1], ())
    return found[0] if len(found) == 1 else ""


@cache
def _places() -> Mapping[str, tuple[str, ...]]:
    """Sections by the names of their keys."""
    found: dict[str, tuple[str, ...]] = {}
    for *above, name in _walk((), schema()["properties"]):
        if above and above[0] != SCRIPT:
            found[name] = (*found.get(name, ()), ".".join(above))
    return found


def _walk(above: Path, known: Mapping[str, Any]) -> Iterator[Path]:
    for name, entry in known.items():
        yield (*above, name)
        yield from _walk((*above, name), entry.get("properties", {}))
