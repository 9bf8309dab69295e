"""What the words about one layout that breaks a rule have in common."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.cost.context import Context
from planner.spec.strategy import GPU_DEGREES, SCHEDULES

Row = Mapping[str, int]
"""The dimensions of one layout, names as their codes."""
Wording = Callable[[Context, Row], str]
"""What one layout that breaks a rule does."""


def software(context: Context) -> str:
    """The framework, and its profile where it is not the usual one."""
    traits = context.traits
    return traits.name if traits.profile == "current" else f"{traits.name} ({traits.profile})"


def schedule(row: Row) -> str:
    """Name of the pipeline schedule."""
    return SCHEDULES[row["schedule"]]


def product(row: Row, names: Sequence[str], unit: str) -> tuple[str, int]:
    """The degrees above one as a product with what they make, and how many that is."""
    degrees = {name: row[name] for name in names if row[name] > 1}
    number = int(np.prod(list(degrees.values()), dtype=np.int64))
    words = " x ".join(f"{name} {value}" for name, value in degrees.items()) or f"one {unit}"
    return f"{words} = {number:,} {unit}s" if len(degrees) > 1 else words, number


def gpus(row: Row) -> tuple[str, int]:
    """The degrees above one as a product, and the GPUs they make."""
    return product(row, GPU_DEGREES, "GPU")


def micro_batches(context: Context, row: Row) -> str:
    """How many there are, and how large."""
    each = row["dp"] * row["micro_batch"]
    num = context.job.global_batch // each
    return f"a batch of {context.job.global_batch} is {num} micro-batches of {each} sequences"
