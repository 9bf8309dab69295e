"""The ways to put layers of a stage under policies: all, or in steps where they are too many."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from planner.units import Array, Index

MOST_CELLS = 2**20
"""Looked at together: 200 MiB."""
MOST_OF_TABLE = 2**26
"""Looked at for one table, some ten seconds. Beyond it (hundreds of layers under several policies)
layers are put under policies in steps, and nothing is proved."""
MOST_KEPT = 2**14
"""Choices of one table that are kept for the next."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of layers that are looked at together."""

    first: int
    last: int
    step: int
    """Policies take so many layers at a time."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """How many layers each stage may hold, and which policies are free for them."""

    numbers: Array
    fewest: Array
    most: Array
    free: tuple[bool, ...]
    """The policies whose counts are all looked at."""

    @cached_property
    def parts(self) -> list[Part]:
        """Runs of numbers with few enough choices at once."""
        num_stages = max(int((self.most >= self.fewest).sum()), 1)
        most = min(MOST_CELLS, MOST_OF_TABLE // len(self.numbers)) // num_stages
        found: list[Part] = []
        size = 0
        for number in self.numbers.astype(int).tolist():
            step = _step(number, sum(self.free), max(most, 1))
            size += _num_choices(number, sum(self.free), step) * num_stages
            if found and size <= MOST_CELLS and step == found[-1].step:
                found[-1] = Part(first=found[-1].first, last=number, step=step)
            else:
                size = _num_choices(number, sum(self.free), step) * num_stages
                found.append(Part(first=number, last=number, step=step))
        return found

    def grid(self, part: Part) -> tuple[Index, Array, Array]:
        """Stage, layers and counts of every choice within the range of its stage."""
        kinds = sum(self.free)
        size = (part.last - part.first + 1) * _num_choices(part.last, kinds, part.step)
        choices = (_kept_choices if size <= MOST_KEPT else _made_choices)(part, self.free)
        inside = (choices[0] >= self.fewest[:, None]) & (choices[0] <= self.most[:, None])
        stage, column = np.nonzero(inside)
        return stage, choices[0, column], choices[1:, column]


def _num_choices(number: int, kinds: int, step: int) -> int:
    """Ways to put at most ``number`` layers under so many policies: ``C(n + k, k)``."""
    steps = number if step == 1 else number // step + 1
    return math.comb(steps + kinds, kinds)


def _step(number: int, kinds: int, most: int) -> int:
    """The least step with at most so many choices, or all layers at once."""
    return next(
        (step for step in range(1, number) if _num_choices(number, kinds, step) <= most),
        max(number, 1),
    )


def _made_choices(part: Part, free: tuple[bool, ...]) -> Array:
    """Numbers of layers and all counts of the policies that are free, one column per choice."""
    columns = []
    for number in range(part.first, part.last + 1):
        some = np.unique([*range(0, number + 1, part.step), number])
        axes = [some if is_free else some[:1] for is_free in free]
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        grid = grid[:, grid.sum(axis=0) <= number]
        columns.append(np.concatenate([np.full((1, grid.shape[1]), number), grid]))
    return np.concatenate(columns, axis=1).astype(float)


_kept_choices = lru_cache(maxsize=256)(_made_choices)
