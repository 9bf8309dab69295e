"""The fewest decisions of a plan that have to change so that it is legal and fits.

Decisions are the columns of a strategy, its layers per stage, its policies (which layers are
recomputed or offloaded) and the modules that selective recomputation repeats. For d = 0, 1, 2, ...
all legal strategies are looked at in which d decisions differ: c columns, enumerated, and d - c of
the other three. Policies that change are those that the framework can say, one after the other;
layers are left free to the stage problem. The first d at which something fits is the least.
Another pp or vpp takes other layers per stage, which then count as no decision of their own.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.build import slowest_pace, stage_model
from planner.cost.context import Context, with_modules
from planner.cost.layer_table import LayerTable
from planner.cost.module_sets import relaxed_options
from planner.cost.policies import offers_activation_offload, with_selective
from planner.cost.stage import OFFLOADED, StageModel, all_stages
from planner.search.edits import (
    FREEDOMS,
    Edit,
    Freedom,
    LateError,
    Origin,
    Repairs,
    TooManyError,
    edited,
    origin_of,
)
from planner.search.space.policies import (
    Policy,
    of_policy,
    offered,
    part_numbers,
    policies_of,
    with_part,
)
from planner.search.space.space import EVERYTHING
from planner.search.stages.bounds import by_pipeline, free_bound_s, refine
from planner.search.stages.capacity import layer_ranges
from planner.search.stages.kept import (
    best_policies,
    bound_with_layers_s,
    can_hold_split,
    kept_of,
    may_keep_counts,
    table_as_kept,
    times_as_kept,
)
from planner.search.stages.solver import Split, solve_split, solve_table
from planner.search.stages.ways import Variant
from planner.spec.strategy import Strategy, StrategyColumns
from planner.units import Array, Index, Mask

MOST_CHANGES = 5
"""More changed decisions are no repair, but another plan."""
MOST_ROWS = 2**21
"""Strategies enumerated at once."""
CHUNK_ROWS = 2**15
FIRST_ROWS = 128
Progress = Callable[[str, float], None]
Accepts = Callable[[Edit], bool]


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Strategies priced under one set of modules."""

    model: StageModel
    modules: tuple[str, ...] | None
    """None: the plan's."""
    freedom: Freedom
    moved: bool
    """Another pp or vpp than the plan's: layers are free at no price."""
    variants: list[Variant] = field(default_factory=list)
    """Of every row, where its policy is decided; none: as the plan's."""

    @property
    def layers_free(self) -> bool:
        return self.freedom.layers or self.moved

    def take(self, index: Index) -> "_Rows":
        variants = [self.variants[row] for row in index.tolist()] if self.variants else []
        return replace(self, model=self.model.take(index), variants=variants)


@dataclass(kw_only=True)
class Repairer:
    """Looks through edits of one plan, level by level."""

    context: Context
    """With the plan's own modules selected, and ``module_sets`` to choose others from."""
    strategy: Strategy
    top: int
    num_gpus: int | None = None
    """Where given, every edit uses just these, and dp follows."""
    accepts: Accepts = lambda _edit: True
    deadline: float = np.inf
    edits: list[Edit] = field(init=False, default_factory=list)
    num_strategies: int = field(init=False, default=0)
    num_solved: int = field(init=False, default=0)
    _alive: dict[int, StrategyColumns] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.context = with_modules(self.context, self.strategy.recompute_modules)
        self.layers = LayerTable(context=self.context)
        self.num_layers = self.context.model.num_blocks
        self.origin: Origin = origin_of(self.context, self.strategy, self.num_gpus)
        self.kept = kept_of(self.strategy, self.num_layers)
        selected = self.context.traits.recompute.selected
        self.other_sets = tuple(s for s in self.context.module_sets if s != selected)
        self.policies = policies_of(self.context, EVERYTHING)

    @property
    def limit_s(self) -> float:
        """Edits that take as long are of no interest."""
        return self.edits[-1].iteration_s if len(self.edits) >= self.top else np.inf

    def look(self, num_changes: int) -> None:
        """Look at all edits with so many changes; raises TooManyError and LateError."""
        for freedom in FREEDOMS:
            if freedom.num_changes <= num_changes:
                strategy = self._alive_at(num_changes - freedom.num_changes)
                for start in range(0, len(strategy), CHUNK_ROWS):
                    rows = np.arange(start, min(start + CHUNK_ROWS, len(strategy)))
                    self._look_under(strategy.take(rows), freedom)

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise LateError

    def _alive_at(self, num_columns: int) -> StrategyColumns:
        """Legal strategies so many columns away, but those that no split or policies make fit."""
        if num_columns not in self._alive:
            strategy = edited(self.context, self.origin, num_columns, MOST_ROWS)
            self.num_strategies += len(strategy)
            parts = [strategy.take(np.zeros(0, dtype=int))]
            for start in range(0, len(strategy), CHUNK_ROWS):
                part = strategy.take(np.arange(start, min(start + CHUNK_ROWS, len(strategy))))
                parts.append(part.take(self._can_fit(part)))
            self._alive[num_columns] = StrategyColumns.concatenate(parts)
        return self._alive[num_columns]

    def _can_fit(self, strategy: StrategyColumns) -> Mask:
        """False only where nothing can be done by layers, policies and modules."""
        model = stage_model(self.context, strategy)
        selected = self.context.traits.recompute.selected
        if self.other_sets:
            pace = slowest_pace(self.context, strategy)
            sets = (selected, *self.other_sets)
            by_shape, index = self.layers.options(strategy, ((), *sets))
            bound = relaxed_options(by_shape, index, pace).bound
            model = replace(model, policies=with_selective(model.policies, bound))
        return np.isfinite(self._refined_s(model))

    def _refined_s(self, model: StageModel) -> Array:
        """Lower bounds with memory limits, infinite where nothing fits."""
        self._check_time()
        lower = np.full(len(model), np.inf)
        for num_stages, index in by_pipeline(model.strategy):
            lower[index] = refine(model.take(index), num_stages, self.num_layers).lower_s
        return lower

    def _look_under(self, strategy: StrategyColumns, freedom: Freedom) -> None:
        own = self.strategy
        moved = (strategy.pp != own.pp) | (strategy.vpp != own.vpp)
        for modules, context in self._contexts(freedom):
            for is_moved in (False, True):
                if is_moved and freedom.layers:
                    continue
                part = strategy.take(moved == is_moved)
                if len(part):
                    model = stage_model(context, part)
                    rows = _Rows(model=model, modules=modules, freedom=freedom, moved=is_moved)
                    self._look_at(rows)

    def _contexts(self, freedom: Freedom) -> Iterator[tuple[tuple[str, ...] | None, Context]]:
        """Sets of modules to look at; others matter only where some layer is selective."""
        if not freedom.modules:
            yield None, self.context
        elif freedom.policies or self.kept.uses_selective:
            for modules in self.other_sets:
                yield modules, with_modules(self.context, modules)

    def _look_at(self, rows: _Rows) -> None:
        if not rows.layers_free:
            self._look_with_layers(rows)
        elif rows.freedom.policies:
            for part in self._under_any(rows):
                self._solve(part)
        elif self.kept.uniform not in (None, "offloaded"):
            assert self.kept.uniform is not None
            self._solve(self._under(rows, Policy(kinds=(self.kept.uniform,))))
        else:
            self._look_with_counts(rows)

    def _under_any(self, rows: _Rows) -> Iterator[_Rows]:
        """The rows under whatever a framework can say, no more at once than fit in memory.

        Other modules than the plan's say nothing of other kinds.
        """
        for policy in self.policies:
            if rows.modules is not None and "selective" not in policy.kinds:
                continue
            size = max(CHUNK_ROWS // self.num_layers, 1) if policy.part else CHUNK_ROWS
            for start in range(0, len(rows.model), size):
                index = np.arange(start, min(start + size, len(rows.model)))
                yield self._under(rows.take(index), policy)

    def _under(self, rows: _Rows, policy: Policy) -> _Rows:
        """The rows whose layers can be under a policy, once for every variant of it."""
        rows = rows.take(offered(rows.model, policy))
        if policy.part is None:
            variants = [Variant(policy=policy)] * len(rows.model)
            return replace(rows, model=of_policy(rows.model, policy), variants=variants)
        places, number = part_numbers(rows.model, self.num_layers)
        return replace(
            rows,
            model=with_part(rows.model.take(places), policy.part, number),
            variants=[Variant(policy=policy, number=n) for n in number.tolist()],
        )

    def _look_with_layers(self, rows: _Rows) -> None:
        """The plan's own layers per stage, with its policies or any."""
        if self.kept.layers is None or len(self.kept.layers) != self.strategy.pp:
            return
        uneven = rows.model.uneven_stages
        legal = can_hold_split(rows.model.strategy, self.kept.layers, uneven_stages=uneven)
        rows = rows.take(np.flatnonzero(legal))
        layers = np.array(self.kept.layers, dtype=float)
        if rows.freedom.policies:
            for part in self._under_any(rows):
                self._look_with_policies(part, layers)
            return
        counts = self.kept.counts_of(layers)
        if counts is None or not len(rows.model):
            return
        seconds = times_as_kept(self.context, rows.model, layers, counts)
        for row in np.argsort(seconds, kind="stable").tolist():
            if not seconds[row] < self.limit_s:
                return
            self._check_time()
            time_s = float(seconds[row])
            split = Split(layers=layers, counts=counts, iteration_s=time_s, is_optimal=True)
            self._add(rows, row, split)

    def _look_with_policies(self, rows: _Rows, layers: Array) -> None:
        """The plan's own layers per stage under one policy; its chunks may be too short for it."""
        stages = all_stages(len(layers))
        fewest, _ = layer_ranges(rows.model, self.num_layers, stages)
        rows = rows.take(np.flatnonzero((layers >= fewest).all(axis=1)))
        lower = bound_with_layers_s(rows.model, layers)
        self._solve_in_order(rows, lower, lambda model: best_policies(model, layers))

    def _look_with_counts(self, rows: _Rows) -> None:
        """Lists of policies that are kept, or all layers offloaded, under any layers per stage."""
        strategy = rows.model.strategy
        possible = np.array([self.kept.can_keep(pp) for pp in strategy.pp.tolist()], dtype=bool)
        counts = self.kept.counts
        offloads = self.kept.uniform == "offloaded"
        if offloads or (counts is not None and counts[OFFLOADED].any()):
            possible &= offers_activation_offload(self.context, strategy)
        rows = rows.take(np.flatnonzero(possible))
        if not len(rows.model):
            return
        lower = free_bound_s(rows.model, self.num_layers)
        if self.kept.uniform is None and counts is not None:
            may = may_keep_counts(rows.model, counts, self.num_layers)
            lower = np.where(may, lower, np.inf)
        self._solve_in_order(rows, lower, self._solve_as_kept)

    def _solve(self, rows: _Rows) -> None:
        """Rows with free layers, best first, in batches that are bounded together."""
        free = free_bound_s(rows.model, self.num_layers)
        order = np.argsort(free, kind="stable")
        start, size = 0, FIRST_ROWS
        while start < len(order) and free[order[start]] < self.limit_s:
            part = rows.take(order[start : start + size])
            self._solve_in_order(part, self._refined_s(part.model), self._solve_of)
            start, size = start + size, size * 2

    def _solve_in_order(
        self, rows: _Rows, lower: Array, solve: Callable[[StageModel], Split | None]
    ) -> None:
        for row in np.argsort(lower, kind="stable").tolist():
            if not lower[row] < self.limit_s:
                return
            self._check_time()
            self.num_solved += 1
            split = solve(rows.model.take(np.array([row])))
            if split is not None and split.iteration_s <= self.limit_s:
                vpp = int(rows.model.strategy.vpp[row])
                variant = rows.variants[row] if rows.variants else None
                self._add(rows, row, variant.completed(split, vpp) if variant else split)

    def _solve_of(self, model: StageModel) -> Split | None:
        split = solve_split(model, self.num_layers, below_s=self.limit_s)
        return split if split is not None and np.isfinite(split.iteration_s) else None

    def _solve_as_kept(self, model: StageModel) -> Split | None:
        table = table_as_kept(model, self.kept, self.num_layers)
        return solve_table(model, table, self.num_layers, below_s=self.limit_s)

    def _add(self, rows: _Rows, row: int, split: Split) -> None:
        columns = rows.model.strategy.take(np.array([row]))
        split = replace(split, modules=rows.modules)
        edit = Edit(columns=columns, split=split, freedom=rows.freedom)
        if not self.accepts(edit):
            return
        alike = next((one for one in self.edits if one.family == edit.family), None)
        if alike is not None:
            self.edits = [one for one in self.edits if one is not alike]
            edit = min(alike, edit, key=lambda one: one.iteration_s)
        self.edits.append(edit)
        self.edits.sort(key=lambda one: one.iteration_s)
        del self.edits[self.top :]


def repairs(
    context: Context,
    strategy: Strategy,
    *,
    top: int = 4,
    num_gpus: int | None = None,
    accepts: Accepts = lambda _edit: True,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Repairs:
    """The ``top`` fastest edits of ``strategy`` among those with the fewest changes.

    Edits that are not accepted do not count; with ``num_gpus`` dp follows from the other degrees.
    Where the time is over, those with the most changes looked at need not be the fastest.
    Policies that change become one that the framework can say.
    """
    repairer = Repairer(
        context=context,
        strategy=strategy,
        top=top,
        num_gpus=num_gpus,
        accepts=accepts,
        deadline=np.inf if time_limit_s is None else time.monotonic() + time_limit_s,
    )
    looked_at, is_complete = -1, True
    for num_changes in range(MOST_CHANGES + 1):
        progress(f"edits of {num_changes} decisions", num_changes / (MOST_CHANGES + 1))
        try:
            repairer.look(num_changes)
        except TooManyError:
            break
        except LateError:
            is_complete = False
            looked_at = num_changes if repairer.edits else looked_at
            break
        looked_at = num_changes
        if repairer.edits:
            break
    return Repairs(
        edits=tuple(repairer.edits),
        num_changes=looked_at,
        num_strategies=repairer.num_strategies,
        num_solved=repairer.num_solved,
        is_complete=is_complete,
    )
