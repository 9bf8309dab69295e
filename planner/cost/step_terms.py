"""Times of an iteration behind its micro-batches: of a stage, and whatever the split."""

from collections.abc import Callable, Mapping

import numpy as np

from planner.cost.context import Context, columns_except, unique_rows
from planner.cost.data_parallel import bucket_elements, data_parallel_costs
from planner.cost.kernels import memory_bound_s
from planner.cost.layer_time import Duration, all_exposed
from planner.cost.network import COLLECTIVE_FORMULAS, collective_s
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
from planner.cost.overlap import (
    bucketed_overlap_pieces,
    gradient_pass_bytes,
    gradient_pass_s,
    interference_fraction,
    unpaired_micro_batches,
)
from planner.cost.policies import LayerTimes, sm_contention
from planner.cost.stage_parts import Per, StageParameters
from planner.cost.states import (
    offloaded_fraction,
    offloads,
    reduced_gradient_bytes,
    unsharded_until_step,
)
from planner.cost.time_terms import TimeTerm
from planner.cost.topology import Group, group_of
from planner.layers.op import ZERO
from planner.spec.items import FABRIC, HBM, item
from planner.spec.strategy import StrategyColumns
from planner.units import Array


@item(
    "time.gradient_passes",
    title="passes over gradients",
    inputs=(
        "traits.states.gradient_bytes",
        "traits.states.master_weight_bytes",
        *HBM,
    ),
    also=(gradient_pass_s, gradient_pass_bytes),
)
def gradient_pass_s_per_param(context: Context, strategy: StrategyColumns, owned: Array) -> Array:
    """:func:`overlap.gradient_pass_s` per parameter; from stage 2 on a rank holds what it owns.

    Buckets of whole replicas are filled from gradients, divided and copied back, ``4 b``:
    torch/csrc/distributed/c10d/reducer.cpp; those of InternEvo, which broadcasts weights, flattened
    and copied back, ``4 g``: TensorBucket in internlm/solver/optimizer/store.py.
    A loop without a gradient norm waits for no stage.
    """
    traits = context.traits
    sharded = (strategy.zero_stage >= 2) & ~unsharded_until_step(strategy, traits.states)
    clips = traits.overlap.optimizer_waits_for_all_stages
    held_bytes, owned_bytes = gradient_pass_bytes(traits.states, clips=clips)
    buckets = (strategy.zero_stage == 0) & (strategy.dp > 1)
    flattened = traits.states.gradient_bytes * traits.states.broadcasts_weights
    return gradient_pass_s(
        np.where(sharded, owned, 1.0),
        owned,
        held_bytes + 4.0 * (traits.states.replica_bucket_bytes * buckets + flattened),
        owned_bytes,
        context.cluster.accelerator,
    )


@item(
    "time.tied_embedding",
    title="tied-embedding reduction",
    inputs=(
        "model.tied_embeddings",
        "job.mtp_layers",
        "model.vocab_size",
        "strategy.pp",
    ),
)
def tied_embedding_s(parts: StageParameters) -> Array:
    """All-reduce of the shared vocabulary gradient between first and last stage.

    Tied to the head, or to the embedding of further tokens.
    """
    context, strategy = parts.context, parts.strategy
    if not (context.model.tied_embeddings or context.job.mtp_layers):
        return np.zeros(len(strategy))
    others = ("virtual stages", "micro-batch", "sequence parallel", "ZeRO stage", "offload")
    rows, index = unique_rows(strategy, columns_except(*others))
    few = strategy.take(rows)
    stages = group_of("pp", few, context.cluster)
    both = np.minimum(few.head_stage + 1, 2)
    group = Group(
        members=tuple(np.where(inside >= few.pp, both, 1) for inside in stages.members),
        domain=stages.domain,
    )
    num_bytes = tied_gradient_bytes(parts.take(rows))
    return collective_s("all_reduce", num_bytes, group, context.cluster)[index]


def tied_gradient_bytes(parts: StageParameters) -> Array:
    """Bytes of the shared vocabulary gradient."""
    vocab = parts.costs.at(parts.costs.vocab_params)
    return vocab * parts.context.traits.states.gradient_reduce_bytes


@item(
    "time.unpaired_exchange",
    title="expert all-to-all without a partner",
    inputs=(
        "strategy.ep",
        "strategy.num_micro_batches",
        "strategy.vpp",
        "traits.overlap.expert_all_to_all_overlap",
    ),
    also=(unpaired_micro_batches,),
)
def unoverlapped_all_to_all_s(parts: StageParameters) -> Array:
    """Return the all-to-all seconds exposed where no other micro-batch overlaps them.

    ``unpaired · layers / stages · (busy - exposed)`` of a layer's forward and backward.
    """
    context, strategy = parts.context, parts.strategy
    costs = parts.costs
    hidden = [
        each["expert_parallel"]
        for each in (costs.forward, costs.backward)
        if "expert_parallel" in each
    ]
    if context.traits.overlap.expert_all_to_all_overlap != "batches" or not hidden:
        return np.zeros(len(strategy))
    layer_s = ZERO + sum(costs.at(each.busy_s - each.exposed_s) for each in hidden)
    alone = unpaired_micro_batches(strategy.num_micro_batches, strategy.pp, strategy.vpp)
    return alone * context.model.num_blocks / strategy.pp * layer_s


@item(
    "time.step_overhead",
    title="per-step overhead",
    inputs=(
        "traits.overheads.step_overhead_s",
        "traits.overheads.node_step_overhead_s",
    ),
)
def _step_overhead_s(parts: StageParameters) -> Array:
    """Seconds per iteration that belong to no other item.

    Constants of the framework profile: gradient norm and loss-scale checks, data loading, logging;
    on several nodes their small collectives and waiting, of N GPUs ``8 ms · log2(N / 64)`` more.
    Source of these: Nemotron 4 15B in 4 micro-batches from 128 to 2,048 H100, 0.03 s (bf16) and
    0.06 s (fp8), of which 0.013 is waiting for the slowest and the collectives' own; plausible 2 to
    20 ms.
    """
    context = parts.context
    overheads, num_gpus = context.traits.overheads, parts.strategy.num_gpus
    beyond = num_gpus > context.cluster.node.num_accelerators
    further = np.where(beyond, overheads.node_step_overhead_s, 0.0)
    doublings = np.log2(np.maximum(num_gpus / 64.0, 1.0))
    return overheads.step_overhead_s + further + 0.008 * doublings


def _step_gradient_s(context: Context, strategy: StrategyColumns) -> Array:
    """Seconds per owned gradient on the host link for the step: ``4 / link``, in fp32.

    ``8 / link`` under DeepSpeed's stage 3: 16 bits to the host and back, then fp32 (partition_grads
    and _offload_grad_partition_at_boundary in deepspeed/runtime/zero/stage3.py).
    """
    traits = context.traits.offload
    is_twice = (strategy.zero_stage >= 3) & (context.traits.states.sharded_by == "zero")
    last = np.where(is_twice, 8.0, 4.0)
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
        "traits.states.sharded_by",
        "traits.offload.waited_gradient_zero_stages",
        "traits.offload.gradient_passes_per_micro_batch",
        "node.host_link_bytes_per_s",
    ),
    also=(exposed_gradient_offload_s, state_transfer_s, host_link_share, host_transfer_s),
)
def gradient_offload_s(parts: StageParameters, times: LayerTimes) -> tuple[Array, Array, Array]:
    """Busy and exposed seconds of one layer's gradients to the host, and of one end parameter.

    Those of embedding and head have no backward of their own to hide behind. In the last
    micro-batch :func:`_step_gradient_s` per gradient, waited for where the framework waits or
    memory is not pinned; in each before it, from stage 2 on, as often as the framework moves them.
    What the host's step runs beside shows there (:func:`optimizer_s_per_param`).
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
    disk = nvme_optimizer_s(owned, cluster)
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


# Items of the tail that are so much per parameter of the rank.
PER_PARAMETER: Mapping[str, Callable[[Context, StrategyColumns, Array], Array]] = {
    "gradient_passes": gradient_pass_s_per_param,
    "optimizer_step": optimizer_s_per_param,
}
# Items of an iteration that are the same however layers are split.
PER_ITERATION = {
    "unpaired_exchange": unoverlapped_all_to_all_s,
    "tied_embedding": tied_embedding_s,
    "step_overhead": _step_overhead_s,
}


def frozen_weight_gathers(parts: StageParameters) -> tuple[Array, Array, Array]:
    """Frozen 16-bit elements gathered once an iteration, with updated weights, below stage 3.

    Of a layer, the embedding and the head; none where frozen weights are whole there.
    """
    is_sharded = float(parts.context.traits.states.is_fsdp)
    ends = parts.first_frozen_elements, parts.last_frozen_elements
    return parts.frozen_elements * is_sharded, ends[0] * is_sharded, ends[1] * is_sharded


@item(
    "time.data_parallel",
    title="gradient reduction and weight gather",
    inputs=(
        "strategy.dp",
        "strategy.zero_stage",
        "traits.states.gradient_reduce_bytes",
        "traits.overlap.overlaps_gradient_reduction",
        "traits.overlap.overlaps_parameter_gather",
        "traits.overlap.gradient_bucket_elements",
        "traits.overlap.communication_multiprocessors",
        *FABRIC,
    ),
    also=(
        bucketed_overlap_pieces,
        interference_fraction,
        bucket_elements,
        data_parallel_costs,
        *COLLECTIVE_FORMULAS,
    ),
)
def grad_sync_pieces(parts: StageParameters, times: LayerTimes) -> dict[Per, Duration]:
    """Gradient reduction and weight gather; exposed: two functions, the larger of which counts.

    Layers: :func:`overlap.bucketed_overlap_pieces` for the reduction behind the last backward of a
    model chunk, and their larger one for the gather in the next forward. The chunks of an
    interleaved stage that ran backward before the last one only slow computation. The embedding's
    gradient comes last and its weights are needed first: all shows. The head's comes first and
    hides. On the last of several stages the head hides in the time by which that stage is done
    earlier than the first, whose reduction decides (Megatron-Core does not split it into buckets on
    later stages for that reason: distributed_data_parallel.py). Where pipelining keeps sharded
    gradients whole they are reduced when all backwards of a chunk are done
    (torch/distributed/pipelining/ stage.py, perform_reduce_grad): nothing of the last chunk hides.
    Excludes the same slack for layers.
    """
    context, strategy = parts.context, parts.strategy
    overlap, dp = context.traits.overlap, parts.layer_dp
    interference = sm_contention(context)

    def layer(total: Array, window: Array, *, overlaps: bool) -> Array:
        if not overlaps:
            return np.stack([total, total])
        chunk = total / strategy.vpp
        pieces = bucketed_overlap_pieces(
            chunk, window / strategy.vpp, dp.bucket_fraction, interference
        )
        return np.stack(pieces) + interference * (total - chunk)

    def head(total: Array, window: Array, *, overlaps: bool) -> Array:
        chunk = window * context.model.num_blocks / (strategy.pp * strategy.vpp)
        slack = (strategy.pp - 1.0) * chunk
        late = np.maximum(total - slack, 0.0)
        hidden = interference * total if overlaps else total
        return np.stack(
            [np.where(strategy.pp > 1, late, hidden), np.where(strategy.pp > 1, late, total)]
        )

    reduces, gathers = overlap.overlaps_gradient_reduction, overlap.overlaps_parameter_gather
    frozen, first_frozen, last_frozen = frozen_weight_gathers(parts)
    gather_s = (parts.params + frozen) * dp.gather
    reduce_s = parts.params * dp.reduce
    forward_s, backward_s = times.forward.whole_s, times.backward.whole_s
    window = np.where(unsharded_until_step(strategy, context.traits.states), 0.0, backward_s)
    shown = layer(reduce_s, window, overlaps=reduces)
    shown = shown + layer(gather_s, forward_s, overlaps=gathers).max(axis=0)
    first = parts.first_params * (parts.dp.reduce + parts.dp.gather)
    first = first + first_frozen * parts.dp.gather
    mtp_params = parts.all_mtp_params
    head_gather = (parts.last_params + last_frozen) * parts.dp.gather + mtp_params * dp.gather
    head_reduce = parts.last_params * parts.dp.reduce + mtp_params * dp.reduce
    last = head(head_reduce, backward_s, overlaps=reduces)
    last = last + (head(head_gather, forward_s, overlaps=True)[0] if gathers else head_gather)
    return {
        "layer": Duration(busy_s=reduce_s + gather_s, exposed_s=shown),
        "first": Duration(busy_s=first, exposed_s=np.stack([first, first])),
        "last": Duration(busy_s=head_reduce + head_gather, exposed_s=last),
    }


def step_end_terms(parts: StageParameters, times: LayerTimes) -> tuple[TimeTerm, ...]:
    """Items of a stage after its micro-batches, once an iteration.

    Gradient reduction, gradients on their way to the host, passes over gradients, optimizer step.
    Exposed seconds may have two rows, of which the larger counts on a stage.
    """
    context, strategy = parts.context, parts.strategy
    busy, exposed, end_s = gradient_offload_s(parts, times)
    mtp_params = parts.all_mtp_params
    found: dict[str, dict[Per, Duration]] = {
        "data_parallel": grad_sync_pieces(parts, times),
        "offload.gradients": {
            "layer": Duration(busy_s=busy, exposed_s=exposed),
            "first": all_exposed(parts.first_params * end_s),
            "last": all_exposed((parts.last_params + mtp_params) * end_s),
        },
    }
    for name, price in PER_PARAMETER.items():
        own_s = price(context, strategy, parts.owned_fraction)
        end_s = price(context, strategy, 1.0 / parts.num_shards)
        layer = parts.params * own_s
        if name == "optimizer_step":
            layer = layer - overlapped_step_s(parts, times)
        found[name] = {
            "layer": all_exposed(layer),
            "first": all_exposed(parts.first_params * end_s),
            "last": all_exposed(parts.last_params * end_s + mtp_params * own_s),
        }
    return tuple(
        TimeTerm(per=per, items={name: one})
        for name, by_part in found.items()
        for per, one in by_part.items()
    )
