"""Intermediate columns of a strategy: layer costs, parameters, states, data-parallel prices."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.cost.context import Context, Rowed, columns_except, unique_rows
from planner.cost.data_parallel import DataParallelCosts, blended, data_parallel_costs, weight_bytes
from planner.cost.layer import LayerCosts, LayerMemory, layer_costs
from planner.cost.states import (
    FrozenShares,
    StateBytes,
    expert_shard_degree,
    frozen_shares,
    shard_degree,
    state_bytes,
)
from planner.cost.topology import group_of
from planner.layers.weights import mean_states
from planner.spec.strategy import StrategyColumns
from planner.spec.training import FROZEN_BYTES
from planner.units import Array

# What items of time and memory are counted per: every stage; each of its layers; the stages of the
# embedding and of the head; a layer under a policy, and a stage of which some layer is offloaded.
# Memory besides: micro-batches received and sent on; while a layer runs backward; while the loss is
# computed; outside the allocator.
Per = Literal[
    "stage",
    "layer",
    "first",
    "last",
    "selective",
    "full",
    "offloaded",
    "offloading",
    "received",
    "sent",
    "backward",
    "loss",
    "device",
]


@dataclass(frozen=True, kw_only=True)
class StageParameters(Rowed):
    """Intermediate columns shared by the time and memory halves of the builder."""

    context: Context
    strategy: StrategyColumns
    costs: LayerCosts
    params: Array  # Parameters of one layer on one rank
    first_params: Array
    last_params: Array
    """Parameters of the head. Behind the first stage, plus a copy of the embedding each where the
    head is tied to it, and where further tokens are embedded (Megatron-Core has both where both
    hold: gpt_model.py, output_layer)."""
    mtp_params: Array  # Parameters of all multi-token prediction layers, without their experts
    mtp_expert_params: Array
    frozen_elements: Array
    """Weights of one layer that are not trained, as many 16-bit ones as they take bytes."""
    first_frozen_elements: Array
    last_frozen_elements: Array
    frozen: FrozenShares
    states: StateBytes
    """Bytes per parameter of layers; embedding and head differ where the optimizer treats them
    apart."""
    first_states: StateBytes
    last_states: StateBytes
    expert_states: StateBytes
    num_shards: Array
    owned_fraction: Array
    """Share of a rank's layer parameters whose optimizer states it updates, experts included."""
    dp: DataParallelCosts  # Data-parallel costs of the embedding and the head
    layer_dp: DataParallelCosts
    """Data-parallel costs of a layer: dense parameters over dp, experts over their replicas."""

    @property
    def gathered(self) -> Array:
        """Elements of one layer that travel where weights are gathered, frozen ones included."""
        return self.params + self.frozen_elements

    def end_exchange_s(self, end: Literal["first", "last"]) -> Array:
        """Seconds per micro-batch that embedding or head are gathered, and reduced, in."""
        trained: Array = getattr(self, f"{end}_params") * self.dp.both_passes
        frozen: Array = getattr(self, f"{end}_frozen_elements") * self.dp.both_gathers
        further = self.layer_dp.both_passes * self.all_mtp_params * (end == "last")
        return trained + frozen + further

    def frozen_bytes(self, part: Literal["layer", "first", "last"], place: str) -> Array:
        """Bytes of frozen weights of a layer or an end; ``place``: device or host."""
        prefix = "" if part == "layer" else f"{part}_"
        elements: Array = getattr(self, f"{prefix}frozen_elements")
        share: Array = getattr(self.frozen, place)
        return FROZEN_BYTES * elements * share

    def layer_bytes(self, state: str, layer: LayerMemory) -> Array:
        """Bytes of one layer's weights, gradients, optimizer, host or device states."""
        return np.asarray(
            self.costs.at(layer.params) * getattr(self.states, state)
            + self.costs.at(layer.expert_params) * getattr(self.expert_states, state)
        )

    def last_bytes(self, state: str) -> Array:
        """Bytes of the head's and of multi-token prediction's weights, gradients or states."""
        return np.asarray(
            self.last_params * getattr(self.last_states, state)
            + self.mtp_params * getattr(self.states, state)
            + self.mtp_expert_params * getattr(self.expert_states, state)
        )

    @property
    def all_mtp_params(self) -> Array:
        """Parameters of multi-token prediction, experts included."""
        return self.mtp_params + self.mtp_expert_params

    def lead_bytes(self, state: str) -> Array:
        """Return the bytes by which all leading layers differ from as many other layers."""
        costs = self.costs
        difference = self.layer_bytes(state, costs.lead) - self.layer_bytes(state, costs.body)
        return costs.num_leading * difference


def _data_parallel(
    context: Context,
    strategy: StrategyColumns,
    axis: str,
    params: Array,
    frozen: Array,
    expert_fraction: Array,
) -> tuple[DataParallelCosts, DataParallelCosts]:
    """Data-parallel prices of embedding and head, and of a layer; each distinct one priced once."""
    others = ("micro-batch", "sequence parallel", "schedule", "offload")
    rows, index = unique_rows(strategy, columns_except(*others))
    few, params = strategy.take(rows), params[rows]
    states, num_layers = context.traits.states, context.model.num_blocks / few.pp
    group = group_of(axis, few, context.cluster)
    total, frozen = params * num_layers, frozen[rows]
    ends = layer = data_parallel_costs(
        context, few, group, total, params, frozen, weight_shards=states.weight_shards
    )
    if states.keeps_ends_gathered and np.any(few.zero_stage >= 3):
        ends = data_parallel_costs(context, few, group, total, params, stays_gathered=True)
    if context.model.moe:
        experts = group_of(f"expert_{axis}", few, context.cluster)
        of_experts = data_parallel_costs(
            context, few, experts, total, params, weight_shards=states.expert_weight_shards
        )
        layer = blended(layer, of_experts, expert_fraction[rows])
    spread = layer.take(index)
    return spread if ends is layer else ends.take(index), spread


def stage_parameters(
    context: Context, strategy: StrategyColumns, costs: LayerCosts | None = None
) -> StageParameters:
    """Parameters, state bytes and data-parallel prices per strategy; layer costs if not given."""
    costs = costs or layer_costs(context, strategy)
    expert = costs.at(costs.expert_params)
    params = costs.at(costs.params) + expert
    copies = context.model.tied_embeddings + (context.job.mtp_layers > 0)
    copied = copies * costs.at(costs.vocab_params)
    states = context.traits.states
    shards = shard_degree(strategy)
    expert_shards = expert_shard_degree(strategy)
    if context.model.moe and states.splits_experts_by_number:
        expert_shards = np.minimum(expert_shards, context.model.moe.num_experts / strategy.ep)
    fraction = expert / params
    frozen = costs.at(costs.body.frozen_bytes) / FROZEN_BYTES
    sharded = strategy.zero_stage >= 1
    axis = "dp_shard_cp"
    ends_dp, layer_dp = _data_parallel(context, strategy, axis, params, frozen, fraction)
    domain_shards: Array | float = 1.0
    if states.zero3_secondary_weight_bytes:
        domain_shards = group_of(axis, strategy, context.cluster).local
    optimizer = context.traits.optimizer
    means = mean_states(context.model, optimizer)

    cut, experts_cut = states.weight_shards, states.expert_weight_shards

    def states_of(own_bytes: float, num_shards: Array, cut: float) -> StateBytes:
        further = optimizer.master_bytes, domain_shards, cut, optimizer.foreach_fraction
        return state_bytes(strategy, states, num_shards, own_bytes, *further)

    unlike = {each: states_of(each, shards, cut) for each in {means.layer, means.first, means.last}}

    def ends_of(optimizer_bytes: float) -> StateBytes:
        found = unlike[optimizer_bytes]
        keeps = states.keeps_ends_gathered & (strategy.zero_stage >= 3)
        return replace(found, weights=found.weights + weight_bytes(context) * keeps)

    layer_states = expert_states = unlike[means.layer]
    if context.model.moe:
        expert_states = states_of(means.layer, expert_shards, experts_cut)
    owned = (1.0 - fraction) / shards + fraction / expert_shards
    held = (1.0 - fraction) / cut + fraction / experts_cut
    return StageParameters(
        context=context,
        strategy=strategy,
        costs=costs,
        params=params,
        first_params=costs.at(costs.first.params),
        last_params=costs.at(costs.last.params) + np.where(strategy.head_stage > 0, copied, 0.0),
        mtp_params=costs.at(costs.mtp.params),
        mtp_expert_params=costs.at(costs.mtp.expert_params),
        frozen_elements=frozen,
        first_frozen_elements=costs.at(costs.first.frozen_bytes) / FROZEN_BYTES,
        last_frozen_elements=costs.at(costs.last.frozen_bytes) / FROZEN_BYTES,
        frozen=frozen_shares(strategy, states, shards),
        states=layer_states,
        first_states=ends_of(means.first),
        last_states=ends_of(means.last),
        expert_states=expert_states,
        num_shards=np.where(sharded, shards, cut),
        owned_fraction=np.where(sharded, owned, held),
        dp=ends_dp,
        layer_dp=layer_dp,
    )
