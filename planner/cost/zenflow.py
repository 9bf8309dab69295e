"""What ZenFlow's iterations take: the device's step of some columns, and the host's of all, late.

Of S = ``update_interval`` iterations all send gradients to the host, which adds them up, and one
hands them to its step, beside which the next S run. Every figure is of the mean iteration. Read in
deepspeed/runtime/zenflow and deepspeed/ops/adam, release 0.19.8; the idea is arXiv 2505.12242.
Excludes warm-up iterations and ``update_interval`` "auto", which follows the gradients.
"""

import numpy as np

from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.data_parallel import bucket_elements, weight_bytes
from planner.cost.exchange import tensors_of
from planner.cost.kernels import memory_bound_s
from planner.cost.layer_times import LayerTimes
from planner.cost.memory import offloads, reduced_gradient_bytes
from planner.cost.offload import (
    exposed_gradient_offload_s,
    host_bytes_per_s,
    host_transfer_s,
    slot_share,
    state_transfer_s,
)
from planner.cost.parts import Parts
from planner.cost.topology import group_of
from planner.spec.items import FABRIC, HBM, item
from planner.spec.strategy import StrategyColumns
from planner.units import Array

_BESIDE_FRACTION, _WAITED_FRACTION = 32.0 / 44.0, 16.0 / 44.0
"""Of the 44 bytes per parameter that DeepSpeed's step moves in host memory (``host_step_bytes``):
Adam's 28, in the optimizer's own process, which writes the new weight once more (stale_param, 4);
clipping and new weights in 16 bits stay with training."""
_SYNC_BYTES = 14.0
"""16 bits read, fp32 written, and copied into the master: sync_fp32_param_from_gpu."""
_SELECTED_PASSES = 27.0
"""Over a column chosen: its gradient out of the bucket 2, weights picked 2, AdamW in separate
operations 21, weights put back 2 (group_step and torch's _multi_tensor_adamw; counted)."""


def background_s_per_param(
    num_bytes: float, cores: float, core_bytes_per_s: float, memory_bytes_per_s: float
) -> Array:
    """``bytes / min(cores · core, memory)``: the step in the optimizer's own process.

    ``cores`` are those left to it, ``memory`` what a rank reaches of host memory. Source:
    zenflow_optimizer_process. Excludes that training's own threads load the same memory meanwhile.
    """
    rate = np.minimum(np.maximum(cores, 1.0) * core_bytes_per_s, memory_bytes_per_s)
    return np.asarray(num_bytes / rate)


def _background_s_per_param(context: Context) -> Array:
    node, traits = context.cluster.node, context.traits.offload
    free = 1.0 - context.traits.zenflow.pt_reserved_cores_perc
    return background_s_per_param(
        _BESIDE_FRACTION * traits.host_step_bytes,
        node.host_cores / node.num_accelerators * (free or 1.0),
        node.host_core_bytes_per_s,
        host_bytes_per_s(context.cluster, traits),
    )


def shared_transfer_s(num_bytes: Array, context: Context) -> Array:
    """``bytes / (link · f)``: to or from memory shared with the optimizer's process, waited for.

    That memory is not pinned, whatever it was before (share_memory_ moves it), and no conversion
    comes on top: f is ``shared_rate_fraction``.
    """
    traits = context.traits.offload
    return host_transfer_s(num_bytes, context.cluster) / traits.shared_rate_fraction


def _handed_over_s(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """Seconds per parameter in which training hands gradients over and takes weights back.

    ``owned · (bytes / rate + returned / (link · f))``: clipping and casts of the framework's step,
    and weights out of shared memory (:func:`shared_transfer_s`).
    """
    traits, cluster = context.traits.offload, context.cluster
    own = _WAITED_FRACTION * traits.host_step_bytes / host_bytes_per_s(cluster, traits)
    back = traits.step_returned_bytes * (1.0 - offloads(strategy, "parameters"))
    return owned * (own + shared_transfer_s(back / slot_share(strategy, cluster), context))


def zenflow_step_s(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """``(handed over + background) / S`` seconds per parameter of a rank that owns a share of it.

    The second hides (:func:`hidden_background_s`). Source: step and wait_last_update_and_copy in
    deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py, engine_stage3.py.
    """
    background = owned * _background_s_per_param(context)
    handed = _handed_over_s(context, strategy, owned)
    return (handed + background) / context.traits.zenflow.update_interval


def hidden_s_per_layer(
    background_s: Array, interval: float, pass_s: Array, num_layers: Array
) -> Array:
    """``min(background / S, L · pass) / L``: of a step beside S iterations, a layer's share.

    ``background_s`` of all parameters of the rank, ``pass_s`` a layer's forward and backward, which
    are all that is taken to hide it. Source: arXiv 2505.12242 (bounded asynchrony). Excludes the
    time of recomputation, head and transfers, beside which it runs too.
    """
    return np.minimum(background_s / interval, num_layers * pass_s) / num_layers


def hidden_background_s(
    context: Context, strategy: StrategyColumns, parts: Parts, times: LayerTimes
) -> Array:
    """:func:`hidden_s_per_layer` of a strategy, embedding and head included."""
    layers = context.model.num_blocks / strategy.pp
    ends = parts.first_params + parts.last_params + parts.all_mtp_params
    owned = layers * parts.params * parts.owned_fraction + ends / parts.num_shards
    background = owned * _background_s_per_param(context)
    passes = strategy.num_micro_batches * (times.forward + times.backward)
    return hidden_s_per_layer(background, context.traits.zenflow.update_interval, passes, layers)


def mean_gradient_s(last_s: Array, other_s: Array, interval: float) -> Array:
    """``(last + (S - 1) · other) / S``: one of S iterations hands its gradients to the step.

    Source: copy_grads_in_partition in deepspeed/runtime/zero/stage_1_and_2.py, whose accumulation
    steps ZenFlow sets to S (configure_zenflow).
    """
    return (last_s + (interval - 1.0) * other_s) / interval


def zenflow_gradient_s(
    context: Context, strategy: StrategyColumns, parts: Parts, times: LayerTimes
) -> tuple[Array, Array, Array]:
    """Busy and exposed seconds of one layer's gradients to the host, and of one end parameter.

    In S - 1 of S iterations they are added up as in accumulation
    (``gradient_passes_per_micro_batch``), behind backward. In one they go into the step's fp32
    buffers, which lie in memory shared with its process: not pinned, so the copy is waited for.
    Where the host's step is not beside, that is as without ZenFlow.
    """
    traits, zenflow = context.traits.offload, context.traits.zenflow
    interval, share = zenflow.update_interval, slot_share(strategy, context.cluster)
    wire = reduced_gradient_bytes(strategy, context.traits.states) / share
    earlier = _moved_s(context, traits.gradient_passes_per_micro_batch * wire)
    added = np.where(
        strategy.zero_stage >= 3, traits.zero3_step_gradient_bytes - traits.step_gradient_bytes, 0.0
    )
    into_step = traits.step_gradient_bytes / share
    last = (
        shared_transfer_s(into_step, context)
        if zenflow.overlap_step
        else _moved_s(context, into_step)
    )
    last = last + _moved_s(context, added / share)
    owned, away = parts.params * parts.owned_fraction, offloads(strategy, "optimizer")
    waited = np.isin(strategy.zero_stage, traits.waited_gradient_zero_stages)
    waited = waited | zenflow.overlap_step
    beside = times.backward if traits.is_pinned else 0.0 * times.backward
    shown = exposed_gradient_offload_s(owned * last, np.where(waited, 0.0, beside))
    others = exposed_gradient_offload_s(owned * earlier, beside)
    return (
        away * owned * mean_gradient_s(last, earlier, interval),
        away * mean_gradient_s(shown, others, interval),
        away * mean_gradient_s(last, earlier, interval) / parts.num_shards,
    )


def _moved_s(context: Context, num_bytes: Array) -> Array:
    return state_transfer_s(num_bytes, context.cluster, context.traits.offload)


def selected_kernel_bytes(ratio: float, element_bytes: float, share: Array | float) -> Array:
    """``27 · k · share · w``: HBM bytes per parameter of the device's step of the columns chosen.

    ``share`` of them is a rank's: all below stage 3, a shard there. Source: _SELECTED_PASSES.
    """
    return np.asarray(_SELECTED_PASSES * ratio * share * element_bytes)


@item(
    "time.selected_columns",
    title="step of the columns chosen",
    inputs=(
        "traits.zenflow.topk_ratio",
        "traits.zenflow.select_interval",
        "traits.zenflow.offload",
        "strategy.zero_stage",
        "strategy.dp",
        *FABRIC,
        *HBM,
    ),
    also=(selected_kernel_bytes, state_transfer_s),
)
def selected_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """Seconds per parameter of a rank for columns that the device steps in every iteration.

    Below stage 3 their reduced gradients are sent to all ranks, ``k w`` bytes per parameter in
    messages of a bucket's share, and every rank steps them; under stage 3 each steps its own. Where
    their moments stay on the host, those come and go; where weights do, those columns, picked into
    memory that is not pinned. Every ``select_interval`` iterations the
    host's master weights are set to the device's, over memory that is not pinned. All of it runs in
    order with backward's kernels and hides nowhere. Source: _process_selected_fp32_groups_grad and
    sync_fp32_param_from_gpu in deepspeed/runtime/zenflow, _selective_step_one_param in
    deepspeed/ops/adam/zenflow_torch_adam.py. Excludes column sums and their sorting.
    """
    zenflow, width = context.traits.zenflow, weight_bytes(context)
    traits, cluster = context.traits.offload, context.cluster
    is_sharded = strategy.zero_stage >= 3
    share = np.where(is_sharded, owned, 1.0)
    seconds = memory_bound_s(
        selected_kernel_bytes(zenflow.topk_ratio, width, share), cluster.accelerator
    )
    seconds = seconds + np.where(is_sharded, 0.0, _sent_s_per_param(context, strategy, width))
    link = slot_share(strategy, cluster)
    chosen = zenflow.topk_ratio * share * width / link
    there_and_back = 2.0 * state_transfer_s(chosen, cluster, traits, pageable=True)
    seconds = seconds + offloads(strategy, "parameters") * there_and_back
    if zenflow.offload:
        seconds = seconds + 2.0 * state_transfer_s(2.0 * chosen, cluster, traits)
    if zenflow.select_interval:
        read = state_transfer_s(owned * width / link, cluster, traits, pageable=True)
        written = owned * _SYNC_BYTES / host_bytes_per_s(cluster, traits)
        seconds = seconds + (read + written) / zenflow.select_interval
    return seconds * offloads(strategy, "optimizer")


def _sent_s_per_param(context: Context, strategy: StrategyColumns, width: float) -> Array:
    """Chosen columns of a bucket's gradients, from the ranks that own them to all others."""
    axis = "dp_shard_cp" if context.traits.states.sharded_over_cp else "dp_shard"
    group = group_of(axis, strategy, context.cluster)
    elements = np.asarray(float(tensors_of(context.model).elements))
    bucket = bucket_elements(context, strategy, elements, elements / context.model.num_blocks)
    sent = context.traits.zenflow.topk_ratio * width * bucket
    return collective_s("all_gather", sent, group, context.cluster) / bucket
