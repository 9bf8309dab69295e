"""How long the documents of a batch are, and how a batch puts them together."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from planner.units import Array

Batching = Literal["packed", "padded", "grouped"]
"""``packed``: sequences filled with documents, each attending to itself; ``padded``: one document
a sequence, all as long as the micro-batch's longest; ``grouped``: one document a sequence beside
others of its length (group_by_length), or batches without padding (padding_free)."""
KINDS: tuple[Batching, ...] = get_args(Batching)
NUM_POINTS = 2048
"""Of the grid that integrals over lengths are taken on; the error is below 1e-4."""
STEEPEST = 500.0
"""Decay of the steepest density: a mean of 1/500 of the longest."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Lengths between 0 and ``longest`` tokens with a known mean.

    Nothing else being known, their density is the one of largest entropy: exponential, cut off at
    the longest (uniform where the mean is half of it, rising beyond).
    """

    batching: Batching
    mean: float
    longest: int

    @property
    def text(self) -> str:
        """As an option says it."""
        return f"{self.batching}:{self.mean:.15g}"

    @property
    def words(self) -> str:
        """For a table: what the loader of the data has to do."""
        return f"{self.batching}, {self.mean:g} tokens on average"

    @property
    def note(self) -> str:
        """What is assumed of them, in words."""
        per_time = {
            "packed": "every sequence is full, and attention stays inside documents",
            "padded": "time is that of micro-batches of mean length, memory that of the longest",
            "grouped": "time is that of documents of mean length, memory that of the longest",
        }
        return (
            f"documents of {self.mean:g} tokens on average and {self.longest} at most, their "
            f"lengths as exponential as that allows, {self.batching}: {per_time[self.batching]}"
        )

    @cached_property
    def _decay(self) -> float:
        """Of the density over length / longest, at which its mean is ``mean / longest``."""
        low, high = -STEEPEST, STEEPEST
        for _ in range(80):
            middle = (low + high) / 2.0
            low, high = (
                (middle, high) if _mean(middle) > self.mean / self.longest else (low, middle)
            )
        return low

    @cached_property
    def _below(self) -> tuple[Array, Array]:
        """Shares of the longest, and the part of documents that are no longer."""
        points = np.linspace(0.0, 1.0, NUM_POINTS)
        decay = self._decay
        below = points if abs(decay) < 1e-6 else np.expm1(-decay * points) / math.expm1(-decay)
        return points, below

    @cached_property
    def attended_tokens(self) -> float:
        """``Σ l² / Σ l``: length of the document that a token lies in, on average."""
        points, below = self._below
        square = _integral(2.0 * points * (1.0 - below)) * self.longest**2
        return min(square / self.mean, float(self.longest))

    def padded_tokens(self, count: Array) -> Array:
        """Expected length of the longest of ``count`` documents: ``L ∫ (1 - F(u)^count) du``."""
        _, below = self._below
        sizes, index = np.unique(np.asarray(count, dtype=float), return_inverse=True)
        longest = [_integral(1.0 - below**size) for size in sizes]
        found: Array = self.longest * np.asarray(longest)[index]
        return found


def _integral(values: Array) -> float:
    """Over 0 to 1, by trapezoids, of values on an even grid."""
    inner = values.sum() - 0.5 * (values[0] + values[-1])
    return float(inner / (len(values) - 1))


def _mean(decay: float) -> float:
    """Of the exponential density of this decay on 0 to 1: ``1/λ - 1/(e^λ - 1)``."""
    return 0.5 if abs(decay) < 1e-6 else 1.0 / decay - 1.0 / math.expm1(decay)


def read_documents(text: str, longest: int) -> Documents:
    """Documents from ``packed:512``; ValueError says what is wrong."""
    word, colon, number = text.rpartition(":")
    batching = next((kind for kind in KINDS if kind == (word if colon else "packed")), None)
    try:
        mean = float(number)
    except ValueError:
        mean = math.nan
    if batching is None or not mean > 0.0:
        allowed = ", ".join(f"{kind}:MEAN" for kind in KINDS)
        raise ValueError(f"must be one of {allowed}, MEAN in tokens; given {text!r}")
    if not longest / STEEPEST <= mean <= longest:
        raise ValueError(
            f"a mean from {longest / STEEPEST:g} tokens to the sequence length, {longest}, "
            f"which is the longest; given {mean:g}"
        )
    return Documents(batching=batching, mean=mean, longest=longest)
