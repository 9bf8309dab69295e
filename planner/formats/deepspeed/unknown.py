"""Keys that DeepSpeed does not know: what was meant, and which are the script's own."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from planner.documents.json_text import Path
from planner.formats.deepspeed.known import SCRIPT, known_keys
from planner.formats.finding import listed
from planner.spelling import alike, did_you_mean

_COMPILE = "engine.compile() in the script"
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
"""Keys of older releases, and keys that other programs have, with what stands for them."""
_NUMBERS = ("zero_optimization", "fp16", "bf16", "activation_checkpointing")
"""Sections whose keys, one level too high, are no script's own."""
_MISSPELT = 0.83
"""How alike a key at the top is to the one that was meant."""


def is_comment(path: Path) -> bool:
    """A key at the top that says it is none; DeepSpeed ignores what it does not know there."""
    return len(path) == 1 and path[0].lstrip("_/# ").lower()[:7] in ("", "comment")


def is_foreign(path: Path) -> bool:
    """A key at the top that nobody meant for DeepSpeed: other programs read the file as well."""
    if len(path) > 1 or path[0] in _REPLACED:
        return False
    is_near = alike(path[0].lower(), known_keys(), _MISSPELT)
    return not is_near and _other_place(path) not in _NUMBERS


def why_unknown(path: Path, known: Mapping[str, Any]) -> str:
    """What is wrong with a key, and what may have been meant."""
    where = f"in {'.'.join(path[:-1])}" if path[:-1] else "at the top"
    replaced, place = _REPLACED.get(".".join(path)), _other_place(path)
    if replaced:
        hint = f"{replaced} in its place"
    else:
        hint = f"it is a key of {place}" if place else did_you_mean(path[-1], known)
    return f"DeepSpeed knows no key {path[-1]!r} {where}" + (f"; {hint}" if hint else "")


def why_foreign(names: list[str]) -> str:
    """One message for all of a script's own keys, which may be many."""
    them = "it" if len(names) == 1 else "them"
    return f"{listed(names)}: DeepSpeed ignores {them}; sound where the script reads {them}"


def _other_place(path: Path) -> str:
    """The one section that has a key of this name; empty where none has, or several have."""
    found = _places().get(path[-1], ())
    return found[0] if len(found) == 1 else ""


@cache
def _places() -> Mapping[str, tuple[str, ...]]:
    """Sections by the names of their keys."""
    found: dict[str, tuple[str, ...]] = {}
    for path in _walk((), known_keys()):
        if len(path) > 1 and path[0] != SCRIPT:
            found[path[-1]] = (*found.get(path[-1], ()), ".".join(path[:-1]))
    return found


def _walk(above: Path, known: Mapping[str, Any]) -> Iterator[Path]:
    for name, entry in known.items():
        yield (*above, name)
        yield from _walk((*above, name), entry.get("properties", {}))
