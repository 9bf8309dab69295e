"""Legality rules: masks over columns of strategies, and what is said of layouts that break them.

``@rule`` makes one of a function that gets columns and returns clauses; its name is the rule's, its
docstring what users read. Rules stand by theme in ``rules_*.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from string import Formatter
from typing import Any, Literal

import numpy as np

from planner.cost.context import Context
from planner.spec.strategy import (
    GPU_DEGREES,
    OFFLOAD_CODES,
    SCHEDULES,
    SHAPE,
    STAGE_DEGREES,
    STRATEGY_FIELDS,
)
from planner.units import Array, Mask, ceil_div

Columns = Mapping[str, Array]
# The dimensions of one layout, names as their codes.
Row = Mapping[str, int]
# Where each part of a rule is kept, by what is said of a layout that breaks it; the first counts.
# That is a template of :func:`filled`, or what picks it by the layout.
Clauses = Mapping[str | Callable[[Context, Row], str], Mask]
Check = Callable[[Context, Columns], Clauses]
Offerer = Literal["framework", "optimizer"]
# Their product is the number of GPUs; in the order they are decided.
GPUS = tuple(name for name in SHAPE if name in GPU_DEGREES)
OFF_THE_MESH = "{stage_ranks} of a stage: no multiple of {expert_ranks}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named rule; it can be asked once the columns it ``needs`` are decided."""

    name: str
    needs: tuple[str, ...]
    message: str
    check: Check = field(compare=False)
    # The same of what is allowed here, with the numbers of model, job, cluster and software.
    allowed: str | Callable[[Context], str] = ""
    only_prunes: bool = False  # Legal, but never worth searching
    offered_by: Offerer | None = None
    """Whose choice it is, where the rule says what is offered at all."""

    def is_legal(self, context: Context, columns: Columns) -> Mask:
        """Rows that keep the rule."""
        legal: Mask = reduce(np.logical_and, self.check(context, columns).values())
        return legal

    def words(self, context: Context, row: Row) -> str:
        """Return how one layout breaks the rule, in words."""
        clauses = self.check(context, {name: np.array([value]) for name, value in row.items()})
        says = next(says for says, holds in clauses.items() if not np.all(holds))
        if says:
            return filled(says if isinstance(says, str) else says(context, row), context, row)
        given = ", ".join(f"{name}={row[name]}" for name in self.needs)
        return f"{self.message.splitlines()[0].rstrip('.')}; given {given}"

    def allowance(self, context: Context) -> str:
        """Return what is allowed here; empty where the rule does not state it."""
        allowed = self.allowed if isinstance(self.allowed, str) else self.allowed(context)
        return filled(allowed, context, {})


def rule(*needs: str, **how: Any) -> Callable[[Check], Rule]:  # noqa: ANN401 - fields of a rule
    """Make a rule of a function; the last of ``needs`` is where a file that breaks it is wrong."""

    def made(check: Check) -> Rule:
        message = (check.__doc__ or "").strip()
        return Rule(name=check.__name__, needs=needs, message=message, check=check, **how)

    return made


def supported(degree: str, what: str, article: str = "") -> Rule:
    """The rule that a framework offers a degree above one; its trait is called as the degree."""
    return Rule(
        name=f"{degree}_supported",
        needs=(degree,),
        message=f"The framework offers {article}{what}.",
        check=lambda context, columns: {
            f"{degree} {{{degree}}}: {{software}} has no {what}": (columns[degree] == 1)
            | getattr(context.traits.support, degree)
        },
        offered_by="framework",
    )


def is_schedule(columns: Columns, *names: str) -> Mask:
    """Rows whose schedule is one of these."""
    table = np.array([schedule in names for schedule in SCHEDULES])
    return np.asarray(table[columns["schedule"].astype(int)])


def offloads(columns: Columns, word: str) -> Mask:
    """Rows that offload this, or to there."""
    table = np.array([word in code for code in OFFLOAD_CODES])
    return np.asarray(table[columns["offload"].astype(int)])


class _Formatter(Formatter):
    """Format strings in which a tuple is listed."""

    def format_field(self, value: object, format_spec: str) -> str:
        """Format one field."""
        if isinstance(value, tuple):
            value = ", ".join(map(str, value)) or "none"
        return str(super().format_field(value, format_spec))


def filled(template: str, context: Context, row: Row) -> str:
    """The template with a layout's values, by dimension, and attributes of the context's parts.

    ``{tp}`` is the layout's, ``{model.num_heads}`` the model's; ``{software}``, ``{gpus}``,
    ``{stage_ranks}``, ``{expert_ranks}`` and ``{micro_batches}`` stand for words; ``{nodes}`` are
    those of the layout, ``{share}`` sequences of a replica, ``{chunk_layers}`` those of a chunk.
    """
    traits, batch, node = context.traits, context.job.global_batch, context.cluster.node
    each = row.get("dp", 1) * row.get("micro_batch", 1)
    chunks = row.get("pp", 1) * row.get("vpp", 1)
    profile = "" if traits.profile == "current" else f" ({traits.profile})"
    known = {
        "model": context.model,
        "moe": context.model.moe,
        "mixer": context.model.mixer,
        "job": context.job,
        "cluster": context.cluster,
        "node": node,
        "traits": traits,
        "support": traits.support,
        "states": traits.states,
        "optimizer": traits.optimizer,
        "training": traits.training,
        "software": f"{traits.name}{profile}",
        "gpus": product(row, GPU_DEGREES, "GPU"),
        "stage_ranks": product(row, STAGE_DEGREES, "rank"),
        "expert_ranks": product(row, ("etp", "ep"), "expert rank"),
        "micro_batches": f"a batch of {batch} is {batch // each} micro-batches of {each} sequences",
        # Whole numbers of any size: plan files may state absurd ones.
        "nodes": -(-prod(row.get(name, 1) for name in GPU_DEGREES) // node.num_accelerators),
        "share": batch // row.get("dp", 1),
        "chunks": chunks,
        "chunk_layers": ceil_div(context.model.num_blocks, chunks),
    }
    values = {name: STRATEGY_FIELDS[name].value(code) for name, code in row.items()}
    return _Formatter().vformat(template, (), known | values)


def product(row: Row, names: Sequence[str], unit: str) -> str:
    """The degrees above one as a product with what they make."""
    degrees = {name: row[name] for name in names if row.get(name, 1) > 1}
    words = " x ".join(f"{name} {value}" for name, value in degrees.items()) or f"one {unit}"
    return f"{words} = {prod(degrees.values()):,} {unit}s" if len(degrees) > 1 else words
