"""Edits of a strategy, and the legal ones a given number of columns away, enumerated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing
from planner.search.space.space import (
    Columns,
    Crossed,
    Enumeration,
    chosen,
    dimension_values,
    expert_splits,
    take,
)
from planner.search.space.vocabulary import LEFT_OUT
from planner.search.stages.solver import Split
from planner.spec.strategy import (
    DECIDED,
    SCHEDULES,
    SHAPE,
    Strategy,
    StrategyColumns,
    gpus_of_replica,
)
from planner.spec.traits import SupportTraits
from planner.units import Array, Index

USUAL = 0
"""Stands for an etp that follows from tp and ep."""
ELSEWHERE = -1
"""Stands for a value of the plan that no legal strategy has."""


@dataclass(frozen=True, kw_only=True)
class Freedom:
    """Decisions beside the columns that may change."""

    layers: bool = False
    policies: bool = False
    modules: bool = False

    @property
    def num_changes(self) -> int:
        """How many."""
        return self.layers + self.policies + self.modules


FREEDOMS = tuple(
    Freedom(**dict.fromkeys(names, True))
    for size in range(4)
    for names in combinations(("layers", "policies", "modules"), size)
)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A strategy that fits, and what of it is not the plan's."""

    columns: StrategyColumns
    """Of length one."""
    split: Split
    freedom: Freedom

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration."""
        return self.split.iteration_s

    @property
    def family(self) -> tuple[object, ...]:
        """Alike in edits that differ in ``offload_percent`` or the split only: one is enough."""
        names = [name for name in DECIDED if name != "offload_percent"]
        values = [int(getattr(self.columns, name)[0]) for name in names]
        return (*values, self.freedom, self.split.modules)


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """The fastest edits with the fewest changes; none where there is no repair."""

    edits: tuple[Edit, ...]
    num_changes: int
    """Of each edit; without edits, the most that were looked at: none with so many fits."""
    num_strategies: int
    """Legal ones that were enumerated."""
    num_solved: int
    is_complete: bool = True
    """No time limit struck; else edits with as few changes may be faster."""

    @property
    def is_optimal(self) -> bool:
        """No other edit with so few changes is faster than the first."""
        return self.is_complete and bool(self.edits) and self.edits[0].split.is_optimal


class TooManyError(Exception):
    """More strategies than can be looked at."""


class LateError(Exception):
    """The time is over."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The strategy that edits start from, column by column."""

    values: Mapping[str, int]
    """``etp``: USUAL where it is what tp and ep bring with them, so that it follows them."""
    support: SupportTraits
    domain: Mapping[str, tuple[int, ...]]
    """Every value a legal strategy may have."""
    num_gpus: int | None = None
    """Where given, edits keep to so many GPUs: dp follows and is no decision."""

    def num_changes(self, columns: Mapping[str, Array]) -> Index:
        """Columns that differ, of those decided."""
        length = len(next(iter(columns.values()))) if columns else 1
        changes = np.zeros(length, dtype=np.int64)
        for name, column in columns.items():
            if name in self.values:
                changes += column != self.own(columns, name)
        return changes

    def own(self, columns: Mapping[str, Array], name: str) -> Array | int:
        """The plan's own value of a column, for rows in which what it follows is decided."""
        value = self.values[name]
        if name == "etp" and value == USUAL:
            return self.support.usual_etp(columns["tp"], columns["ep"])
        return value


def origin_of(context: Context, strategy: Strategy, num_gpus: int | None = None) -> Origin:
    """Where edits of ``strategy`` start, and where they may lead.

    Every value that some legal strategy can have: one outside is broken by some rule whatever
    else changes.
    """
    domain, columns = _domain(context), strategy.columns()
    own = {name: int(getattr(columns, name)[0]) for name in DECIDED}
    values = {name: code if code in domain[name] else ELSEWHERE for name, code in own.items()}
    support = context.traits.support
    if strategy.etp == support.usual_etp(strategy.tp, strategy.ep):
        values["etp"] = USUAL
    if num_gpus is not None:
        del values["dp"]
    return Origin(values=values, support=support, domain=domain, num_gpus=num_gpus)


def _domain(context: Context) -> dict[str, tuple[int, ...]]:
    """What each dimension can be at all: no value is left out because it seldom pays."""
    support, cluster, job = context.traits.support, context.cluster, context.job
    whole = replace(context, placements=support.placements, schedules=support.schedules)
    values = dimension_values(whole, Narrowing(allowed=frozenset(LEFT_OUT)))
    most = min(cluster.num_accelerators, job.seq_len // 2)
    cuts = [cp for cp in range(2, most + 1) if job.seq_len % (2 * cp) == 0]
    if len(values["offload_percent"]) > 1:
        values["offload_percent"] = range(1, 101)
    own: dict[str, Sequence[int]] = {
        "cp": [1, *cuts],
        "schedule": [SCHEDULES.index(name) for name in SCHEDULES if name in support.schedules],
    }
    return {name: tuple(chosen) for name, chosen in (values | own).items()}


@dataclass(kw_only=True)
class Edits(Enumeration):
    """Enumerates strategies with at most so many columns changed; no rule only prunes."""

    origin: Origin
    most: int
    most_rows: int
    narrowing: Narrowing = field(init=False)

    def __post_init__(self) -> None:
        self.narrowing = Narrowing(values=self.origin.domain)
        super().__post_init__()

    def shapes(self) -> Columns:
        """All shapes, those that change most first; TooManyError where they are too many."""
        return self._decide({}, SHAPE)

    def _crossed(self, columns: Columns, name: str) -> Columns:
        """Rows that may change once more take every value, the others the plan's own."""
        if name == "dp" and self.origin.num_gpus is not None:
            return _filled(columns, self.origin.num_gpus)
        if name == "etp":
            return self._with_expert_splits(columns)
        changes, own = self.origin.num_changes(columns), self.origin.values[name]
        if not columns:
            wide = Crossed.of(super()._crossed(columns, name)).whole()
            return wide if self.most else take(wide, wide[name] == own)
        may_change = changes < self.most
        if np.count_nonzero(may_change) * len(self.values[name]) > self.most_rows:
            raise TooManyError
        wide = Crossed.of(super()._crossed(take(columns, may_change), name)).whole()
        if own == ELSEWHERE:
            return wide
        same = take(columns, ~may_change)
        same[name] = np.full(np.count_nonzero(~may_change), own, dtype=np.int64)
        return {key: np.concatenate([wide[key], same[key]]) for key in wide}

    def _with_expert_splits(self, columns: Columns) -> Columns:
        """Rows with the degrees of etp worth a look, and the plan's own."""
        rows = len(columns["tp"])
        own = np.broadcast_to(self.origin.own(columns, "etp"), rows)
        choices = [own, *expert_splits(self.context, columns)]
        wide = chosen(columns, "etp", choices)
        return take(wide, self.origin.num_changes(wide) <= self.most)


def _filled(columns: Columns, num_gpus: int) -> Columns:
    """Rows that divide the GPUs, with the dp that uses all of them."""
    whole = num_gpus % gpus_of_replica(columns) == 0
    rows = take(columns, whole)
    return rows | {"dp": num_gpus // gpus_of_replica(rows)}


def edited(context: Context, origin: Origin, num_changes: int, most_rows: int) -> StrategyColumns:
    """Every legal strategy with exactly ``num_changes`` columns changed."""
    edits = Edits(context=context, origin=origin, most=num_changes, most_rows=most_rows)
    strategy = edits.strategies(edits.shapes())
    columns = {name: getattr(strategy, name) for name in DECIDED}
    return strategy.take(np.flatnonzero(origin.num_changes(columns) == num_changes))
