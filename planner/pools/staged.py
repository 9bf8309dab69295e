"""A pipeline that runs through pools: the stage model of each pool prices the stages it holds.

A pool prices a strategy as if all stages stood on its nodes; of that, its own run of stages is
taken. Stages beside another pool wait for the network between the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.parts import build_parts
from planner.cost.pipeline import makespan_s
from planner.cost.stage import StageModel, fixed_time_s, stage_tail_s, stage_time_s
from planner.search.space.interleaving import fits_chunks
from planner.search.stages.bounds import UNLIMITED_S
from planner.search.stages.capacity import ROUNDING, stage_limits
from planner.search.stages.deal import Pipeline, deal
from planner.search.stages.solver import Effort, Split
from planner.search.stages.stage_table import StageTable, stage_table
from planner.spec.cluster import LevelSpec
from planner.spec.pools import bordering
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Index

NUM_BISECTIONS = 24


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Columns of strategies as one pool prices them."""

    model: StageModel
    """Its constant is what the iteration takes where it crosses to another pool."""
    border_s: Array
    """By how much a stage's transfers take longer where both its neighbours are in other pools."""

    def take(self, index: Index) -> "Priced":
        """The rows at ``index``."""
        return Priced(model=self.model.take(index), border_s=self.border_s[index])


def priced(context: Context, between: LevelSpec, strategy: StrategyColumns) -> Priced:
    """Price strategies on a pool's nodes, alone and where all that leaves a node leaves the pool.

    Of the latter only transfers between stages and what an iteration adds once are taken.
    """
    at_border = replace(context, cluster=bordering(context.cluster, between))
    parts = build_parts(context, strategy)
    own = stage_model(context, strategy, parts)
    border = stage_model(at_border, strategy, build_parts(at_border, strategy, parts.costs))
    return Priced(
        model=replace(own, constant_s=border.constant_s), border_s=border.link_s - own.link_s
    )


def border_shares(stages: Sequence[int], vpp: int) -> Array:
    """Of every stage, the share of its transfers that cross to another pool: 0, 1/2 or 1.

    A stage exchanges with both its neighbours once per micro-batch; at the ends of a pipeline
    without chunks the one neighbour counts for both, as where all pools are alike.
    """
    owner = np.repeat(np.arange(len(stages)), stages)
    crosses = owner != np.roll(owner, -1)
    if vpp == 1 and len(owner) > 1:
        crosses[-1] = crosses[-2]
    before = np.roll(crosses, 1)
    if vpp == 1:
        before[0] = crosses[0]
    shares: Array = 0.5 * crosses + 0.5 * before
    return shares


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Strategies of one pipeline degree whose stages run through pools in an order."""

    stages: tuple[int, ...]
    """Of each pool, in the pipeline's order."""
    pools: tuple[Priced, ...]
    """In the same order; rows are the same strategies."""
    num_layers: int

    def take(self, index: Index) -> "Staged":
        """The rows at ``index``."""
        return replace(self, pools=tuple(pool.take(index) for pool in self.pools))

    @property
    def strategy(self) -> StrategyColumns:
        """The rows."""
        return self.pools[0].model.strategy

    @property
    def runs(self) -> list[slice]:
        """The stages of each pool."""
        ends = np.cumsum([0, *self.stages])
        return [slice(first, last) for first, last in pairwise(ends.tolist())]

    @cached_property
    def constant_s(self) -> Array:
        """What an iteration takes once, in the slowest pool."""
        longest: Array = np.max([pool.model.constant_s for pool in self.pools], axis=0)
        return longest

    @cached_property
    def border_s(self) -> Array:
        """What transfers to other pools add to every stage, C x P."""
        chunked = self.strategy.vpp[:, None] > 1
        shares = np.where(chunked, border_shares(self.stages, 2), border_shares(self.stages, 1))
        own = [
            pool.border_s[:, None] * shares[:, run]
            for pool, run in zip(self.pools, self.runs, strict=True)
        ]
        return np.concatenate(own, axis=1)

    def times_s(self, layers: Array, counts: Array) -> tuple[Array, Array]:
        """Per micro-batch, and after the last one: what every stage takes; C x P each."""
        seconds, tails = [], []
        for pool, run in zip(self.pools, self.runs, strict=True):
            seconds.append(stage_time_s(pool.model, layers, counts)[:, run])
            tails.append(stage_tail_s(pool.model, layers)[:, run])
        return np.concatenate(seconds, axis=1) + self.border_s, np.concatenate(tails, axis=1)

    def iteration_s(self, layers: Array, counts: Array) -> Array:
        """``m max_i T_i + (Σ_i T_i - max_i T_i) / v + max_i tail_i + constant``.

        T_i is what the pool of stage i takes for its layers. Sources: makespan_s of
        planner.schedules.one_f_one_b, whose errors for unequal stages it has; the same form in AMP
        (arXiv 2210.07297) and Metis (SamsungLabs/Metis, model/cost_estimator.py, get_cost).
        """
        seconds, tails = self.times_s(layers, counts)
        rows, strategy = self.pools[0].model, self.strategy
        makespan = makespan_s(
            seconds.max(axis=1),
            seconds.sum(axis=1),
            strategy.num_micro_batches,
            strategy.vpp,
            rows.bubble_filled_s,
        )
        total: Array = makespan + tails.max(axis=1) + self.constant_s
        return total

    @cached_property
    def _affine(self) -> tuple[Array, Array, Array, Array]:
        """Per stage: seconds of a layer, seconds without layers, fewest and most layers; C x P."""
        per_layer, fixed, fewest, most = [], [], [], []
        for pool, run in zip(self.pools, self.runs, strict=True):
            limits = stage_limits(pool.model, sum(self.stages), self.num_layers)
            room = limits.room_bytes / limits.layer_bytes
            held = np.minimum(np.minimum(room, limits.max_host_layers), limits.most)
            per_layer.append(np.repeat(pool.model.layer_s[:, None], run.stop - run.start, axis=1))
            fixed.append(limits.fixed_s[:, run])
            fewest.append(limits.fewest[:, run])
            most.append(np.floor(held + ROUNDING)[:, run])
        joined = [np.concatenate(each, axis=1) for each in (per_layer, fixed, fewest, most)]
        return joined[0], joined[1] + self.border_s, joined[2], joined[3]

    def _least_work_s(self) -> Array:
        per_layer, fixed, _, _ = self._affine
        work: Array = fixed.sum(axis=1) + self.num_layers * per_layer.min(axis=1)
        return work

    def bound_s(self) -> Array:
        """Least iteration over all splits in memory; infinite where none fits.

        The slowest stage takes no less than the least time within which stages hold all layers.
        Excludes reductions behind the last micro-batch.
        """
        per_layer, fixed, fewest, most = self._affine
        fits = (most >= fewest).all(axis=1) & (most.sum(axis=1) >= self.num_layers)
        low = (fixed + per_layer * np.maximum(fewest, 0.0)).max(axis=1)
        high = np.maximum((fixed + per_layer * np.maximum(most, 0.0)).max(axis=1), low)
        held = self._held(low) >= self.num_layers
        least = low.copy()
        for _ in range(NUM_BISECTIONS):
            middle = 0.5 * (low + high)
            enough = self._held(middle) >= self.num_layers
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        slowest = np.where(held, least, low)
        strategy = self.strategy
        work = np.maximum(self._least_work_s(), slowest)
        bubble = (work - slowest) / strategy.vpp
        bound = strategy.num_micro_batches * slowest + bubble + self.constant_s
        return np.where(fits, bound, np.inf)

    def free_bound_s(self) -> Array:
        """Least iteration where memory is no limit and nothing is recomputed.

        At the time T of the slowest stage ``Σ_i (T - fixed_i) / layer_i >= L``: each stage holds a
        layer, so no term is negative.
        """
        per_layer = np.concatenate(
            [
                np.repeat(pool.model.layer_s[:, None], run.stop - run.start, axis=1)
                for pool, run in zip(self.pools, self.runs, strict=True)
            ],
            axis=1,
        )
        stages = np.arange(float(sum(self.stages)))[None, :]
        fixed = self.border_s + np.concatenate(
            [
                fixed_time_s(pool.model, stages)[:, run]
                for pool, run in zip(self.pools, self.runs, strict=True)
            ],
            axis=1,
        )
        held = (fixed / per_layer).sum(axis=1) + self.num_layers
        slowest = np.maximum(held / (1.0 / per_layer).sum(axis=1), fixed.max(axis=1))
        work = np.maximum(fixed.sum(axis=1) + self.num_layers * per_layer.min(axis=1), slowest)
        strategy = self.strategy
        bubble = (work - slowest) / strategy.vpp
        bound: Array = strategy.num_micro_batches * slowest + bubble + self.constant_s
        return bound

    def _held(self, seconds: Array) -> Array:
        """Layers that stages of at most so many seconds hold."""
        per_layer, fixed, fewest, most = self._affine
        number = np.floor((seconds[:, None] - fixed) / per_layer + ROUNDING)
        held: Array = np.clip(number, np.minimum(fewest, most), most).sum(axis=1)
        return held

    def table(self, row: int) -> StageTable:
        """What every stage of a row takes for every number of layers, in its own pool."""
        index = np.array([row])
        tables = [
            stage_table(pool.model.take(index), self.num_layers, UNLIMITED_S) for pool in self.pools
        ]
        pairs = list(zip(tables, self.runs, strict=True))
        seconds = np.concatenate([table.seconds[run] for table, run in pairs])
        return StageTable(
            layers=tables[0].layers,
            seconds=seconds + self.border_s[row][:, None],
            tail_s=np.concatenate([table.tail_s[run] for table, run in pairs]),
            counts=np.concatenate([table.counts[:, run] for table, run in pairs], axis=1),
            is_whole=all(table.is_whole for table in tables),
        )

    def solve(self, row: int, below_s: float = np.inf) -> Split | None:
        """The optimal split of a row; None where none takes at most ``below_s``.

        Layers are dealt out by dynamic programming, by CP-SAT where chunks tie the stages.
        """
        table, strategy = self.table(row), self.strategy
        pipeline = Pipeline(
            num_micro_batches=float(strategy.num_micro_batches[row]),
            vpp=float(strategy.vpp[row]),
            filled_s=0.0,
        )
        rest_s, work_s = float(self.constant_s[row]), float(self._least_work_s()[row])
        dealt = deal(table, self.num_layers, pipeline, work_s, below_s - rest_s)
        if dealt is None or dealt.columns is None:
            return None
        columns, is_optimal = dealt.columns, dealt.is_optimal
        layers = table.layers[columns]
        if not fits_chunks(layers[None], strategy.vpp[row : row + 1])[0]:
            from planner.search.stages.cp_sat import solve_cells  # costs more than most searches

            model = self.pools[0].model.take(np.array([row]))
            found, is_optimal = solve_cells(model, table, self.num_layers, Effort())
            if found is None:
                return None
            columns = found
        stages = np.arange(len(columns))
        seconds = table.seconds[stages, columns]
        total = pipeline.seconds(
            float(seconds.max()), float(seconds.sum()), float(table.tail_s[stages, columns].max())
        )
        return Split(
            layers=table.layers[columns],
            counts=table.counts[:, stages, columns],
            iteration_s=total + rest_s,
            is_optimal=is_optimal and table.is_whole,
        )
