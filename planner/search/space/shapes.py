"""Bounds on a shape before its states are sharded, offloaded and placed.

A shape fixes computation and communication inside a model replica. Everything decided later only
adds time, and the least that can stay on a device is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context, Rowed, unique_rows
from planner.cost.layer import LayerCosts
from planner.cost.module_sets import LayerTable
from planner.cost.pipeline import bubble_filled_s, makespan_s
from planner.cost.policies import offers_activation_offload
from planner.cost.states import expert_shard_degree, shard_degree, state_bytes
from planner.cost.time_terms import straggler_factor
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

    @classmethod
    def joined(cls, parts: Sequence["Footprint"]) -> "Footprint":
        """Return the footprint of all parts, of which there is one at least."""
        return cls(
            context=parts[0].context,
            dense_params=np.concatenate([part.dense_params for part in parts]),
            expert_params=np.concatenate([part.expert_params for part in parts]),
            kept_bytes=np.concatenate([part.kept_bytes for part in parts]),
        )

    def can_fit(self, strategy: StrategyColumns, shape: Index) -> Mask:
        """False only where the mean stage of a strategy of that shape cannot hold its layers."""
        dense_bytes, expert_bytes = _bytes_per_param(self.context, strategy)
        held = self.dense_params[shape] * dense_bytes + self.expert_params[shape] * expert_bytes
        layers = self.context.model.num_blocks / strategy.pp
        return np.asarray(layers * (held + self.kept_bytes[shape]) <= self.context.usable_bytes)


@dataclass(frozen=True, kw_only=True)
class ShapeBounds(Rowed):
    """Per shape: whether it can fit at all, and a lower bound on its iteration time."""

    can_fit: Mask
    lower_s: Array  # Weighed
    weight: Array
    footprint: Footprint


def shape_bounds(
    context: Context,
    shapes: Columns,
    kinds: Sequence[str],
    states: dict[str, list[int]],
    layers: LayerTable | None = None,
    weight_of: Callable[[StrategyColumns], Array] = lambda strategy: np.ones(len(strategy)),
) -> ShapeBounds:
    """Bound every shape; ``states`` holds the values that states may still take."""
    layers = layers or LayerTable(context=context)
    rows = len(shapes["tp"])
    # All layers at once: the table is priced as a whole whenever it grows.
    if rows:
        layers.costs(as_strategies(context, shapes))
    lower, weight, dense, expert, kept = (np.zeros(rows) for _ in range(5))
    num_at_once = 2**17
    for start in range(0, rows, num_at_once):
        part = np.arange(start, min(start + num_at_once, rows))
        strategy = as_strategies(context, take(shapes, part))
        costs = layers.costs(strategy)
        dense[part], expert[part] = costs.at(costs.params), costs.at(costs.expert_params)
        # A layer keeps its input at least, nothing if that is offloaded.
        offered = offers_activation_offload(context, strategy) & ("offloaded" in kinds)
        kept[part] = np.where(offered, 0.0, costs.at(costs.boundary_bytes))
        if tuple(kinds) == ("none",):
            share = costs.num_leading / context.model.num_blocks
            lead, body = costs.lead.saved_bytes, costs.body.saved_bytes
            kept[part] = costs.at(share * lead + (1.0 - share) * body)
        weight[part] = weight_of(strategy)
        lower[part] = weight[part] * _lower_s(context, strategy, costs)
    footprint = Footprint(
        context=context, dense_params=dense, expert_params=expert, kept_bytes=kept
    )
    return ShapeBounds(
        can_fit=_can_fit(footprint, shapes, states),
        lower_s=lower,
        weight=weight,
        footprint=footprint,
    )


def _lower_s(context: Context, strategy: StrategyColumns, costs: LayerCosts) -> Array:
    """Iteration time without any transfer between stages, replicas or to the host.

    The makespan of layers, embedding and head alone, for the best split without regard to memory.
    """
    pace, num_layers = straggler_factor(context, strategy), context.model.num_blocks
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


def _can_fit(footprint: Footprint, shapes: Columns, states: dict[str, list[int]]) -> Mask:
    """False only where the mean stage cannot hold its layers however states are sharded.

    Of the states the least that any ZeRO stage and offload leaves on the device.
    """
    context = footprint.context
    strategy = as_strategies(context, shapes)
    first, index = unique_rows(strategy, (*GPU_DEGREES, "ep", "etp"))
    rows = take(shapes, first)
    held = np.full(len(first), np.inf)
    for zero_stage in states["zero_stage"]:
        for offload in states["offload"]:
            strategy = as_strategies(context, rows, zero_stage=zero_stage, offload=offload)
            dense_bytes, expert_bytes = _bytes_per_param(context, strategy)
            dense, expert = footprint.dense_params[first], footprint.expert_params[first]
            held = np.minimum(held, dense * dense_bytes + expert * expert_bytes)
    layers = context.model.num_blocks / shapes["pp"]
    return np.asarray(layers * (held[index] + footprint.kept_bytes) <= context.usable_bytes)


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
