"""What a log of a training run says: steps as printed, memory, sizes, the settings it dumps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.formats.format import Reading

Unit = Literal["ms", "s", "samples/s", "tokens/s/GPU", "it/s"]
"""In which a log prints how fast a step was."""
TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}
"""Seconds in the units that are times; the others are rates."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of progress."""

    number: int
    """Of the iteration."""
    value: float
    """In the unit of the log."""
    line: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peaks of the fullest rank that printed its memory; None where the log has none."""

    allocated_bytes: float | None = None
    reserved_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the lines of a log say of the job; None where they do not."""

    global_batch: int | None = None
    seq_len: int | None = None
    num_gpus: int | None = None


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The settings that a run printed at its start."""

    reading: Reading
    framework: str
    """Whose traits hold."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log that was understood."""

    path: str
    framework: str
    """Whose lines these are: a name of PATTERNS."""
    unit: Unit
    steps: tuple[Step, ...]
    """In the order of the run, each number once."""
    memory: Memory = field(default_factory=Memory)
    sizes: Sizes = field(default_factory=Sizes)
    tflops: float | None = None
    """Per GPU, the median of those printed."""
    dump: Dump | None = None
    notes: tuple[str, ...] = ()
