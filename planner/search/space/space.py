"""Enumerates strategies as columns, dropping branches as soon as a rule forbids them.

In steps: shapes first, which decide computation and communication inside a model replica, then
for those that are worth it the micro-batch, and how states are sharded, offloaded and placed.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.cost.context import Context
from planner.errors import InputError
from planner.search.space.legality import RULES, whole_cluster
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import Rule
from planner.spec.strategy import (
    MICRO_BATCH,
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    SCHEDULES,
    SEARCHED_FIELDS,
    SHAPE,
    STATES,
    StrategyColumns,
)
from planner.units import Array, Index, Rows

# Over ten times those of the largest mixture of the catalog on 16,384 accelerators.
MAX_SHAPES = 5 * 10**6
EVERYTHING = Narrowing()

Columns = dict[str, Any]


@dataclass(kw_only=True)
class Enumeration:
    """Rules to ask and what they dropped, while dimension after dimension is decided."""

    context: Context
    narrowing: Narrowing = EVERYTHING
    uses_all: bool = False
    part_rows: int = 2**20  # Looked at together: what rules drop of more never lies in memory
    dropped: dict[str, int] = field(default_factory=dict)
    is_cut: bool = False  # not all shapes were listed in time

    def __post_init__(self) -> None:
        self.context = narrowed(self.context, self.narrowing)
        self.values = dimension_values(self.context, self.narrowing)
        # Pruning does not apply to what a user asked for.
        fixed, lifted = set(self.narrowing.values), set[str]()
        if "cross-domain-tp" in self.narrowing.allowed:
            lifted.add("tp_within_scale_up_domain")
        self.rules = [
            rule
            for rule in RULES
            if not (rule.only_prunes and (fixed.issuperset(rule.needs) or rule.name in lifted))
        ]
        if self.uses_all:
            self.rules.append(whole_cluster)
        self.rules += self.narrowing.rules

    def shapes(self, until: float | None = None) -> Columns:
        """All shapes that may be legal, as columns; those found until then, where given.

        Raises InputError where there are more than any search may hold.
        """
        parts = list[Columns]()
        num_shapes = 0
        for part in self.decided({}, SHAPE, until):
            num_shapes += len(part["tp"])
            if num_shapes > MAX_SHAPES:
                widest = max(SHAPE, key=lambda name: len(self.values[name]))
                message = (
                    f"more than {MAX_SHAPES:,} shapes, which a search would hold in memory; "
                    f"--fix {widest}=1|2|4 leaves fewer"
                )
                raise InputError.single("command line", "--fix", message)
            parts.append(part)
        return joined(parts)

    def decided(
        self, columns: Columns, names: Sequence[str], until: float | None = None
    ) -> Iterator[Columns]:
        """The rows with all values of further dimensions that the rules allow, part by part."""
        if not names:
            yield columns
            return
        name, *rest = names
        most = max(self.part_rows // max(len(self.values[name]), 1), 1)
        num_rows = len(next(iter(columns.values()), (0,)))
        for start in range(0, max(num_rows, 1), most):
            is_late = until is not None and time.monotonic() > until
            self.is_cut |= is_late
            part = take(columns, slice(start, start if is_late else start + most))
            yield from self.decided(self._decide(part, [name]), rest, until)
            if is_late:
                return

    def expanded(self, shapes: Columns, names: Sequence[str]) -> tuple[Columns, Index]:
        """The shapes with all legal values of further dimensions, and which shape each row has."""
        columns = self._decide({**shapes, "shape": np.arange(len(shapes["tp"]))}, names)
        return columns, columns.pop("shape")

    def strategies_of(self, shapes: Columns) -> tuple[StrategyColumns, Index]:
        """All legal strategies of the given shapes, micro-batched or not, and which each has."""
        further = [name for name in (*MICRO_BATCH, *STATES) if name not in shapes]
        columns, shape = self.expanded(shapes, further)
        return StrategyColumns(
            num_micro_batches=self.context.job.global_batch
            // (columns["dp"] * columns["micro_batch"]),
            **columns,
        ), shape

    def _decide(self, columns: Columns, names: Sequence[str]) -> Columns:
        """Decide dimension after dimension; every rule is asked as soon as it can be."""
        for name in names:
            known = {*columns, name}
            if name == "etp" and name not in self.narrowing.values:
                every = chosen(columns, name, expert_splits(self.context, columns))
                rows = Crossed({}, np.zeros(0, dtype=int), every)
            else:
                rows = crossed(columns, name, self.values[name])
            for rule in self.rules:
                if name in rule.needs and known.issuperset(rule.needs):
                    rows = self._ask(rule, rows)
            columns = rows.whole()
        return columns

    def _ask(self, rule: Rule, rows: "Crossed") -> "Crossed":
        legal = rule.is_legal(self.context, rows)
        num_illegal = int(len(legal) - np.count_nonzero(legal))
        if not num_illegal:
            return rows
        self.dropped[rule.name] = self.dropped.get(rule.name, 0) + num_illegal
        return rows.take(np.flatnonzero(legal))


class Crossed(dict[str, Any]):
    """Rows times the values of a dimension; other columns are repeated only when asked for."""

    def __init__(self, columns: Columns, source: Index, own: Columns) -> None:
        super().__init__(own)
        self.columns, self.source = columns, source

    def __missing__(self, name: str) -> Array:
        self[name] = self.columns[name][self.source]
        return np.asarray(self[name])

    def take(self, index: Index) -> "Crossed":
        """The rows at ``index``."""
        source = self.source[index] if self.columns else self.source
        return Crossed(self.columns, source, take(self, index))

    def whole(self) -> Columns:
        """All columns, the dimension last."""
        own = [name for name in self if name not in self.columns]
        return {name: self[name] for name in (*self.columns, *own)}


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def narrowed(context: Context, narrowing: Narrowing) -> Context:
    """The context with the placements and schedules a user asks for."""
    asked: dict[str, Any] = {
        f"{name}s": tuple(words[code] for code in narrowing.values[name])
        for name, words in (("placement", PLACEMENT_NAMES), ("schedule", SCHEDULES))
        if name in narrowing.values
    }
    return replace(context, **asked)


def expert_splits(context: Context, columns: Columns) -> list[Array]:
    """Degrees of etp worth a look, for every row: the usual one, and experts kept whole."""
    support = context.traits.support
    usual = support.usual_etp(columns["tp"], columns["ep"])
    folds = context.model.moe is not None and support.expert_mesh == "folded"
    return [usual, np.ones_like(usual)] if folds else [usual]


def dimension_values(
    context: Context, narrowing: Narrowing = EVERYTHING
) -> dict[str, Sequence[int]]:
    """Values each dimension takes before any rule, in the order they are decided."""
    model, cluster, support = context.model, context.cluster, context.traits.support
    placements = context.placements or support.placements[:1]
    most_tp = cluster.node.scale_up.num_accelerators
    if "cross-domain-tp" in narrowing.allowed:
        most_tp = cluster.num_accelerators
    tensor_parallel = {d for d in divisors(model.num_heads) if d <= most_tp} | {1, 2, 4, 8}
    splits = {*narrowing.values.get("tp", tensor_parallel)}
    # Any number of chunks per stage: they may differ.
    chunks = list(range(1, model.num_blocks + 1))
    data_parallel = [d for d in divisors(context.job.global_batch) if d <= cluster.num_accelerators]
    is_partial = len(support.offload) > 1 and support.partial_offload_zero_stages
    percents = [25, 50, 75, 100] if is_partial else [100]  # any runs; these are tried
    found: dict[str, Sequence[int]] = {
        "tp": sorted(tensor_parallel),
        "cp": [2**i for i in range(cluster.num_accelerators.bit_length())],
        "pp": range(1, min(model.num_blocks, cluster.num_accelerators) + 1),
        "dp": data_parallel,
        "ep": divisors(model.moe.num_experts) if model.moe else [1],
        # Every degree that some row of expert_splits may have.
        "etp": sorted(splits | {1} if model.moe else splits),
        "schedule": [i for i, name in enumerate(SCHEDULES) if name in context.schedules],
        "vpp": chunks if "vpp" in support.features else [1],
        "micro_batch": divisors(context.job.global_batch),
        "sequence_parallel": [0, 1] if "sequence_parallel" in support.features else [0],
        "zero_stage": sorted(support.zero_stages),
        "dp_replicate": data_parallel if "hybrid_sharding" in support.features else [1],
        "offload": [i for i, code in enumerate(OFFLOAD_CODES) if code in support.offload],
        "offload_percent": percents,
        "placement": [PLACEMENT_NAMES.index(name) for name in placements],
    }
    return {name: narrowing.values.get(name, found[name]) for name in SEARCHED_FIELDS}


def crossed(columns: Columns, name: str, values: Sequence[int]) -> Crossed:
    """Cartesian product of the rows so far with the values of one more dimension."""
    num_rows = len(next(iter(columns.values()))) if columns else 1
    own = np.tile(np.asarray(values, dtype=np.int64), num_rows)
    return Crossed(columns, np.repeat(np.arange(num_rows), len(values)), {name: own})


def chosen(columns: Columns, name: str, choices: Sequence[Array]) -> Columns:
    """The rows so far, each with its own choices of one more dimension, none of them twice."""
    grid = np.stack(choices, axis=1)
    is_new = np.ones(grid.shape, dtype=bool)
    for later in range(1, len(choices)):
        is_new[:, later] = (grid[:, :later] != grid[:, [later]]).all(axis=1)
    return {**take(columns, np.nonzero(is_new)[0]), name: grid[is_new]}


def take(columns: Columns, index: Rows) -> Columns:
    """The rows at ``index``."""
    return {name: column[index] for name, column in columns.items()}


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
