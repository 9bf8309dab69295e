"""Builds the StageModel of a column of strategies from the layer costs."""

from dataclasses import dataclass

import numpy as np

from planner.cost.buffers import (
    bucket_bytes,
    dead_block_bytes,
    embedding_gradient_bytes,
    gather_pool_bytes,
    gathered_head_bytes,
    kept_logits_bytes,
    largest_gradient_bytes,
    offload_buffer_bytes,
    overhead_bytes,
    receive_buffer_bytes,
    sent_bytes,
    transient_layer_bytes,
    workspace_bytes,
)
from planner.cost.collectives import collective_s, point_to_point_s
from planner.cost.context import Context
from planner.cost.data_parallel import GATHERED_WEIGHT_BYTES, contended_s, exposed_and_busy
from planner.cost.kernels import memory_bound_s
from planner.cost.memory import offloads
from planner.cost.offload import host_optimizer_s, nvme_optimizer_s, parameter_fetch_s
from planner.cost.parts import Parts, build_parts
from planner.cost.pipeline import bubble_filled_s
from planner.cost.stage import StageModel
from planner.cost.topology import Group, group_of
from planner.spec.strategy import StrategyColumns
from planner.units import Array

HOST_USABLE_FRACTION = 0.9
"""Of host memory; the rest is left to the operating system and data loading."""


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
    """Overlap a layer's compute with its stage-3 gathers, then with traffic to the host.

    Offloaded parameters come from the host before both passes, offloaded activations go there
    in forward and come back in backward.
    """
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
    saved = parts.costs.at(parts.costs.body.saved_bytes) * offloads(strategy, "activations")
    fetch = fetch + parameter_fetch_s(saved, context.cluster)
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
    held = parts.costs.at(parts.costs.boundary_bytes)
    whole = strategy.sequence_parallel == 0
    sent = held / np.where(whole, strategy.tp, 1)
    stages = group_of("pp", strategy, context.cluster)
    seconds = point_to_point_s(sent, stages, context.cluster)
    tp_group = group_of("tp", strategy, context.cluster)
    gather = collective_s("all_gather", held * whole, tp_group, context.cluster)
    return np.where(strategy.pp > 1, 2.0 * (seconds + gather) * strategy.vpp, 0.0)


def tied_embedding_s(context: Context, strategy: StrategyColumns, parts: Parts) -> Array:
    """All-reduce of the shared vocabulary gradient between first and last stage."""
    if not context.model.tied_embeddings:
        return np.zeros(len(strategy))
    stages, both = group_of("pp", strategy, context.cluster), np.minimum(strategy.head_stage + 1, 2)
    group = Group(
        members=tuple(np.where(inside >= strategy.pp, both, 1) for inside in stages.members),
        domain=stages.domain,
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


def host_limit(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes of host memory or NVMe one rank may use; infinite where nothing is offloaded."""
    node = context.cluster.node
    host = HOST_USABLE_FRACTION * (node.host_memory_bytes or 0.0) / node.num_accelerators
    nvme = HOST_USABLE_FRACTION * (node.nvme_bytes or 0.0) / node.num_accelerators
    limit = np.where(offloads(strategy, "nvme") > 0, nvme, host)
    return np.where(strategy.offload > 0, limit, np.inf)


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
    stays = 1.0 - offloads(strategy, "activations")
    saved = costs.at(body.saved_bytes) * stays
    selective_saved = costs.at(body.selective_saved_bytes) * stays
    full_saved = costs.at(costs.boundary_bytes) * stays
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
        bubble_filled_s=bubble_filled_s(context, strategy, times.forward, times.backward),
        tail_layer_s=tail_layer,
        tail_first_s=tail_first,
        tail_last_s=tail_last,
        constant_s=tied_embedding_s(context, strategy, parts)
        + context.traits.overheads.step_overhead_s,
        stage_static_bytes=costs.at(costs.linear_params) * dummy
        + workspace_bytes(context)
        + bucket_bytes(context, strategy, parts)
        + gather_pool_bytes(context, strategy, parts)
        + dead_block_bytes(context, strategy, parts)
        + offload_buffer_bytes(strategy, parts),
        layer_static_bytes=parts.layer_bytes("device", body),
        first_static_bytes=parts.first_params * parts.first_states.device
        + parts.lead_bytes("device")
        + gradient_copy
        + embedding_gradient_bytes(context, strategy, parts),
        last_static_bytes=parts.last_params * parts.last_states.device
        + gradient_copy * (strategy.head_stage > 0)
        + kept_logits_bytes(context, strategy, parts)
        + costs.at(costs.vocab_params) * dummy,
        saved_bytes=saved,
        selective_saved_bytes=selective_saved,
        full_saved_bytes=full_saved,
        num_leading=costs.num_leading,
        lead_saved_bytes=costs.at(lead.saved_bytes) * stays - saved,
        lead_selective_saved_bytes=costs.at(lead.selective_saved_bytes) * stays - selective_saved,
        first_saved_bytes=costs.at(costs.first_saved_bytes),
        receive_buffer_bytes=receive_buffer_bytes(context, strategy, parts),
        keeps_all_sent=context.traits.states.keeps_stage_outputs == "all",
        sent_saved_bytes=sent_bytes(context, strategy, parts),
        layer_transient_bytes=transient_layer_bytes(context, strategy, parts)
        + costs.at(costs.backward_bytes),
        last_transient_bytes=costs.at(costs.last_saved_bytes)
        + gathered_head_bytes(context, strategy, parts),
        full_workspace_bytes=(largest - full_saved) * stays,
        selective_workspace_bytes=(largest - costs.at(costs.largest_selective_saved_bytes)) * stays,
        overhead_bytes=overhead_bytes(context, strategy),
        fragmentation_fraction=context.traits.overheads.fragmentation_fraction,
        layer_host_bytes=parts.layer_bytes("host", body)
        + costs.at(body.saved_bytes) * (1.0 - stays),
        first_host_bytes=parts.first_params * parts.first_states.host + parts.lead_bytes("host"),
        last_host_bytes=parts.last_params * parts.last_states.host,
        usable_bytes=context.cluster.accelerator.hbm_bytes * (1.0 - context.margin_fraction),
        host_limit_bytes=host_limit(context, strategy),
    )
