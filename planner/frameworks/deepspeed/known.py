"""Keys that DeepSpeed knows, from keys.json, and those of our own block for the training script."""

import json
from functools import cache
from importlib import resources
from math import isfinite
from typing import Any

from planner.documents.json_text import Plain

AUTO = "auto"
"""What Trainer and Accelerate fill in."""
SCRIPT = "training_script"
"""Top-level block that DeepSpeed ignores: what the user's code must do itself."""
_COUNTS = {"kind": "array", "of": "integer"}
_SCRIPT_KEYS: dict[str, Any] = {
    "sequence_length": {"kind": "integer", "least": 1},
    "tensor_parallel_size": {"kind": "integer", "least": 1},
    "layers_per_stage": _COUNTS,
    "selective_layers_per_stage": _COUNTS,
    "recompute_layers_per_stage": _COUNTS,
    "recompute_modules": {"kind": "array", "of": "text"},
}
_NAMES = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "text": "a text in quotes",
    "array": "a list in brackets",
    "object": "an object in braces",
}


@cache
def _data() -> dict[str, Any]:
    path = resources.files(__package__).joinpath("keys.json")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


@cache
def known_keys() -> dict[str, Any]:
    """The tree of known keys: kind, limits, and the keys of objects."""
    return {**_data()["keys"], SCRIPT: {"kind": "object", "keys": _SCRIPT_KEYS}}


def zero_keys() -> tuple[str, ...]:
    """Keys of ``zero_optimization``."""
    return tuple(known_keys()["zero_optimization"]["keys"])


def removed_keys() -> tuple[str, ...]:
    """Keys that DeepSpeed refuses because what they switched on is gone."""
    return tuple(_data()["removed"])


def optimizer_types() -> tuple[str, ...]:
    """Types that DeepSpeed makes itself, in any case, and PyTorch's, as they are spelled."""
    return (*_data()["optimizers"], *_data()["torch_optimizers"])


def is_optimizer_type(name: str) -> bool:
    """Whether the engine can make an optimizer of this type."""
    return name.lower() in _data()["optimizers"] or name in _data()["torch_optimizers"]


def scheduler_types() -> tuple[str, ...]:
    """Types of learning-rate schedules: DeepSpeed's and PyTorch's."""
    return tuple(_data()["schedulers"])


def whole(value: Plain) -> int | None:
    """A whole number, written as one or as ``5e8``; None for anything else."""
    if isinstance(value, float) and isfinite(value) and value == int(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Plain) -> float | None:
    """A number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _has_kind(entry: dict[str, Any], value: Plain) -> bool:
    tests = {
        "boolean": lambda: isinstance(value, bool),
        "integer": lambda: whole(value) is not None,
        "number": lambda: number(value) is not None,
        "text": lambda: isinstance(value, str),
        "array": lambda: isinstance(value, list),
        "object": lambda: isinstance(value, dict),
    }
    return tests[entry["kind"]]() if "kind" in entry else True


def wrong(entry: dict[str, Any], value: Plain) -> str | None:
    """What is allowed, where the value is not; None where it is."""
    if value is None and ("kind" not in entry or entry.get("optional")):
        return None
    if not _has_kind(entry, value):
        return f"{_NAMES[entry['kind']]} is allowed"
    if (
        "allowed" in entry
        and (whole(value) if entry["kind"] == "integer" else value) not in (entry["allowed"])
    ):
        return f"allowed are {', '.join(map(str, entry['allowed']))}"
    if "of" in entry and not all(_has_kind({"kind": entry["of"]}, item) for item in value):
        return f"{_NAMES[entry['of']]} is allowed in every place"
    size = number(value)
    if size is None:
        return None
    if "least" in entry and size < entry["least"]:
        return f"at least {entry['least']} is allowed"
    if "most" in entry and size > entry["most"]:
        return f"at most {entry['most']} is allowed"
    return f"more than {entry['above']} is allowed" if size <= entry.get("above", -1e308) else None
