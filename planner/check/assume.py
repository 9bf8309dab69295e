"""What ``--assume`` says of a job where its file leaves it to the training script or a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.formats.format import ALL, PerChunk, Reading, Value
from planner.spec.strategy import POLICY_COUNT_FIELDS

OPTION = "--assume"
_NUMBERS = ("micro_batch", "tp", "pp", "cp", "ep")
_STAGE, _STAGES = "zero_stage", ("0", "1", "2", "3")
"""Where a launcher may shard what a file leaves whole."""
_WORDS = ("optimizer", "precision")
_RECOMPUTE = {
    "none": ("recompute_layers_per_stage", PerChunk(0)),
    "selective": ("selective_layers_per_stage", ALL),
    "full": ("recompute_layers_per_stage", ALL),
}


def read_assumed(texts: Sequence[str]) -> dict[str, object]:
    """Decisions by name from ``NAME=VALUE``; raises InputError."""
    return dict(map(_decision, texts))


def _decision(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    if name == "recompute" and value in _RECOMPUTE:
        return _RECOMPUTE[value]
    if name in _WORDS and value:
        return name, value
    if name == _STAGE and value in _STAGES:
        return name, int(value)
    if name in _NUMBERS and value.isascii() and value.isdigit() and len(value) < 9:
        return name, int(value)
    allowed = ", ".join(f"recompute={each}" for each in _RECOMPUTE)
    more = ", ".join(f"{each}=..." for each in (*_WORDS, *_NUMBERS, _STAGE))
    message = f"nothing that can be assumed; given {text!r}, allowed are {allowed}, {more}"
    raise InputError.single("command line", OPTION, message)


def assuming(reading: Reading, assumed: Mapping[str, object]) -> Reading:
    """The reading with what is assumed of what it leaves open."""
    stated = {name for name, value in reading.decisions.items() if value.line or value.value}
    added = {
        name: Value(value=value, key=OPTION)
        for name, value in assumed.items()
        if name not in stated
    }
    left_open = {name: each for name, each in reading.left_open.items() if name not in added}
    said = {*added, *("recompute" for name in added if name in POLICY_COUNT_FIELDS)}
    assumes = tuple(name for name in reading.assumes if name not in said)
    return replace(
        reading,
        decisions={**reading.decisions, **added},
        left_open=left_open,
        assumes=assumes,
    )
