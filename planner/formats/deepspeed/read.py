"""Reads a DeepSpeed JSON file: every key with its line, what it decides, what is wrong."""

from collections.abc import Iterator, Mapping
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
    # DeepSpeed reads ``bfloat16`` where there is no ``bf16``.
    old = "bf16" if ("bf16",) in places else "bfloat16"
    settings = {
        ".".join(("bf16", *path[1:]) if path[0] == old else path): place
        for path, place in places.items()
    }
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


def _wrong(where: str, value: object, places: Mapping[Path, Located]) -> Iterator[Finding]:
    """Unknown keys, and values of the wrong kind."""
    foreign: list[Path] = []
    for wrong in wrongs(schema(), value):
        path, place = wrong.path, places[wrong.path]
        # A key at the top that says it is a comment: DeepSpeed ignores what it does not know there.
        is_comment = len(path) == 1 and path[0].lstrip("_/# ").lower()[:7] in ("", "comment")
        if wrong.allowed and (wrong.value != AUTO or "enum" in wrong.schema):
            text = repr(wrong.value)
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            message = f"a value that DeepSpeed cannot use; given {shown}, {wrong.allowed}"
            yield finding_at("deepspeed.bad_value", where, place, message)
        elif wrong.allowed or is_comment or ".".join(path) in listed_in("removed"):
            # Removed keys have a rule of their own.
            continue
        elif _is_meant(path):
            message = _why_unknown(path, wrong.schema["properties"])
            yield finding_at("deepspeed.unknown_key", where, place, message)
        else:
            foreign.append(path)
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


def _is_meant(path: Path) -> bool:
    """Whether an unknown key was meant for DeepSpeed, and is no script's own."""
    if len(path) > 1 or path[0] in _REPLACED:
        return True
    # How alike a key at the top is to the one that was meant.
    is_near = alike(path[0].lower(), schema()["properties"], 0.83)
    # Sections whose keys, one level too high, are no script's own.
    sections = ("zero_optimization", "fp16", "bf16", "activation_checkpointing")
    return bool(is_near) or _other_place(path) in sections


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
    known = _walk((), schema()["properties"])
    places = [
        above for *above, name in known if name == path[-1] and above[:1] not in ([], [SCRIPT])
    ]
    return ".".join(places[0]) if len(places) == 1 else ""


def _walk(above: Path, known: Mapping[str, Any]) -> Iterator[Path]:
    for name, entry in known.items():
        yield (*above, name)
        yield from _walk((*above, name), entry.get("properties", {}))
