"""Builds the StageModel of a column of strategies from the layer costs."""

from dataclasses import dataclass

import numpy as np

from planner.cost.collectives import collective_s, point_to_point_s
from planner.cost.context import Context
from planner.cost.data_parallel import (
    GATHERED_WEIGHT_BYTES,
    DataParallelCosts,
    blended,
    contended_s,
    data_parallel_costs,
    exposed_and_busy,
)
from planner.cost.kernels import memory_bound_s
from planner.cost.layer import LayerCosts, LayerMemory, layer_costs
from planner.cost.memory import StateBytes, kept_whole, offloads, shard_degree, state_bytes
from planner.cost.offload import host_optimizer_s, nvme_optimizer_s, parameter_fetch_s
from planner.cost.stage import StageModel
from planner.cost.topology import Group, group_of
from planner.layers.op import ZERO
from planner.layers.optimizer_states import mean_states
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Mask

HOST_USABLE_FRACTION = 0.9
"""Of host memory; the rest is left to the operating system and data loading."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Intermediate columns shared by the time and memory halves of the builder."""

    costs: LayerCosts
    params: Array
    """Parameters of one layer on one rank."""
    expert_fraction: Array
    first_params: Array
    last_params: Array
    states: StateBytes
    """Of layers; embedding and head differ where the optimizer treats them apart."""
    first_states: StateBytes
    last_states: StateBytes
    expert_states: StateBytes
    num_shards: Array
    owned_fraction: Array
    """Share of a rank's layer parameters whose optimizer states it updates, experts included."""
    dp: DataParallelCosts
    """For the embedding and the head."""
    layer_dp: DataParallelCosts
    """For a layer: dense parameters over dp, experts over dp / ep."""

    def layer_bytes(self, state: str, layer: LayerMemory) -> Array:
        """Bytes of one layer's weights, gradients, optimizer, host or device states."""
        dense, expert = getattr(self.states, state), getattr(self.expert_states, state)
        total: Array = (
            self.costs.at(layer.params) * dense + self.costs.at(layer.expert_params) * expert
        )
        return total

    def lead_bytes(self, state: str) -> Array:
        """By how many bytes all leading layers together differ from as many other layers."""
        costs = self.costs
        difference = self.layer_bytes(state, costs.lead) - self.layer_bytes(state, costs.body)
        return costs.num_leading * difference


def build_parts(context: Context, strategy: StrategyColumns) -> Parts:
    """Layer costs, parameters, state bytes and data-parallel prices per strategy."""
    costs = layer_costs(context.model, context.job, context.cluster, context.traits, strategy)
    expert = costs.at(costs.expert_params)
    params = costs.at(costs.params) + expert
    last_params = costs.at(costs.last_params)
    if context.model.tied_embeddings:
        last_params = last_params + np.where(strategy.pp > 1, costs.at(costs.vocab_params), 0.0)
    states = context.traits.states
    shards = shard_degree(strategy, states)
    expert_shards = np.maximum(shards / strategy.ep, 1.0)
    if context.model.moe and states.splits_experts_by_number:
        expert_shards = np.minimum(expert_shards, context.model.moe.num_experts / strategy.ep)
    fraction = expert / params
    sharded = strategy.zero_stage >= 1
    stages = context.model.num_blocks / strategy.pp
    axis = "dp_shard_cp" if states.sharded_over_cp else "dp_shard"
    dense = data_parallel_costs(
        context, strategy, group_of(axis, strategy, context.cluster), params * stages, params
    )
    layer_dp = dense
    if context.model.moe:
        group = group_of(f"expert_{axis}", strategy, context.cluster)
        expert_dp = data_parallel_costs(context, strategy, group, params * stages, params)
        layer_dp = blended(dense, expert_dp, fraction)
    optimizer = context.traits.optimizer
    means = mean_states(context.model, optimizer)

    def states_of(optimizer_bytes: float, num_shards: Array) -> StateBytes:
        return state_bytes(strategy, states, num_shards, optimizer_bytes, optimizer.master_bytes)

    layer_states = states_of(means.layer, shards)
    owned = (1.0 - fraction) / shards + fraction / expert_shards
    return Parts(
        costs=costs,
        params=params,
        expert_fraction=fraction,
        first_params=costs.at(costs.first_params),
        last_params=last_params,
        states=layer_states,
        first_states=layer_states if means.first == means.layer else states_of(means.first, shards),
        last_states=layer_states if means.last == means.layer else states_of(means.last, shards),
        expert_states=states_of(means.layer, expert_shards),
        num_shards=np.where(sharded, shards, 1.0),
        owned_fraction=np.where(sharded, owned, 1.0),
        dp=dense,
        layer_dp=layer_dp,
    )


def optimizer_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """Seconds of the optimizer step per parameter of the rank, of which it owns a fraction.

    On the device: the optimizer's ``step_traffic_bytes`` through HBM per owned parameter.
    Offloaded: host Adam and its transfers, and NVMe traffic where the states live there.
    """
    traits, cluster = context.traits, context.cluster
    device = memory_bound_s(owned * traits.optimizer.step_traffic_bytes, cluster.accelerator)
    host = host_optimizer_s(owned, traits.states.gradient_reduce_bytes, cluster)
    disk = nvme_optimizer_s(owned, cluster)
    host = host + np.where(offloads(strategy, "nvme") > 0, disk, 0.0)
    return np.where(offloads(strategy, "optimizer") > 0, host, device)


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer per micro-batch with stage-3 gathers and parameter offload."""

    forward: Array
    backward: Array
    sharding_busy: Array
    sharding_exposed: Array
    offload_busy: Array
    offload_exposed: Array


def layer_times(context: Context, strategy: StrategyColumns, parts: Parts) -> LayerTimes:
    """Overlap a layer's compute with its stage-3 gathers, then with fetches from the host."""
    contention = context.traits.overlap.contention_fraction
    forward = parts.costs.exposed_at(parts.costs.forward)
    backward = parts.costs.exposed_at(parts.costs.backward)
    gather = parts.params * parts.layer_dp.layer_forward
    exchange = parts.params * parts.layer_dp.layer_backward
    sharded_forward = contended_s(forward, gather, contention)
    sharded_backward = contended_s(backward, exchange, contention)
    shard = np.where(strategy.zero_stage >= 3, parts.num_shards, 1.0)
    fetch = parameter_fetch_s(parts.params * GATHERED_WEIGHT_BYTES / shard, context.cluster)
    fetch = fetch * offloads(strategy, "parameters")
    offloaded = np.maximum(sharded_forward, fetch) + np.maximum(sharded_backward, fetch)
    return LayerTimes(
        forward=sharded_forward,
        backward=sharded_backward,
        sharding_busy=gather + exchange,
        sharding_exposed=sharded_forward + sharded_backward - forward - backward,
        offload_busy=2.0 * fetch,
        offload_exposed=offloaded - sharded_forward - sharded_backward,
    )


def link_seconds(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Busy seconds of activations and gradients crossing one stage boundary, all chunks.

    Every tp rank sends its 1/tp of the boundary; without sequence parallelism the receiver
    gathers the whole over tp (scatter/gather, arXiv 2104.04473, section 4.1).
    """
    domain = context.cluster.node.scale_up.num_accelerators
    crosses: Mask = strategy.num_gpus > domain
    held = parts.costs.at(parts.costs.boundary_bytes)
    whole = strategy.sequence_parallel == 0
    sent = held / np.where(whole, strategy.tp, 1)
    seconds = point_to_point_s(sent, crosses=crosses, cluster=context.cluster)
    tp_group = group_of("tp", strategy, context.cluster)
    gather = collective_s("all_gather", held * whole, tp_group, context.cluster)
    return np.where(strategy.pp > 1, 2.0 * (seconds + gather) * strategy.vpp, 0.0)


def sent_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes a stage keeps of what it sent on: h per token, divided over tp."""
    held = parts.costs.at(parts.costs.boundary_bytes)
    share = np.where(strategy.sequence_parallel == 0, strategy.tp, 1)
    keeps = context.traits.states.keeps_stage_outputs & (strategy.pp > 1)
    return np.where(keeps, held / share, 0.0)


def receive_buffer_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes of one receive buffer: the boundary activation of a micro-batch."""
    keeps = context.traits.states.receives_into_own_buffers & (strategy.pp > 1)
    return np.where(keeps, parts.costs.at(parts.costs.boundary_bytes), 0.0)


def tied_embedding_s(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """All-reduce of the shared vocabulary gradient between first and last stage."""
    if not context.model.tied_embeddings:
        return np.zeros(len(strategy))
    group = Group(
        size=np.minimum(strategy.pp, 2),
        local=np.where(
            strategy.num_gpus <= context.cluster.node.scale_up.num_accelerators,
            np.minimum(strategy.pp, 2),
            1,
        ),
    )
    num_bytes = parts.costs.at(parts.costs.vocab_params) * (
        context.traits.states.gradient_reduce_bytes
    )
    return collective_s("all_reduce", num_bytes, group, context.cluster)


def tail_pieces(
    context: Context, strategy: StrategyColumns, parts: Parts, times: LayerTimes
) -> tuple[Array, Array, Array]:
    """Affine pieces of the tail per layer, embedding and head; each (2, C).

    Exposed reduction is ``max(busy - hideable share, busy - overlap window)``; the window is the
    stage's last backward (and first forward for the weight gather). The optimizer step follows.
    """
    overlap = context.traits.overlap
    window = times.backward * (overlap.data_parallel_hidden_fraction > 0)
    window = window + times.forward * (overlap.parameter_gather_hidden_fraction > 0)
    layer_step = optimizer_s_per_param(context, strategy, parts.owned_fraction)
    end_step = optimizer_s_per_param(context, strategy, 1.0 / parts.num_shards)
    layer_shown, layer_busy = exposed_and_busy(context, parts.layer_dp)
    shown, busy = exposed_and_busy(context, parts.dp)
    layer = np.stack(
        [
            parts.params * (layer_shown + layer_step),
            parts.params * (layer_busy + layer_step) - window,
        ]
    )
    ends = np.stack([shown + end_step, busy + end_step])
    return layer, parts.first_params * ends, parts.last_params * ends


def workspace_bytes(context: Context) -> float:
    """Bytes of the matrix libraries' workspaces, allocated once and kept."""
    overheads = context.traits.overheads
    grouped = overheads.grouped_gemm_workspace_bytes if context.model.moe else 0.0
    return overheads.workspace_bytes + grouped


def bucket_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes of communication buckets: ``num_buckets · 2 · min(bucket_elements, params)``.

    ``params`` is the mean over stages of what a rank holds. Source: framework traits.
    """
    overheads = context.traits.overheads
    layers = context.model.num_blocks * parts.params
    held = (layers + parts.first_params + parts.last_params) / strategy.pp
    return overheads.num_buckets * 2.0 * np.minimum(overheads.bucket_elements, held)


def largest_gradient_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes kept for the largest tensor's gradient beside its share: that of the vocabulary.

    ``vocab_params · (copy + whole · (1 - 1/N) at stage 2)``. Source: framework traits.
    """
    states = context.traits.states
    whole = states.whole_tensor_gradient_bytes * (1.0 - 1.0 / parts.num_shards)
    per_element = states.largest_gradient_copy_bytes + np.where(
        strategy.zero_stage == 2, whole, 0.0
    )
    total: Array = parts.costs.at(parts.costs.vocab_params) * per_element
    return total


def gather_pool_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes of buffers that gathered weights arrive in: a layer's, and the largest unit's.

    ``2 · (layer + max(layer, embedding, head))`` where another stream owns them (stage 3, or
    stage 2 under pipelining); where gradients stay whole until the last micro-batch, their shards
    arrive in such buffers too.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    states = context.traits.states
    gathers = (strategy.zero_stage >= 3) | kept_whole(strategy, states) & (strategy.zero_stage >= 2)
    largest = np.maximum(np.maximum(parts.first_params, parts.last_params), parts.params)
    pool = GATHERED_WEIGHT_BYTES * (parts.params + largest)
    whole = kept_whole(strategy, states) * parts.params * context.model.num_blocks / strategy.pp
    pool = pool + whole * states.gradient_bytes / parts.num_shards
    return np.where(gathers & states.gathers_in_own_stream, pool, 0.0)


def context_bytes(context: Context) -> float:
    """Bytes of the device context: hwdb's figure for the accelerator, else the framework's."""
    return context.cluster.accelerator.context_bytes or context.traits.overheads.context_bytes


def overhead_bytes(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes outside the allocator: context, and one buffer set per communicator.

    Communicators of more than one rank are counted for dp, tp, pp, cp and ep; excluded are the
    embedding's and the experts' own data-parallel groups. Source: framework traits.
    """
    overheads = context.traits.overheads
    groups = ZERO + sum(
        1.0 * (getattr(strategy, axis) > 1) for axis in ("dp", "tp", "pp", "cp", "ep")
    )
    total: Array = context_bytes(context) + groups * overheads.communicator_bytes
    return total


def host_limit(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes of host memory or NVMe one rank may use; infinite where nothing is offloaded."""
    node = context.cluster.node
    host = HOST_USABLE_FRACTION * (node.host_memory_bytes or 0.0) / node.num_accelerators
    nvme = HOST_USABLE_FRACTION * (node.nvme_bytes or 0.0) / node.num_accelerators
    limit = np.where(offloads(strategy, "nvme") > 0, nvme, host)
    return np.where(offloads(strategy, "optimizer") > 0, limit, np.inf)


def gathered_head_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Bytes of the head's gathered weights while the loss is computed (stage 3)."""
    gathers = (strategy.zero_stage >= 3) & ~kept_whole(strategy, context.traits.states)
    return np.where(gathers, GATHERED_WEIGHT_BYTES * parts.last_params, 0.0)


def transient_layer_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Gathered weights and whole gradients of the layers at work under stages 2 and 3.

    ``2 · min(gathered layers · params, live limit) + params · whole gradient`` bytes (arXiv
    1910.02054, section 5); gradients that leave through a bucket are counted there. The caller
    adds the activation gradients of :func:`planner.layers.block.backward_tensors`.
    """
    states = context.traits.states
    split = ~kept_whole(strategy, states)
    layers = np.where((strategy.zero_stage >= 3) & split, states.zero3_gathered_layers, 0.0)
    live = np.minimum(layers * parts.params, states.zero3_live_elements)
    has_bucket = context.traits.overheads.num_buckets > 0
    whole = np.where((strategy.zero_stage >= 2) & split & (not has_bucket), parts.params, 0.0)
    return GATHERED_WEIGHT_BYTES * live + whole * states.gradient_reduce_bytes


def stage_model(
    context: Context, strategy: StrategyColumns, parts: Parts | None = None
) -> StageModel:
    """Build the affine stage model of every strategy, from its parts where they are at hand."""
    parts = parts or build_parts(context, strategy)
    costs = parts.costs
    times = layer_times(context, strategy, parts)
    tail_layer, tail_first, tail_last = tail_pieces(context, strategy, parts, times)
    dummy = context.traits.kernels.dummy_weight_gradient_bytes
    body, lead = costs.body, costs.lead
    gradient_copy = largest_gradient_bytes(context, strategy, parts)
    saved = costs.at(body.saved_bytes)
    selective_saved = costs.at(body.selective_saved_bytes)
    full_saved = costs.at(costs.boundary_bytes)
    largest = costs.at(costs.largest_saved_bytes)
    gathers = parts.dp.layer_forward + parts.dp.layer_backward
    p2p_exposed = context.traits.overlap.pipeline_p2p_exposed_fraction
    return StageModel(
        strategy=strategy,
        layer_s=times.forward + times.backward + times.offload_exposed,
        selective_s=costs.exposed_at(costs.selective),
        full_s=costs.exposed_at(costs.forward),
        first_s=costs.exposed_at(costs.first) + parts.first_params * gathers,
        last_s=costs.exposed_at(costs.last) + parts.last_params * gathers,
        link_s=link_seconds(context, strategy, parts) * p2p_exposed,
        tail_layer_s=tail_layer,
        tail_first_s=tail_first,
        tail_last_s=tail_last,
        constant_s=tied_embedding_s(context, strategy, parts)
        + context.traits.overheads.step_overhead_s,
        stage_static_bytes=costs.at(costs.linear_params) * dummy
        + workspace_bytes(context)
        + bucket_bytes(context, strategy, parts)
        + gather_pool_bytes(context, strategy, parts),
        layer_static_bytes=parts.layer_bytes("device", body),
        first_static_bytes=parts.first_params * parts.first_states.device
        + parts.lead_bytes("device")
        + gradient_copy,
        last_static_bytes=parts.last_params * parts.last_states.device
        + gradient_copy * (strategy.pp > 1)
        + costs.at(costs.vocab_params) * dummy,
        saved_bytes=saved,
        selective_saved_bytes=selective_saved,
        full_saved_bytes=full_saved,
        num_leading=costs.num_leading,
        lead_saved_bytes=costs.at(lead.saved_bytes) - saved,
        lead_selective_saved_bytes=costs.at(lead.selective_saved_bytes) - selective_saved,
        first_saved_bytes=costs.at(costs.first_saved_bytes),
        receive_buffer_bytes=receive_buffer_bytes(context, strategy, parts),
        sent_saved_bytes=sent_bytes(context, strategy, parts),
        layer_transient_bytes=transient_layer_bytes(context, strategy, parts)
        + costs.at(costs.backward_bytes),
        last_transient_bytes=costs.at(costs.last_saved_bytes)
        + gathered_head_bytes(context, strategy, parts),
        full_workspace_bytes=largest - full_saved,
        selective_workspace_bytes=largest - costs.at(costs.largest_selective_saved_bytes),
        overhead_bytes=overhead_bytes(context, strategy),
        fragmentation_fraction=context.traits.overheads.fragmentation_fraction,
        layer_host_bytes=parts.layer_bytes("host", body),
        first_host_bytes=parts.first_params * parts.first_states.host + parts.lead_bytes("host"),
        last_host_bytes=parts.last_params * parts.last_states.host,
        usable_bytes=context.cluster.accelerator.hbm_bytes * (1.0 - context.margin_fraction),
        host_limit_bytes=host_limit(context, strategy),
    )
