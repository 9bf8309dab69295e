"""Bounds on a shape before its micro-batch is chosen, and its states sharded and placed.

A shape fixes computation and communication inside a model replica. Everything decided later only
adds time, and the least that can stay on a device is known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.cost.buffers import context_bytes
from planner.cost.context import Context, Rowed, unique_rows
from planner.cost.layer import LayerCosts
from planner.cost.module_sets import LayerTable
from planner.cost.overlap import straggler_slowdown
from planner.cost.pipeline import bubble_filled_s, makespan_s
from planner.cost.policies import offers_activation_offload
from planner.cost.states import expert_shard_degree, shard_degree, state_bytes
from planner.layers.op import AXES
from planner.layers.weights import mean_states
from planner.search.space.interleaving import slowest_stage_s
from planner.search.space.space import Columns, Enumeration, take
from planner.spec.strategy import (
    GPU_DEGREES,
    MICRO_BATCH,
    SCHEDULES,
    SEARCHED_FIELDS,
    STRATEGY_FIELDS,
    StrategyColumns,
)
from planner.units import Array, Index, Mask


def as_strategies(context: Context, shapes: Columns, **chosen: int) -> StrategyColumns:
    """Shapes as strategies with given choices; of the rest nothing is split, sharded or moved."""
    rows = len(shapes["tp"])
    given = {name: STRATEGY_FIELDS[name].neutral for name in SEARCHED_FIELDS} | shapes | chosen
    columns = {name: np.broadcast_to(value, rows) for name, value in given.items()}
    return StrategyColumns(
        num_micro_batches=context.job.global_batch // (columns["dp"] * columns["micro_batch"]),
        **columns,
    )


@dataclass(frozen=True, kw_only=True)
class ShapeBounds(Rowed):
    """Least time of every shape, and memory of its mean stage but for how states are sharded."""

    context: Context
    least_s: Array  # Of an iteration; infinite where no micro-batch is legal
    dense_params: Array  # Per layer and rank
    expert_params: Array
    kept_bytes: Array  # The least a layer keeps of one micro-batch

    @property
    def limit_bytes(self) -> float:
        """The most that tensors may take: StageModel.held_limit_bytes without communicators."""
        overheads = self.context.traits.overheads
        limit_bytes = self.context.usable_bytes - context_bytes(self.context)
        return limit_bytes / (1.0 + overheads.fragmentation_fraction)

    def can_fit(self, strategy: StrategyColumns, shape: Index) -> Mask:
        """False only where the mean stage of a strategy of that shape cannot hold its layers."""
        layers = self.context.model.num_blocks / strategy.pp
        held_bytes = self._state_bytes(strategy, shape) + self.kept_bytes[shape]
        return np.asarray(layers * held_bytes <= self.limit_bytes)

    def least_weight(
        self,
        shapes: Columns,
        states: Mapping[str, Sequence[int]],
        weight_of: Callable[[StrategyColumns], Array] = lambda strategy: np.ones(len(strategy)),
    ) -> Array:
        """Least weight of a ZeRO stage and offload under which a shape can fit; infinite: none.

        However states are sharded otherwise: of them the least that may stay on the device.
        """
        context = self.context
        first, index = unique_rows(as_strategies(context, shapes), (*GPU_DEGREES, "ep", "etp"))
        # Of one micro-batch nothing is accumulated.
        rows = take(shapes, first)
        rows["micro_batch"] = context.job.global_batch // rows["dp"]
        layers = context.model.num_blocks / shapes["pp"]
        least = np.full(len(index), np.inf)
        for zero_stage, offload in product(states["zero_stage"], states["offload"]):
            strategy = as_strategies(context, rows, zero_stage=zero_stage, offload=offload)
            held_bytes = self._state_bytes(strategy, first)[index] + self.kept_bytes
            weight = np.where(layers * held_bytes <= self.limit_bytes, 1.0, np.inf)
            least = np.minimum(least, weight * weight_of(strategy)[index])
        return least

    def _state_bytes(self, strategy: StrategyColumns, shape: Index) -> Array:
        """Bytes of a layer's states on the device; never too many."""
        traits, optimizer = self.context.traits.states, self.context.traits.optimizer
        mean = mean_states(self.context.model, optimizer).layer
        dense_bytes, expert_bytes = (
            state_bytes(strategy, traits, shards, mean, optimizer.master_bytes, 2.0**40).device
            for shards in (shard_degree(strategy), expert_shard_degree(strategy))
        )
        return self.dense_params[shape] * dense_bytes + self.expert_params[shape] * expert_bytes


def micro_batch_bounds(
    enumeration: Enumeration, shapes: Columns, layers: LayerTable
) -> ShapeBounds:
    """Return bounds on micro-batched shapes."""
    context, kinds = enumeration.context, enumeration.narrowing.kinds
    strategy = as_strategies(context, shapes)
    costs = layers.costs(strategy)
    forward = costs.exposed_at(costs.forward)
    backward = costs.exposed_at(costs.backward)
    filled_s = bubble_filled_s(context, strategy, forward, backward)
    figures = _least_of_layers(context, strategy, kinds, costs)
    return _bounds(context, strategy, kinds, figures, filled_s / strategy.micro_batch)


def shape_bounds(enumeration: Enumeration, shapes: Columns, layers: LayerTable) -> ShapeBounds:
    """Return bounds on shapes that hold for every micro-batch.

    A sequence takes no less than with the micro-batch of which it takes least, and bubbles are
    smallest with the smallest micro-batch.
    """
    context, kinds = enumeration.context, enumeration.narrowing.kinds
    first, index = unique_rows(as_strategies(context, shapes), AXES)
    few, place = enumeration.expanded({name: shapes[name][first] for name in AXES}, MICRO_BATCH)
    strategy = as_strategies(context, few)
    each = _least_of_layers(context, strategy, kinds, layers.costs(strategy))
    least = np.full((len(first), 1 + len(each)), np.inf)
    np.minimum.at(least, place, np.vstack([strategy.micro_batch, each]).T)
    has_any = np.isfinite(least[:, :1])
    smallest, *figures = np.where(has_any, least, 1.0)[index].T
    strategy = as_strategies(context, {**shapes, "micro_batch": smallest.astype(int)})
    # Weight gradients may fill all of a bubble.
    filled_s = np.where(strategy.schedule >= SCHEDULES.index("zb-h1"), np.inf, 0.0)
    bounds = _bounds(context, strategy, kinds, figures, filled_s)
    return bounds.but(least_s=np.where(has_any[index, 0], bounds.least_s, np.inf))


def _least_of_layers(
    context: Context, strategy: StrategyColumns, kinds: Sequence[str], costs: LayerCosts
) -> Array:
    """Seconds of a sequence in a layer, the embedding and the head; memory of a layer.

    That is its parameters, dense and of experts, and the least bytes of a micro-batch it keeps: its
    input, or all.
    """
    layer_s = costs.exposed_at(costs.forward) + costs.exposed_at(costs.backward)
    last_s = costs.exposed_at(costs.last.both) + costs.exposed_at(costs.mtp.time)
    times = (layer_s, costs.exposed_at(costs.first.both), last_s)
    kept_bytes = costs.boundary_bytes
    if tuple(kinds) == ("none",):
        share = costs.num_leading / context.model.num_blocks
        kept_bytes = share * costs.lead.saved_bytes + (1.0 - share) * costs.body.saved_bytes
    memory = (costs.params, costs.expert_params, kept_bytes)
    per_sequence = [each / strategy.micro_batch for each in times]
    return np.stack([*per_sequence, *map(costs.at, memory)])


def _bounds(
    context: Context,
    strategy: StrategyColumns,
    kinds: Sequence[str],
    figures: Iterable[Array],
    filled_s: Array,
) -> ShapeBounds:
    """Bounds of least figures: time without transfers between stages, replicas or to the host.

    The makespan of layers, embedding and head alone, for the best split without regard to memory.
    """
    pace, num_layers = straggler_slowdown(strategy.num_gpus), context.model.num_blocks
    layer_s, first_s, last_s, dense_params, expert_params, kept_bytes = figures
    work = layer_s * num_layers + first_s + last_s
    slowest = slowest_stage_s(strategy, num_layers, layer_s, first_s, last_s)
    # What is offloaded keeps nothing.
    offered = offers_activation_offload(context, strategy) & ("offloaded" in kinds)
    return ShapeBounds(
        context=context,
        least_s=pace * strategy.micro_batch * makespan_s(strategy, slowest, work, filled_s)
        + context.traits.overheads.step_overhead_s,
        dense_params=dense_params,
        expert_params=expert_params,
        kept_bytes=np.where(offered, 0.0, kept_bytes),
    )
