"""The best pipelines through pools: every order of pools, every layout whose stages fill them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations

import numpy as np

from planner.cost.context import Context, with_modules
from planner.cost.subject import subject_of
from planner.pools.staged import Priced, Staged, priced
from planner.search.ranking.handicaps import handicap, policy_handicap
from planner.search.space.narrow import Narrowing
from planner.search.space.policies import (
    Policy,
    of_policy,
    offered,
    part_numbers,
    policies_of,
    with_part,
)
from planner.search.space.rule import Columns, Rule
from planner.search.space.rules import RULES
from planner.search.space.rules_ranks import whole_nodes
from planner.search.space.space import Enumeration
from planner.search.stages.solver import Split
from planner.search.stages.ways import Variant
from planner.spec.cluster import LevelSpec
from planner.spec.pools import Pool, stretched
from planner.spec.strategy import (
    PLACEMENT_NAMES,
    SHOWN_DEGREES,
    Strategy,
    StrategyColumns,
    ranks_of_stage,
    split_values,
)
from planner.units import Array, Index, Mask

SCHEDULE = "1f1b"
"""Of pipelines through pools, interleaved or not; their placement is the usual one."""
FIRST_ROWS = 512
"""Looked at together; twice as many in each further step."""


@dataclass(frozen=True, kw_only=True)
class PoolContext:
    """A question as it stands on the nodes of one pool."""

    pool: Pool
    context: Context

    def spanning(self, num_accelerators: int) -> Context:
        """The question where all of a job ran on such nodes, its stages one behind the other."""
        return replace(
            self.context,
            cluster=stretched(self.pool.cluster, num_accelerators),
            placements=PLACEMENT_NAMES[:1],
            schedules=(SCHEDULE,),
        )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One pipeline through pools."""

    pools: tuple[PoolContext, ...]
    """In the order of stages."""
    stages: tuple[int, ...]
    """Of each pool."""
    strategy: Strategy
    iteration_s: float
    weighed_s: float
    """By which pipelines are ranked: the time with the handicaps of what they use."""
    is_optimal: bool


@dataclass(kw_only=True)
class Found:
    """The best pipelines, and whether nothing was left out."""

    pipelines: list[Pipeline] = field(default_factory=list)
    num_layouts: int = 0
    is_complete: bool = True


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """All layouts of one set of pools, as each of its pools prices them."""

    pools: tuple[PoolContext, ...]
    contexts: tuple[Context, ...]
    strategy: StrategyColumns
    weight: Array


def stages_of(num_accelerators: Array | int, ranks: Array) -> Array:
    """Whole stages of so many ranks that a pool holds."""
    return np.asarray(num_accelerators // ranks)


def fills_pools(pools: Sequence[Pool]) -> Rule:
    """The rule that stages fill pools: as many as each holds, on whole nodes, and no others."""

    def fills(_: Context, columns: Columns) -> Mask:
        ranks = np.asarray(ranks_of_stage(columns))
        total, legal = np.zeros_like(ranks), np.ones(len(ranks), dtype=bool)
        for pool in pools:
            stages = stages_of(pool.num_accelerators, ranks)
            whole = stages * ranks % pool.cluster.node.num_accelerators == 0
            legal &= (stages > 0) & whole
            total = total + stages
        return np.asarray(legal & (columns["pp"] == total))

    needs = ("tp", "cp", "pp", "dp")
    return Rule(name="stages_fill_pools", needs=needs, message=str(fills.__doc__), is_legal=fills)


def layouts(
    pools: Sequence[PoolContext], narrowing: Narrowing
) -> tuple[tuple[Context, ...], StrategyColumns]:
    """The question on the nodes of each pool, and every layout that all of them allow."""
    total = sum(each.pool.num_accelerators for each in pools)
    contexts = tuple(each.spanning(total) for each in pools)
    enumeration = Enumeration(context=contexts[0], narrowing=narrowing)
    own = [rule for rule in enumeration.rules if rule is not whole_nodes]
    enumeration.rules = [*own, fills_pools([each.pool for each in pools])]
    strategy = enumeration.strategies(enumeration.shapes())
    legal = np.ones(len(strategy), dtype=bool)
    for context in contexts[1:]:
        for rule in (each for each in RULES if each is not whole_nodes):
            legal &= rule.is_legal(context, vars(strategy))
    return contexts, strategy.take(np.flatnonzero(legal))


def priced_pipeline(
    pools: Sequence[PoolContext], stages: tuple[int, ...], strategy: Strategy, between: LevelSpec
) -> Pipeline:
    """A layout whose split is given, with so many of its stages in each pool."""
    total = sum(each.pool.num_accelerators for each in pools)
    subjects = [subject_of(each.spanning(total), strategy) for each in pools]
    columns, (layers, counts) = strategy.columns(), subjects[0].split
    staged = Staged(
        stages=stages,
        pools=tuple(priced(subject.context, between, columns) for subject in subjects),
        num_layers=subjects[0].context.model.num_blocks,
    )
    iteration_s = float(staged.iteration_s(layers, counts)[0])
    return Pipeline(
        pools=tuple(pools),
        stages=stages,
        strategy=strategy,
        iteration_s=iteration_s,
        weighed_s=iteration_s,
        is_optimal=False,
    )


def best_pipelines(
    pools: Sequence[PoolContext],
    between: LevelSpec,
    narrowing: Narrowing,
    *,
    top: int,
    deadline: float = np.inf,
) -> Found:
    """The best pipelines through two or more pools, no two of one layout.

    Exact under the model: a layout is set aside only where no split of it fits, or its bound is no
    better than ``top`` pipelines found. What is recomputed is alike on all stages, placements are
    the usual one and schedules 1F1B, interleaved or not. Excludes the handicap of stages that
    differ, which all such pipelines have.
    """
    found = Found()
    best: dict[tuple[object, ...], Pipeline] = {}
    sets = [
        _rows(chosen, narrowing)
        for number in range(2, len(pools) + 1)
        for chosen in combinations(pools, number)
    ]
    found.num_layouts = sum(len(rows.strategy) for rows in sets)
    searches = [
        _Search(rows=rows, between=between, narrowing=narrowing, top=top, best=best)
        for rows in sets
        if len(rows.strategy)
    ]
    for search in searches:
        found.is_complete &= search.run(deadline)
    found.pipelines = sorted(best.values(), key=lambda one: one.weighed_s)[:top]
    return found


def _rows(pools: tuple[PoolContext, ...], narrowing: Narrowing) -> _Rows:
    contexts, strategy = layouts(pools, narrowing)
    weight = np.ones(len(strategy))
    for context in contexts if contexts[0].weighs_evidence and len(strategy) else ():
        weight = np.maximum(weight, handicap(context, strategy))
    return _Rows(pools=pools, contexts=contexts, strategy=strategy, weight=weight)


@dataclass(frozen=True, kw_only=True)
class _Ways:
    """Layouts under a policy, in the order of its pools."""

    variant: Variant
    numbers: Array
    """Of every row, the layers of a chunk that the policy takes, where it takes a part."""
    rows: Index
    """Among all layouts."""
    pools: tuple[Priced, ...]


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One layout under one policy, ready to be solved."""

    bound_s: float
    weight: float
    staged: Staged
    row: int
    variant: Variant


@dataclass(kw_only=True)
class _Search:
    """Best first over layouts of one set of pools, in every order of them."""

    rows: _Rows
    between: LevelSpec
    narrowing: Narrowing
    top: int
    best: dict[tuple[object, ...], Pipeline]
    _known: dict[tuple[int, tuple[str, ...] | None], Priced] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return self.rows.contexts[0].model.num_blocks

    @property
    def limit_s(self) -> float:
        """Weighed time from which on a pipeline is of no interest."""
        known = sorted(one.weighed_s for one in self.best.values())
        return known[self.top - 1] if len(known) >= self.top else np.inf

    def run(self, deadline: float) -> bool:
        """Look at layouts by ascending bound; whether none was left out for want of time."""
        strategy = self.rows.strategy
        orders = list(permutations(range(len(self.rows.pools))))
        bound = np.concatenate([self._free_bound_s(order) for order in orders])
        places, start, size = np.argsort(bound, kind="stable"), 0, FIRST_ROWS
        while start < len(places) and bound[places[start]] < self.limit_s:
            if time.monotonic() > deadline:
                return False
            some = places[start : start + size]
            some = some[bound[some] < self.limit_s]
            for number, order in enumerate(orders):
                own = some[some // len(strategy) == number] % len(strategy)
                if len(own):
                    self._look_at(order, own)
            start, size = start + size, 2 * size
        return True

    def _priced(self, place: int, modules: tuple[str, ...] | None = None) -> Priced:
        """All layouts on the nodes of a pool, where selective layers repeat given modules."""
        key = (place, modules)
        if key not in self._known:
            context = with_modules(self.rows.contexts[place], modules)
            self._known[key] = priced(context, self.between, self.rows.strategy)
        return self._known[key]

    def _free_bound_s(self, order: tuple[int, ...]) -> Array:
        """Weighed bound of every layout where memory is no limit and nothing is recomputed."""
        bound = np.full(len(self.rows.strategy), np.inf)
        for stages, index in self._by_stages(order, self.rows.strategy):
            pools = tuple(self._priced(place).take(index) for place in order)
            staged = Staged(stages=stages, pools=pools, num_layers=self.num_layers)
            bound[index] = staged.free_bound_s()
        return bound * self.rows.weight

    def _by_stages(
        self, order: tuple[int, ...], strategy: StrategyColumns
    ) -> Iterator[tuple[tuple[int, ...], Index]]:
        """Rows by the stages that each pool holds."""
        ranks = np.asarray(ranks_of_stage(vars(strategy)))
        pools = [self.rows.pools[place].pool for place in order]
        for size in np.unique(ranks).tolist():
            stages = tuple(int(pool.num_accelerators // size) for pool in pools)
            yield stages, np.flatnonzero(ranks == size)

    def _look_at(self, order: tuple[int, ...], index: Index) -> None:
        """Solve what may still win among some layouts, by ascending bound of their variants."""
        found = [way for ways in self._variants(order, index) for way in self._open(order, ways)]
        for way in sorted(found, key=lambda way: way.bound_s):
            if way.bound_s >= self.limit_s:
                break
            split = way.staged.solve(way.row, self.limit_s / way.weight)
            if split is not None:
                self._keep(order, way, split)

    def _open(self, order: tuple[int, ...], ways: _Ways) -> Iterator[_Way]:
        """Of layouts under a policy those that may still win."""
        strategy = self.rows.strategy.take(ways.rows)
        for stages, places in self._by_stages(order, strategy):
            pools = tuple(pool.take(places) for pool in ways.pools)
            staged = Staged(stages=stages, pools=pools, num_layers=self.num_layers)
            weights = self.rows.weight[ways.rows[places]] * self._weight(ways.variant)
            bounds = staged.bound_s() * weights
            for row in np.flatnonzero(bounds < self.limit_s).tolist():
                yield _Way(
                    bound_s=float(bounds[row]),
                    weight=float(weights[row]),
                    staged=staged,
                    row=row,
                    variant=replace(ways.variant, number=float(ways.numbers[places[row]])),
                )

    def _weight(self, variant: Variant) -> float:
        context, policy = self.rows.contexts[0], variant.policy
        if not context.weighs_evidence:
            return 1.0
        is_part = policy.part is not None
        return policy_handicap(policy.kinds[-1], variant.modules, context, partial=is_part)

    def _variants(self, order: tuple[int, ...], index: Index) -> Iterator[_Ways]:
        """Some layouts under everything that may be recomputed, as pools price them."""
        context = self.rows.contexts[0]
        for policy in _alike(policies_of(context, self.narrowing)):
            sets = context.module_sets if policy.kinds == ("selective",) else ()
            for modules in sets if len(sets) > 1 else (None,):
                pools = tuple(self._priced(place, modules).take(index) for place in order)
                variant = Variant(policy=policy, modules=modules)
                yield _under(variant, index, pools, self.num_layers)

    def _keep(self, order: tuple[int, ...], way: _Way, split: Split) -> None:
        """Note a pipeline, where no better one of its layout is known."""
        values = way.staged.strategy.values(way.row)
        split = way.variant.completed(split, values["vpp"])
        values |= split_values(split.layers, split.counts)
        modules = way.variant.modules if any(values["selective_layers_per_stage"]) else None
        strategy = Strategy(**values, recompute_modules=modules)
        degrees = tuple(values[name] for name in (*SHOWN_DEGREES, "zero_stage"))
        key = (*(self.rows.pools[place].pool.name for place in order), *degrees)
        weighed_s = split.iteration_s * way.weight
        if key in self.best and self.best[key].weighed_s <= weighed_s:
            return
        self.best[key] = Pipeline(
            pools=tuple(self.rows.pools[place] for place in order),
            stages=way.staged.stages,
            strategy=strategy,
            iteration_s=split.iteration_s,
            weighed_s=weighed_s,
            is_optimal=split.is_optimal,
        )


def _alike(policies: Sequence[Policy]) -> Iterator[Policy]:
    """The policies under which all stages do the same: one option says it for all pools."""
    for policy in policies:
        if policy.is_mixed:
            yield from (Policy(kinds=(kind,)) for kind in policy.kinds)
        else:
            yield policy


def _under(variant: Variant, index: Index, pools: Sequence[Priced], num_layers: int) -> _Ways:
    """Layouts under a policy: those that it is for, with every number of layers it may take."""
    policy, first = variant.policy, pools[0].model
    if policy.part is None:
        rows = offered(first, policy)
        numbers = np.zeros(len(rows))
        models = [of_policy(pool.model.take(rows), policy) for pool in pools]
    else:
        rows, numbers = part_numbers(first, num_layers)
        models = [with_part(pool.model.take(rows), policy.part, numbers) for pool in pools]
    return _Ways(
        variant=variant,
        numbers=numbers,
        rows=index[rows],
        pools=tuple(
            Priced(model=model, border_s=pool.border_s[rows])
            for model, pool in zip(models, pools, strict=True)
        ),
    )
