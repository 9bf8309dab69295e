"""Bounds on a shape before its states are sharded, offloaded and placed.

A shape fixes computation and communication inside a model replica. Everything decided later only
adds time, and the least that can stay on a device is known.
"""

from collections.abc import Callable, Mapping, Sequence
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
from planner.layers.weights import mean_states
from planner.search.space.interleaving import slowest_stage_s
from planner.search.space.space import Columns, take
from planner.spec.strategy import GPU_DEGREES, STATES, STRATEGY_FIELDS, StrategyColumns
from planner.units import Array, Index, Mask


def as_strategies(context: Context, shapes: Columns, **states: int) -> StrategyColumns:
    """Shapes as strategies with the given choice of states; by default nothing is sharded."""
    rows = len(shapes["tp"])
    chosen = {**{name: STRATEGY_FIELDS[name].neutral for name in STATES}, **states}
    return StrategyColumns(
        num_micro_batches=context.job.global_batch // (shapes["dp"] * shapes["micro_batch"]),
        **shapes,
        **{name: np.broadcast_to(value, rows) for name, value in chosen.items()},
    )


@dataclass(frozen=True, kw_only=True)
class Footprint(Rowed):
    """Memory of the mean stage of every shape, but for how its states are sharded."""

    context: Context
    dense_params: Array  # Per layer and rank
    expert_params: Array
    kept_bytes: Array  # the least a layer keeps of one micro-batch

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
        """Bytes of a layer's states on the device."""
        dense_bytes, expert_bytes = _bytes_per_param(self.context, strategy)
        return self.dense_params[shape] * dense_bytes + self.expert_params[shape] * expert_bytes


def shape_bounds(
    context: Context, shapes: Columns, kinds: Sequence[str], layers: LayerTable
) -> tuple[Array, Footprint]:
    """Return a lower bound on every shape's iteration time, and what it takes of memory."""
    strategy = as_strategies(context, shapes)
    costs = layers.costs(strategy)
    # A layer keeps its input at least, nothing if that is offloaded.
    offered = offers_activation_offload(context, strategy) & ("offloaded" in kinds)
    kept_bytes = np.where(offered, 0.0, costs.at(costs.boundary_bytes))
    if tuple(kinds) == ("none",):
        share = costs.num_leading / context.model.num_blocks
        lead, body = costs.lead.saved_bytes, costs.body.saved_bytes
        kept_bytes = costs.at(share * lead + (1.0 - share) * body)
    return _lower_s(context, strategy, costs), Footprint(
        context=context,
        dense_params=costs.at(costs.params),
        expert_params=costs.at(costs.expert_params),
        kept_bytes=kept_bytes,
    )


def _lower_s(context: Context, strategy: StrategyColumns, costs: LayerCosts) -> Array:
    """Iteration time without any transfer between stages, replicas or to the host.

    The makespan of layers, embedding and head alone, for the best split without regard to memory.
    """
    pace, num_layers = straggler_slowdown(strategy.num_gpus), context.model.num_blocks
    forward = costs.exposed_at(costs.forward)
    backward = costs.exposed_at(costs.backward)
    layer_s = pace * (forward + backward)
    first_s, last_s = (pace * costs.exposed_at(end.both) for end in (costs.first, costs.last))
    last_s = last_s + pace * costs.exposed_at(costs.mtp.time)
    work = layer_s * num_layers + first_s + last_s
    slowest = slowest_stage_s(strategy, num_layers, layer_s, first_s, last_s)
    filled = pace * bubble_filled_s(context, strategy, forward, backward)
    makespan = makespan_s(strategy, slowest, work, filled)
    return makespan + context.traits.overheads.step_overhead_s


def _bytes_per_param(context: Context, strategy: StrategyColumns) -> tuple[Array, Array]:
    """Bytes on the device per parameter, dense and of experts; never too many."""
    traits, optimizer = context.traits.states, context.traits.optimizer
    mean = mean_states(context.model, optimizer).layer
    shards = (shard_degree(strategy), expert_shard_degree(strategy))
    dense, expert = (
        state_bytes(strategy, traits, number, mean, optimizer.master_bytes, 2.0**40).device
        for number in shards
    )
    return dense, expert
