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
from planner.cost.layer import LayerCosts, layer_costs
from planner.cost.memory import StateBytes, kept_whole, offloads, shard_degree, state_bytes
from planner.cost.offload import host_optimizer_s, nvme_optimizer_s, parameter_fetch_s
from planner.cost.stage import StageModel
from planner.cost.topology import Group, group_of
from planner.layers.op import ZERO
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
    expert_states: StateBytes
    num_shards: Array
    owned_fraction: Array
    """Share of a rank's layer parameters whose optimizer states it updates, experts included."""
    dp: DataParallelCosts
    """For the embedding and the head."""
    layer_dp: DataParallelCosts
    """For a layer: dense parameters over dp, experts over dp / ep."""

    def layer_bytes(self, state: str) -> Array:
        """Bytes of one layer's weights, gradients, optimizer, host or device states."""
        dense, expert = getattr(self.states, state), getattr(self.expert_states, state)
        share = self.expert_fraction
        mean: Array = self.params * (dense * (1.0 - share) + expert * share)
        return mean


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
    fraction = expert / params
    sharded = strategy.zero_stage >= 1
    stages = context.model.num_blocks / strategy.pp
    axis = "dp_cp" if states.sharded_over_cp else "dp"
    dense = data_parallel_costs(
        context, strategy, group_of(axis, strategy, context.cluster), params * stages, params
    )
    layer_dp = dense
    if context.model.moe:
        group = group_of(f"expert_{axis}", strategy, context.cluster)
        expert_dp = data_parallel_costs(context, strategy, group, params * stages, params)
        layer_dp = blended(dense, expert_dp, fraction)
    owned = (1.0 - fraction) / shards + fraction / expert_shards
    return Parts(
        costs=costs,
        params=params,
        expert_fraction=fraction,
        first_params=costs.at(costs.first_params),
        last_params=last_params,
        states=state_bytes(strategy, states, shards),
        expert_states=state_bytes(strategy, states, expert_shards),
        num_shards=np.where(sharded, shards, 1.0),
        owned_fraction=np.where(sharded, owned, 1.0),
        dp=dense,
        layer_dp=layer_dp,
    )


def optimizer_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """Seconds of the optimizer step per parameter of the rank, of which it owns a fraction.

    On the device: ``optimizer_traffic_bytes`` through HBM per owned parameter. Offloaded: host
    Adam and its transfers, and NVMe traffic where the states live there.
    """
    traits, cluster = context.traits, context.cluster
    device = memory_bound_s(owned * traits.overheads.optimizer_traffic_bytes, cluster.accelerator)
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


def overhead_bytes(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes of context, library workspaces, and one buffer set per communicator.

    Communicators of more than one rank are counted for dp, tp, pp, cp and ep; excluded are the
    embedding's and the experts' own data-parallel groups. Source: framework traits.
    """
    overheads = context.traits.overheads
    groups = ZERO + sum(
        1.0 * (getattr(strategy, axis) > 1) for axis in ("dp", "tp", "pp", "cp", "ep")
    )
    fixed = overheads.context_bytes + overheads.workspace_bytes
    total: Array = fixed + groups * overheads.communicator_bytes
    return total


def host_limit(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes of host memory or NVMe one rank may use; infinite where nothing is offloaded."""
    node = context.cluster.node
    host = HOST_USABLE_FRACTION * (node.host_memory_bytes or 0.0) / node.num_accelerators
    nvme = HOST_USABLE_FRACTION * (node.nvme_bytes or 0.0) / node.num_accelerators
    limit = np.where(offloads(strategy, "nvme") > 0, nvme, host)
    return np.where(offloads(strategy, "optimizer") > 0, limit, np.inf)


def transient_layer_bytes(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """Gathered weights and whole gradients of the layers at work under stages 2 and 3.

    ``params · (gathered layers · 2 + whole gradient)`` bytes (arXiv 1910.02054, section 5). The
    caller adds two boundary activations: the gradient a layer receives and the one it returns.
    """
    states = context.traits.states
    split = ~kept_whole(strategy, states)
    gathered = np.where((strategy.zero_stage >= 3) & split, states.zero3_gathered_layers, 0.0)
    whole_gradient = np.where((strategy.zero_stage >= 2) & split, 1.0, 0.0)
    per_param = gathered * GATHERED_WEIGHT_BYTES + whole_gradient * states.gradient_reduce_bytes
    return parts.params * per_param


def stage_model(
    context: Context, strategy: StrategyColumns, parts: Parts | None = None
) -> StageModel:
    """Build the affine stage model of every strategy, from its parts where they are at hand."""
    parts = parts or build_parts(context, strategy)
    costs = parts.costs
    times = layer_times(context, strategy, parts)
    tail_layer, tail_first, tail_last = tail_pieces(context, strategy, parts, times)
    dummy = context.traits.kernels.dummy_weight_gradient_bytes
    saved = costs.at(costs.saved_bytes)
    selective_saved = costs.at(costs.selective_saved_bytes)
    full_saved = costs.at(costs.full_saved_bytes)
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
        stage_static_bytes=costs.at(costs.linear_params) * dummy,
        layer_static_bytes=parts.layer_bytes("device"),
        first_static_bytes=parts.first_params * parts.states.device,
        last_static_bytes=parts.last_params * parts.states.device
        + costs.at(costs.vocab_params) * dummy,
        saved_bytes=saved,
        selective_saved_bytes=selective_saved,
        full_saved_bytes=full_saved,
        first_saved_bytes=costs.at(costs.first_saved_bytes),
        layer_transient_bytes=transient_layer_bytes(context, strategy, parts)
        + 2.0 * costs.at(costs.boundary_bytes),
        last_transient_bytes=costs.at(costs.last_saved_bytes),
        full_workspace_bytes=saved - full_saved,
        selective_workspace_bytes=saved - selective_saved,
        overhead_bytes=overhead_bytes(context, strategy),
        fragmentation_fraction=context.traits.overheads.fragmentation_fraction,
        layer_host_bytes=parts.layer_bytes("host"),
        first_host_bytes=parts.first_params * parts.states.host,
        last_host_bytes=parts.last_params * parts.states.host,
        usable_bytes=context.cluster.accelerator.hbm_bytes * (1.0 - context.margin_fraction),
        host_limit_bytes=host_limit(context, strategy),
    )
