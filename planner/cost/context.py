"""Context: what every estimate needs beside the strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.strategy import STRATEGY_FIELDS, StrategyColumns
from planner.spec.traits import FrameworkTraits, traits_at_precision
from planner.units import Index, Rows


@dataclass(frozen=True, kw_only=True)
class Context:
    """The four inputs every estimate needs, the HBM margin, and what a search may choose."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    traits: FrameworkTraits
    margin_fraction: float = 0.0
    is_tuned: bool = False  # by makers of the software; else as others usually run it
    placements: tuple[str, ...] = ()  # Placements a search tries; empty: the framework's usual one
    schedules: tuple[str, ...] = ("1f1b",)
    """Pipeline schedules a search may choose from; interleaving is one of 1f1b's."""
    module_sets: tuple[tuple[str, ...], ...] = ()
    """Module sets that selective recomputation may repeat; empty: what the traits select."""

    ranking: Literal["time", "evidence", "simplicity"] = "time"
    """Order of a search: by time; by time with the penalties of mechanisms that nobody has
    published; or the simplest of the layouts that tie with the best by that."""

    def __post_init__(self) -> None:
        """Traits are those under the job's precision."""
        object.__setattr__(self, "traits", traits_at_precision(self.traits, self.job.precision))

    @property
    def usable_bytes(self) -> float:
        """HBM the driver offers, less the margin."""
        return self.cluster.accelerator.hbm_bytes * (1.0 - self.margin_fraction)

    def with_job(self, **changes: Any) -> "Context":  # noqa: ANN401 - fields of a job
        """The context with another length, batch or number of tokens."""
        return replace(self, job=replace(self.job, **changes))

    def with_node(self, **changes: Any) -> "Context":  # noqa: ANN401 - fields of a node
        """The context with other nodes in its cluster."""
        node = replace(self.cluster.node, **changes)
        return replace(self, cluster=replace(self.cluster, node=node))


def with_modules(context: Context, modules: tuple[str, ...] | None) -> Context:
    """The context in which selective recomputation repeats ``modules``; None: the traits' own."""
    traits = context.traits
    if modules is None or modules == traits.recompute.selected:
        return context
    recompute = replace(traits.recompute, selected=modules)
    return replace(context, traits=replace(traits, recompute=recompute))


@dataclass(frozen=True, kw_only=True)
class Rowed:
    """A dataclass whose arrays, and those of its parts, have one row per strategy."""

    rows_axis: ClassVar[int] = -1

    def take(self, index: Rows) -> Self:
        """Return the strategies at ``index``."""
        place = (..., index, *[slice(None)] * (-1 - self.rows_axis))
        values = dict(vars(self))
        for name, value in values.items():
            if not isinstance(value, np.ndarray):
                values[name] = value.take(index) if hasattr(value, "take") else value
            elif value.ndim:
                values[name] = value[place]
        return self.but(**values)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the strategies of all parts; what has no rows is the first one's."""
        values = dict(vars(parts[0]))
        for name, value in values.items():
            each = [getattr(part, name) for part in parts]
            if not isinstance(value, np.ndarray):
                values[name] = value.concatenate(each) if hasattr(value, "concatenate") else value
            elif value.ndim:
                values[name] = np.concatenate(each, axis=cls.rows_axis)
        return parts[0].but(**values)

    def but(self, **values: Any) -> Self:  # noqa: ANN401 - of any fields
        """Return a copy with some fields replaced."""
        # Past __init__, which takes as long as the arithmetic on a few strategies.
        changed = object.__new__(type(self))
        vars(changed).update(vars(self) | values)
        return changed


# Above it a key of 64 bits may hold two rows.
LARGEST_KEY = 2**62


def columns_except(*kinds: str) -> tuple[str, ...]:
    """Fields that layouts may differ in, but those of the kinds that a price does not depend on."""
    return tuple(
        name for name, each in STRATEGY_FIELDS.items() if each.kind and each.kind not in kinds
    )


def unique_rows(strategy: StrategyColumns, names: Sequence[str]) -> tuple[Index, Index]:
    """Positions of the first rows that differ in ``names``, and the map from every row to its own.

    The fields are digits of one number; where it would not fit, it is replaced by its rank.
    """
    key = np.zeros(len(strategy), dtype=np.int64)
    below = 1
    if len(key) == 1:
        return key, key
    for name in names:
        column = getattr(strategy, name)
        base = int(column.max(initial=0)) + 1
        if base == 1:
            continue
        if below * base > LARGEST_KEY:
            known, key = np.unique(key, return_inverse=True)
            below = len(known)
        key = key * base + column
        below *= base
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return first, index
