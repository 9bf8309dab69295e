"""Keys that DeepSpeed knows, by schema.json, and those of our own block for the training script."""

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
_COUNTS = {"type": "array", "items": {"type": "integer"}}
_SCRIPT_KEYS: dict[str, Any] = {
    "sequence_length": {"type": "integer", "minimum": 1},
    "tensor_parallel_size": {"type": "integer", "minimum": 1},
    "layers_per_stage": _COUNTS,
    "selective_layers_per_stage": _COUNTS,
    "recompute_layers_per_stage": _COUNTS,
    "recompute_modules": {"type": "array", "items": {"type": "string"}},
}


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of a file, the block for the script included."""
    path = resources.files(__package__).joinpath("schema.json")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    block = {"type": "object", "properties": _SCRIPT_KEYS, "additionalProperties": False}
    return {**data, "properties": {**data["properties"], SCRIPT: block}}


def _listed(name: str) -> tuple[str, ...]:
    return tuple(schema()["$defs"][name]["enum"])


def known_keys() -> dict[str, Any]:
    """Schemas of the keys at the top."""
    found: dict[str, Any] = schema()["properties"]
    return found


def zero_keys() -> tuple[str, ...]:
    """Keys of ``zero_optimization``."""
    return tuple(known_keys()["zero_optimization"]["properties"])


def removed_keys() -> tuple[str, ...]:
    """Keys that DeepSpeed refuses because what they switched on is gone."""
    return _listed("removed")


def optimizer_types() -> tuple[str, ...]:
    """Types that DeepSpeed makes itself, in any case, and PyTorch's, as they are spelled."""
    return (*_listed("optimizers"), *_listed("torch_optimizers"))


def is_optimizer_type(name: str) -> bool:
    """Whether the engine can make an optimizer of this type."""
    return name.lower() in _listed("optimizers") or name in _listed("torch_optimizers")


def scheduler_types() -> tuple[str, ...]:
    """Types of learning-rate schedules: DeepSpeed's and PyTorch's."""
    return _listed("schedulers")


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
