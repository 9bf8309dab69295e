"""A layer's passes beside its stage-3 gathers and its traffic to the host."""

from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.cost.data_parallel import (
    copy_s_per_param,
    data_parallel_costs,
    gather_elements,
    gradient_copy_bytes,
)
from planner.cost.layer_time import Duration
from planner.cost.offload import host_link_share, parameter_fetch_s
from planner.cost.overlap import exposed_beside_s, interference_fraction, prefetch_fill_s
from planner.cost.stage_parts import StageParameters
from planner.cost.states import offloads
from planner.spec.items import FABRIC, item
from planner.spec.training import FROZEN_BYTES
from planner.units import Array


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
        "traits.kernels.unit_copies",
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
    first one's way through the other two (:func:`overlap.prefetch_fill_s`). From memory that is
    not pinned transfers are waited for. Offloaded activations
    are a policy of single layers (:func:`policies.policy_costs`).
    """
    context, strategy, costs, dp = parts.context, parts.strategy, parts.costs, parts.layer_dp
    copied = parts.gathered * dp.copy_gather
    gather = parts.gathered * dp.layer_forward
    exchange = parts.params * dp.layer_backward + parts.frozen_elements * dp.layer_backward_gather
    shard = np.where(strategy.zero_stage >= 3, parts.num_shards, 1.0)
    offload = context.traits.offload
    wire = parts.params * offload.fetched_weight_bytes + parts.frozen_elements * FROZEN_BYTES
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
