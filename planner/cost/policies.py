"""A layer's passes beside its stage-3 gathers and its traffic to the host, and its policies.

Policies are what becomes of its saved activations.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.buffers import offload_buffer_bytes
from planner.cost.context import Context
from planner.cost.data_parallel import (
    copy_s_per_param,
    data_parallel_costs,
    gather_elements,
    gradient_copy_bytes,
)
from planner.cost.layer_time import Duration
from planner.cost.module_sets import SelectiveCosts
from planner.cost.offload import host_link_share, host_transfer_s, parameter_fetch_s
from planner.cost.overlap import exposed_beside_s, interference_fraction, prefetch_fill_s
from planner.cost.stage import FULL, SELECTIVE, PolicyCosts, StageModel
from planner.cost.stage_parts import StageParameters
from planner.cost.states import offloads
from planner.spec.items import FABRIC, item
from planner.spec.job import element_bytes
from planner.spec.strategy import POLICIES, StrategyColumns
from planner.spec.training import FROZEN_BYTES
from planner.units import Array, Mask


def sm_contention(context: Context) -> float:
    """Share of the computation rate a collective takes under the framework's traits."""
    held = context.traits.overlap.communication_multiprocessors
    return interference_fraction(held, context.cluster.accelerator)


@dataclass(frozen=True, kw_only=True)
class LayerPass:
    """One pass of one layer and micro-batch, beside its gathers and its transfers to the host."""

    sharding: Duration
    offload: Duration
    sharded_s: Array  # With stage-3 gathers, without transfers between host and accelerator
    whole_s: Array  # With both
    sharding_fill: Array
    """Per stage, whatever its layers: of gathers what prefetch cannot hide at the pass's ends."""
    offload_fill: Array  # the same, of transfers between host and accelerator


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Both passes of one layer and micro-batch."""

    forward: LayerPass
    backward: LayerPass
    fetch: Array  # Offloaded parameters from the host, per pass


def _layer_pass(
    context: Context, compute_s: Array, exchange_s: Array, copied_s: Array, fetch_s: Array
) -> LayerPass:
    """A pass beside its exchanges, copies and fetch: see :func:`layer_times`."""
    interference, computing_s = sm_contention(context), compute_s + copied_s
    beside_s = exposed_beside_s(computing_s, exchange_s, interference)
    sharded_s = computing_s + beside_s
    hidden_s = fetch_s if context.traits.offload.is_pinned else 0.0 * fetch_s
    fetched_s = np.maximum(fetch_s - hidden_s, fetch_s - sharded_s)
    return LayerPass(
        sharding=Duration(busy_s=exchange_s + copied_s, exposed_s=beside_s + copied_s),
        offload=Duration(busy_s=fetch_s, exposed_s=fetched_s),
        sharded_s=sharded_s,
        whole_s=sharded_s + fetched_s,
        sharding_fill=prefetch_fill_s(computing_s, exchange_s, interference),
        offload_fill=np.minimum(hidden_s, sharded_s),
    )


@item(
    "time.sharding",
    title="ZeRO traffic",
    inputs=(
        "strategy.dp",
        "traits.overlap.communication_multiprocessors",
        "traits.overlap.weight_gather_elements",
        "traits.states.sharded_by",
        *FABRIC,
    ),
    also=(
        exposed_beside_s,
        prefetch_fill_s,
        interference_fraction,
        data_parallel_costs,
        gather_elements,
        copy_s_per_param,
        gradient_copy_bytes,
    ),
)
def layer_times(parts: StageParameters) -> LayerTimes:
    """Overlap a layer's compute with its stage-3 gathers, then with traffic to the host.

    Copies of weights and gradients beside their exchange compute with the layer, and count with it.
    Offloaded parameters come from the host before both passes. Transfer, gather and computation of
    a pass are three stations of a pipeline of layers: n layers take n times the slowest, and the
    first one's way through the other two (:func:`overlap.prefetch_fill_s`). From memory that is not
    pinned transfers are waited for. Offloaded activations: :func:`policy_costs`.
    """
    context, strategy, costs, dp = parts.context, parts.strategy, parts.costs, parts.layer_dp
    copied = parts.gathered * dp.copy_gather
    gather = parts.gathered * dp.layer_forward
    exchange = parts.params * dp.layer_backward + parts.frozen_elements * dp.layer_backward_gather
    shard = np.where(strategy.zero_stage >= 3, parts.num_shards, 1.0)
    offload = context.traits.offload
    # Shards as they are kept: fp32 ones are copied and cast on the device (all_gather_inputs in
    # torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
    shard_bytes = context.traits.states.zero3_weight_bytes or element_bytes("fp32")
    wire = parts.params * shard_bytes + parts.frozen_elements * FROZEN_BYTES
    share, on_nvme = host_link_share(strategy, context.cluster), offloads(strategy, "nvme")
    fetch = parameter_fetch_s(wire / shard, on_nvme, context.cluster, offload, share)
    fetch = np.where(offloads(strategy, "parameters") > 0, fetch, 0.0)
    forward = costs.exposed_at(costs.forward)
    backward = costs.exposed_at(costs.backward)
    reduced = copied + parts.params * dp.copy_reduce
    return LayerTimes(
        forward=_layer_pass(context, forward, gather, copied, fetch),
        backward=_layer_pass(context, backward, exchange, reduced, fetch),
        fetch=fetch,
    )


def with_selective(policies: PolicyCosts, selective: SelectiveCosts) -> PolicyCosts:
    """The same policies with other modules under selective recomputation, the first of POLICIES."""
    replaced = {
        name: np.concatenate([costs[None], getattr(policies, name)[1:]])
        for name, costs in vars(selective).items()
    }
    return policies.but(**replaced)


def offers_activation_offload(context: Context, strategy: StrategyColumns) -> Mask:
    """Return True per row if activations can be offloaded: offered, host memory known, no stages.

    Source: --cpu-offloading is refused with pipelining, Megatron-Core's transformer_config.py.
    """
    offered = "offloaded" in context.traits.support.policies
    return np.asarray((strategy.pp == 1) & offered & bool(context.cluster.node.host_memory_bytes))


def activation_transfer_s(parts: StageParameters) -> Array:
    """Seconds of one layer's saved activations on their way to the host, or back."""
    saved = parts.costs.at(parts.costs.body.saved_bytes)
    return host_transfer_s(saved, parts.context.cluster)


@item(
    "time.offload.activations",
    title="activation offload",
    inputs=(
        "strategy.offloaded_layers_per_stage",
        "traits.support.policies",
        "node.host_link_bytes_per_s",
    ),
    also=(activation_transfer_s, host_transfer_s),
)
def activation_offload(parts: StageParameters, times: LayerTimes) -> tuple[Duration, Array]:
    """Transfers of a layer whose activations are offloaded, and what they add once to its stage.

    Everything goes to the host in forward and comes back in backward; per pass ``max(compute, fetch
    + transfer) - max(compute, fetch)`` shows, behind the parameters' own fetch over the same link,
    and the first layer's way there and back (:func:`overlap.prefetch_fill_s`); two layers' buffers
    (:func:`buffers.offload_buffer_bytes`). Source: transformer_engine/pytorch/cpu_offload.py, which
    spreads the transfers of some layers over all of a pass: what that hides further is left out.
    """
    transfer = activation_transfer_s(parts)
    both = times.fetch + transfer
    shown, fill = 0.0 * transfer, 0.0 * transfer
    for compute in (times.forward.sharded_s, times.backward.sharded_s):
        shown = shown + np.maximum(compute, both) - np.maximum(compute, times.fetch)
        fill = fill + np.minimum(both, compute) - np.minimum(times.fetch, compute)
    offered = offers_activation_offload(parts.context, parts.strategy)
    exposed = np.where(offered, shown, 0.0)
    return Duration(busy_s=2.0 * transfer, exposed_s=exposed), np.where(offered, fill, 0.0)


def policy_costs(parts: StageParameters, added_s: Array, fill_s: Array) -> PolicyCosts:
    """Costs under each of POLICIES, of which the seconds are given; K x C.

    Recomputation rebuilds, a layer at a time, what was not kept (arXiv 2205.05198, section 5):
    selective that of the modules that the traits select, full all but inputs and returned caches.
    """
    costs, none = parts.costs, np.zeros(len(parts.strategy))
    offered = offers_activation_offload(parts.context, parts.strategy)
    saved = costs.at(costs.body.saved_bytes)
    selective = costs.at(costs.body.selective_saved_bytes)
    boundary = costs.at(costs.boundary_bytes)
    largest = costs.at(costs.largest_saved_bytes)
    largest_selective = costs.at(costs.largest_selective_saved_bytes)
    kept = {
        "selective": selective,
        "full": boundary + costs.at(costs.cache_bytes),
        "offloaded": np.where(offered, 0.0, saved),
    }
    lead_kept = {
        "selective": costs.at(costs.lead.selective_saved_bytes) - selective,
        "offloaded": np.where(offered, 0.0, costs.at(costs.lead.saved_bytes) - saved),
    }
    workspace = {
        "selective": largest - largest_selective,
        "full": largest - boundary,
        "offloaded": np.where(offered, offload_buffer_bytes(parts), 0.0),
    }
    host = {"offloaded": np.where(offered, saved, 0.0)}

    def stacked(by_name: dict[str, Array]) -> Array:
        return np.stack([by_name.get(name, none) for name in POLICIES])

    return PolicyCosts(
        added_s=added_s,
        fill_s=fill_s,
        saved_bytes=stacked(kept),
        lead_saved_bytes=stacked(lead_kept),
        workspace_bytes=stacked(workspace),
        host_bytes=stacked(host),
    )


def with_recomputed_mtp(model: StageModel, policy: int) -> StageModel:
    """The model whose blocks of multi-token prediction are recomputed as all its layers are.

    Selectively, or in full (Megatron-Core: where ``uniform`` takes single layers; ``block`` leaves
    them out). Full recomputation keeps a block's input; norms and projection before it are counted
    as kept. Excludes offloaded activations. Source:
    megatron/core/transformer/multi_token_prediction.py, _checkpointed_forward.
    """
    if not model.num_mtp_layers or policy not in (SELECTIVE, FULL):
        return model
    policies = model.policies
    freed = model.saved_bytes - policies.saved_bytes[policy]
    return model.but(
        last_s=model.last_s + model.num_mtp_layers * policies.added_s[policy],
        last_transient_bytes=model.last_transient_bytes - model.num_mtp_layers * freed,
    )
