"""What a legality rule is: a mask over columns of strategies, and what is said with it.

``@rule`` makes one of a function that gets columns and returns the mask; its name is the rule's,
its docstring what users read. Rules stand by theme in ``rules_*.py``, each with its words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from planner.cost.context import Context
from planner.spec.strategy import GPU_DEGREES, OFFLOAD_CODES, SCHEDULES, SHAPE, STAGE_DEGREES
from planner.units import Array, Mask

Columns = Mapping[str, Array]
Row = Mapping[str, int]
"""The dimensions of one layout, names as their codes."""
Check = Callable[[Context, Columns], Mask]
Wording = Callable[[Context, Row], str]
"""What one layout that breaks a rule does, in words with its numbers."""
Allowance = Callable[[Context], str]
"""What is allowed here, in words with the numbers of model, job, cluster and software."""
Offerer = Literal["framework", "optimizer"]
GPUS = tuple(name for name in SHAPE if name in GPU_DEGREES)
"""Their product is the number of GPUs; in the order they are decided."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named rule; it can be asked once the columns it ``needs`` are decided."""

    name: str
    needs: tuple[str, ...]
    message: str
    is_legal: Check
    says: Wording | None = None
    allowed: Allowance | None = None
    only_prunes: bool = False
    """Legal, but never worth searching."""
    offered_by: Offerer | None = None
    """Whose choice it is, where the rule says what is offered at all."""

    def words(self, context: Context, row: Row) -> str:
        """What is wrong with one layout that breaks the rule."""
        if self.says is not None:
            return self.says(context, row)
        given = ", ".join(f"{name}={row[name]}" for name in self.needs)
        return f"{self.message.splitlines()[0].rstrip('.')}; given {given}"


def rule(
    *needs: str,
    says: Wording | None = None,
    allowed: Allowance | None = None,
    only_prunes: bool = False,
    offered_by: Offerer | None = None,
) -> Callable[[Check], Rule]:
    """Make a rule of a function; the last of ``needs`` is where a file that breaks it is wrong."""

    def made(check: Check) -> Rule:
        return Rule(
            name=check.__name__,
            needs=needs,
            message=(check.__doc__ or "").strip(),
            is_legal=check,
            says=says,
            allowed=allowed,
            only_prunes=only_prunes,
            offered_by=offered_by,
        )

    return made


def is_schedule(columns: Columns, *names: str) -> Mask:
    """Rows whose schedule is one of these."""
    table = np.array([schedule in names for schedule in SCHEDULES])
    mask: Mask = table[columns["schedule"].astype(int)]
    return mask


def offloads(columns: Columns, word: str) -> Mask:
    """Rows that offload this, or to there."""
    table = np.array([word in code for code in OFFLOAD_CODES])
    mask: Mask = table[columns["offload"].astype(int)]
    return mask


def software(context: Context) -> str:
    """The framework, and its profile where it is not the usual one."""
    traits = context.traits
    return traits.name if traits.profile == "current" else f"{traits.name} ({traits.profile})"


def lacks(name: str, what: str) -> Wording:
    """The words where a framework has no such axis."""
    return lambda context, row: f"{name} {row[name]}: {software(context)} has no {what}"


def schedule(row: Row) -> str:
    """Name of the pipeline schedule."""
    return SCHEDULES[row["schedule"]]


def product(row: Row, names: Sequence[str], unit: str) -> tuple[str, int]:
    """The degrees above one as a product with what they make, and how many that is."""
    degrees = {name: row[name] for name in names if row[name] > 1}
    number = prod(degrees.values())
    words = " x ".join(f"{name} {value}" for name, value in degrees.items()) or f"one {unit}"
    return f"{words} = {number:,} {unit}s" if len(degrees) > 1 else words, number


def gpus(row: Row) -> tuple[str, int]:
    """The degrees above one as a product, and the GPUs they make."""
    return product(row, GPU_DEGREES, "GPU")


def off_the_mesh(row: Row) -> str:
    """Ranks of a stage that the expert mesh does not take."""
    ranks, _number = product(row, STAGE_DEGREES, "rank")
    mesh, _number = product(row, ("etp", "ep"), "expert rank")
    return f"{ranks} of a stage: no multiple of {mesh}"


def listed(row: Row, *names: str) -> str:
    """Names with their values: ``dp 2 and cp 1``."""
    return " and ".join(f"{name} {row[name]}" for name in names)


def micro_batches(context: Context, row: Row) -> str:
    """How many there are, and how large."""
    each = row["dp"] * row["micro_batch"]
    num = context.job.global_batch // each
    return f"a batch of {context.job.global_batch} is {num} micro-batches of {each} sequences"


def layers(context: Context) -> str:
    """The model's, which stages and chunks hold."""
    return f"{context.model.name} has {context.model.num_blocks} layers"


def batch(context: Context) -> str:
    """The job's, in sequences."""
    return f"the global batch is {context.job.global_batch}"
