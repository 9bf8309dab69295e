"""What a sweep asks: lists of values, and the cells of their product."""

import math
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

Value = str | int | float | bool | None
"""Of an option; None where it is left out."""
Row = Mapping[str, Any]
"""What is known of a cell, plain data."""
PLACES = ("model", "cluster")
"""Axes that are no options but the two words of a question."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An option and the values it takes, in the order of the file."""

    name: str
    """As on the command line, without its hyphens in front: ``seq-len``."""
    values: tuple[Value, ...]
    words: tuple[tuple[str, ...], ...]
    """What a command line says for each value."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell as it is sent to whoever answers it."""

    key: str
    """Of all that the answer depends on; the same key, the same answer."""
    words: tuple[str, ...]
    """The question as a command line has it, model and cluster last."""


Answer = Callable[[Task], Row]
"""Answers one cell, and never raises; imported by its name in other processes."""
Answers = Generator[tuple[Task, Row], None, None]
"""As they come, with whose they are."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One question."""

    values: tuple[Value, ...]
    """By axis, as in the file."""
    places: tuple[str, ...]
    """Model and cluster by names or paths that hold everywhere."""
    options: tuple[str, ...]

    @property
    def question(self) -> tuple[str, ...]:
        """All words, so that none is taken for an option that is none."""
        return (*self.options, "--", *self.places)

    @property
    def command(self) -> str:
        """The question as a person types it."""
        named = map(str, self.values[: len(PLACES)])
        return shlex.join(["planner", "plan", *named, *self.options])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Every combination of the values of all axes."""

    axes: tuple[Axis, ...]
    """Model and cluster first."""

    def __len__(self) -> int:
        """Number of cells."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> str:
        """In words: ``2 model × 3 cluster × 4 seq-len``."""
        varying = [axis for axis in self.axes if len(axis.values) > 1] or self.axes[:2]
        return " × ".join(f"{len(axis.values)} {axis.name}" for axis in varying)

    def cells(self) -> Iterator[Cell]:
        """All of them, the last axis fastest."""
        for places in product(*(range(len(axis.values)) for axis in self.axes)):
            yield self.cell(places)

    def cell(self, places: tuple[int, ...]) -> Cell:
        """The cell of so many places along the axes."""
        chosen = list(zip(self.axes, places, strict=True))
        words = [axis.words[place] for axis, place in chosen]
        named, options = words[: len(PLACES)], words[len(PLACES) :]
        return Cell(
            values=tuple(axis.values[place] for axis, place in chosen),
            places=tuple(word for each in named for word in each),
            options=tuple(word for each in options for word in each),
        )
