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
class LayerTimes:
    """Seconds of one layer per micro-batch with stage-3 gathers and parameter offload."""

    forward: Array
    backward: Array
    sharding_busy: Array
    sharding_exposed: Array
    offload_busy: Array
    offload_exposed: Array
    sharded_forward: Array
    """Forward with stage-3 gathers, without transfers between host and accelerator."""
    sharded_backward: Array
    fetch: Array  # Offloaded parameters from the host, per pass
    sharding_fill: Array
    """Per stage, whatever its layers: what prefetch cannot hide at the ends of both passes."""
    offload_fill: Array  # the same, of transfers between host and accelerator


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
    context, strategy = parts.context, parts.strategy
    interference = sm_contention(context)
    dp = parts.layer_dp
    copied = parts.gathered * dp.copy_gather
    copied_back = copied + parts.params * dp.copy_reduce
    forward = parts.costs.exposed_at(parts.costs.forward) + copied
    backward = parts.costs.exposed_at(parts.costs.backward) + copied_back
    gather = parts.gathered * dp.layer_forward
    exchange = parts.params * dp.layer_backward + parts.frozen_elements * dp.layer_backward_gather
    beside = exposed_beside_s(forward, gather, interference)
    beside_back = exposed_beside_s(backward, exchange, interference)
    sharded_forward, sharded_backward = forward + beside, backward + beside_back
    fill = prefetch_fill_s(forward, gather, interference)
    fill = fill + prefetch_fill_s(backward, exchange, interference)
    shard = np.where(strategy.zero_stage >= 3, parts.num_shards, 1.0)
    offload = context.traits.offload
    wire = parts.params * offload.fetched_weight_bytes + parts.frozen_elements * FROZEN_BYTES
    share, on_nvme = host_link_share(strategy, context.cluster), offloads(strategy, "nvme")
    fetch = parameter_fetch_s(wire / shard, on_nvme, context.cluster, offload, share)
    fetch = np.where(offloads(strategy, "parameters") > 0, fetch, 0.0)
    hidden = fetch if offload.is_pinned else 0.0 * fetch
    whole_forward = np.maximum(sharded_forward + fetch - hidden, fetch)
    whole_backward = np.maximum(sharded_backward + fetch - hidden, fetch)
    return LayerTimes(
        forward=whole_forward,
        backward=whole_backward,
        sharding_busy=gather + exchange + copied + copied_back,
        sharding_exposed=beside + beside_back + copied + copied_back,
        offload_busy=2.0 * fetch,
        offload_exposed=whole_forward + whole_backward - sharded_forward - sharded_backward,
        sharded_forward=sharded_forward,
        sharded_backward=sharded_backward,
        fetch=fetch,
        sharding_fill=fill,
        offload_fill=np.minimum(hidden, sharded_forward) + np.minimum(hidden, sharded_backward),
    )
