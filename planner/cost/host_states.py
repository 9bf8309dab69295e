"""Waits in a stage's tail where states are offloaded: gradients leaving, the host's step."""

import numpy as np

from planner.cost.context import Context
from planner.cost.kernels import memory_bound_s
from planner.cost.layer_passes import LayerTimes
from planner.cost.offload import (
    exposed_gradient_offload_s,
    host_bytes_per_s,
    host_link_share,
    host_optimizer_s,
    host_step_s,
    host_transfer_s,
    nvme_optimizer_s,
    state_transfer_s,
)
from planner.cost.stage_parts import StageParameters
from planner.cost.states import offloaded_fraction, offloads, reduced_gradient_bytes
from planner.spec.items import HBM, item
from planner.spec.strategy import StrategyColumns
from planner.units import Array


def _step_gradient_s(context: Context, strategy: StrategyColumns) -> Array:
    """Seconds per owned gradient on the host link for the step."""
    traits = context.traits.offload
    last = np.where(
        strategy.zero_stage >= 3, traits.zero3_step_gradient_bytes, traits.step_gradient_bytes
    )
    moved = last * offloaded_fraction(strategy)
    return state_transfer_s(
        moved / host_link_share(strategy, context.cluster), context.cluster, traits
    )


@item(
    "time.offload.gradients",
    title="gradient offload",
    inputs=(
        "strategy.offload",
        "strategy.offload_percent",
        "traits.offload.step_gradient_bytes",
        "traits.offload.zero3_step_gradient_bytes",
        "traits.offload.waited_gradient_zero_stages",
        "traits.offload.gradient_passes_per_micro_batch",
        "node.host_link_bytes_per_s",
    ),
    also=(exposed_gradient_offload_s, state_transfer_s, host_link_share, host_transfer_s),
)
def gradient_offload_s(parts: StageParameters, times: LayerTimes) -> tuple[Array, Array, Array]:
    """Busy and exposed seconds of one layer's gradients to the host, and of one end parameter.

    Those of embedding and head have no backward of their own to hide behind. In the last
    micro-batch ``step_gradient_bytes`` per gradient, waited for where the framework waits or memory
    is not pinned; in each before it, from stage 2 on, as often as the framework moves them. What
    the host's step runs beside shows there (:func:`optimizer_s_per_param`).
    """
    context, strategy = parts.context, parts.strategy
    states, traits = context.traits.states, context.traits.offload
    before = strategy.num_micro_batches - 1.0
    wire = reduced_gradient_bytes(strategy, states) * offloaded_fraction(strategy)
    wire = wire / host_link_share(strategy, context.cluster)
    passes = traits.gradient_passes_per_micro_batch * (strategy.zero_stage >= 2)
    earlier = passes * state_transfer_s(wire, context.cluster, traits)
    last = _step_gradient_s(context, strategy)
    owned = parts.params * parts.owned_fraction
    beside = times.backward.whole_s if traits.is_pinned else 0.0 * times.backward.whole_s
    waited = np.isin(strategy.zero_stage, traits.waited_gradient_zero_stages)
    alone = 1.0 if traits.host_step_beside == "nothing" else 0.0
    shown = alone * exposed_gradient_offload_s(owned * last, np.where(waited, 0.0, beside))
    others = exposed_gradient_offload_s(owned * earlier, beside)
    ends = (alone * last + before * earlier) / parts.num_shards
    return owned * (last + before * earlier), shown + before * others, ends


def _host_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """The whole step off the device: host, weights back, and NVMe where the states live there."""
    traits, cluster = context.traits.offload, context.cluster
    pageable = np.isin(strategy.zero_stage, traits.pageable_weight_zero_stages)
    back = traits.step_returned_bytes * (1.0 - offloads(strategy, "parameters"))
    back = back / host_link_share(strategy, cluster)
    moved = owned * state_transfer_s(back, cluster, traits, pageable)
    if traits.host_step_beside != "nothing":
        moved = moved + owned * _step_gradient_s(context, strategy)
    host = host_optimizer_s(owned, moved, cluster, traits)
    disk = nvme_optimizer_s(owned, cluster, traits)
    both = np.maximum(host, disk) if traits.nvme_pipelined else host + disk
    return np.where(offloads(strategy, "nvme") > 0, both, host)


@item(
    "time.optimizer_step",
    title="optimizer step",
    inputs=(
        "strategy.offload",
        "strategy.offload_percent",
        "traits.offload.host_step_bytes",
        "traits.offload.host_threads",
        "traits.offload.host_bandwidth_fraction",
        "traits.offload.host_step_beside",
        "traits.offload.step_returned_bytes",
        "traits.optimizer.step_traffic_bytes",
        "node.host_cores",
        "node.host_memory_bytes_per_s",
        "node.host_core_bytes_per_s",
        *HBM,
    ),
    also=(host_optimizer_s, host_step_s, host_bytes_per_s, state_transfer_s, nvme_optimizer_s),
)
def optimizer_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """Seconds of the optimizer step per parameter of the rank, of which it owns a fraction.

    On the device: the optimizer's ``step_traffic_bytes`` through HBM per owned parameter.
    Offloaded: the host's step, weights back, and NVMe traffic where the states live there
    (arXiv 2104.07857, section 6.2), beside it where the framework pipelines them. Where a part is
    offloaded, one after the other; the device's part is small beside the host's.
    """
    moved = owned * context.traits.optimizer.step_traffic_bytes
    device = memory_bound_s(moved, context.cluster.accelerator)
    away = offloaded_fraction(strategy)
    host = _host_s_per_param(context, strategy, owned)
    return device * (1.0 - away) + np.where(away > 0, host, 0.0) * away


def overlapped_step_s(parts: StageParameters, times: LayerTimes) -> Array:
    """``min(step, backward)``: what a layer's step on the host hides behind its backward.

    Where the framework starts it as gradients arrive; 0 elsewhere.
    """
    context, strategy = parts.context, parts.strategy
    if context.traits.offload.host_step_beside != "backward":
        return np.zeros(len(strategy))
    host = _host_s_per_param(context, strategy, parts.owned_fraction)
    away = offloaded_fraction(strategy)
    return np.minimum(np.where(away > 0, parts.params * host, 0.0) * away, times.backward.whole_s)
