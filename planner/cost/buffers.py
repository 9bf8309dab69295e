"""Memory of no weight and no kept activation: buffers, workspaces, transients, overheads."""

import numpy as np

from planner.cost.context import Context
from planner.cost.data_parallel import gathered_weight_bytes, weight_bytes
from planner.cost.stage_parts import StageParameters
from planner.cost.states import (
    copied_in_groups,
    offloaded_fraction,
    offloads,
    reduced_gradient_bytes,
    unsharded_until_step,
)
from planner.layers.op import ZERO
from planner.spec.items import item
from planner.spec.job import element_bytes
from planner.spec.strategy import GPU_DEGREES, StrategyColumns
from planner.units import Array, Mask


@item(
    "memory.workspaces",
    inputs=("traits.kernels.linears",),
)
def workspace_bytes(context: Context) -> float:
    """Bytes of the matrix libraries' workspaces, allocated once and kept.

    cuBLAS's of torch, 32 MiB; Transformer Engine's as much, and 128 MiB for grouped products:
    transformer_engine/pytorch/module/base.py. Published mixture runs agree.
    """
    own = 3.3e7 + 1.34e8 * bool(context.model.moe)
    return 3.4e7 + own * (context.traits.kernels.linears == "transformer_engine")


def context_bytes(context: Context) -> float:
    """Bytes of the device context: hwdb's figure for the accelerator, else the framework's."""
    return context.cluster.accelerator.context_bytes or context.traits.overheads.context_bytes


@item(
    "memory.overhead",
    inputs=(
        "traits.overheads.context_bytes",
        "traits.overheads.communicator_bytes",
    ),
    also=(context_bytes,),
)
def communicator_bytes(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes outside the allocator beside the device context: one buffer set per communicator.

    Communicators of more than one rank are counted for every degree of GPUs, for ep, and for etp
    where that is another group than tp, and where weights are cut over further ranks; excluded are
    the embedding's and the experts' own data-parallel groups. Source: framework traits.
    """
    groups = ZERO + sum(1.0 * (getattr(strategy, axis) > 1) for axis in (*GPU_DEGREES, "ep"))
    groups = groups + 1.0 * ((strategy.etp > 1) & (strategy.etp != strategy.tp))
    groups = groups + context.traits.states.cuts_weights
    return np.asarray(groups * context.traits.overheads.communicator_bytes)


def _rank_params(parts: StageParameters) -> Array:
    """Parameters a rank holds, the mean over stages."""
    layers = parts.context.model.num_blocks * parts.params
    ends = parts.first_params + parts.last_params + parts.all_mtp_params
    return np.asarray((layers + ends) / parts.strategy.pp)


@item(
    "memory.dummy_weight_gradients",
    inputs=(
        "traits.kernels.linears",
        "traits.kernels.weight_gradient_bytes",
        "model.hidden_size",
        "strategy.tp",
    ),
)
def dummy_gradient_bytes(context: Context, strategy: StrategyColumns, params: Array) -> Array:
    """Bytes kept beside fused weight-gradient accumulation, below stage 2: ``2 · params``.

    ``params`` are those of one weight of every shape. Source: get_dummy_wgrad of Transformer Engine
    2.3 and later; published per-rank allocations agree.
    """
    kernels = context.traits.kernels
    is_fused = kernels.linears == "transformer_engine" and not kernels.weight_gradient_bytes
    return np.where(is_fused & (strategy.zero_stage < 2), 2.0 * params, 0.0)


@item(
    "memory.gathered_weights",
    inputs=(
        "traits.states.weight_shards",
        "traits.states.expert_weight_shards",
    ),
)
def gathered_bytes(context: Context, cut: float, layers: float = 1.0) -> float:
    """Bytes per parameter to gather a weight that is cut over n ranks, and to make its gradient.

    ``l (w + g/n) + g``, kept for ever: what arrives, the whole gradient, and the part scattered of
    it; 0 where n is 1. One weight of every shape has them, l 1, and all experts of a layer, which
    arrive a layer ahead, l 2. Source: GTPWeightCache and _wgrad_pool_get in
    megatron/core/tensor_parallel/generalized_tensor_parallelism.py. Excludes second buffers of
    neighbours of one shape, of recomputation, and of single layers under CUDA graphs.
    """
    gradient = context.traits.states.gradient_bytes
    return (layers * (weight_bytes(context) + gradient / cut) + gradient) * (cut > 1.0)


def gathered_layer_bytes(parts: StageParameters) -> Array:
    """:func:`gathered_bytes` of layers."""
    context = parts.context
    costs = parts.costs
    states = context.traits.states
    experts = gathered_bytes(context, states.expert_weight_shards, layers=2.0)
    dense = gathered_bytes(context, states.weight_shards)
    return costs.at(costs.linear_params) * dense + costs.at(costs.body.expert_params) * experts


def gathered_vocabulary_bytes(parts: StageParameters) -> Array:
    """:func:`gathered_bytes` of embedding or head, which have one shape."""
    cut = parts.context.traits.states.weight_shards
    return parts.costs.at(parts.costs.vocab_params) * gathered_bytes(parts.context, cut)


@item(
    "memory.buckets",
    inputs=(
        "traits.overlap.gradient_bucket_elements",
        "traits.overheads.num_buckets",
    ),
)
def bucket_bytes(parts: StageParameters) -> Array:
    """Bytes of communication buckets: ``num_buckets · b · min(gradient_bucket_elements, params)``.

    ``b``: 2, in 32 bits 4; ``params`` is a rank's, the mean over stages. Source: framework traits.
    """
    traits = parts.context.traits
    elements = np.minimum(traits.overlap.gradient_bucket_elements, _rank_params(parts))
    return traits.overheads.num_buckets * weight_bytes(parts.context) * elements


@item(
    "memory.step_group",
    inputs=(
        "strategy.dp",
        "strategy.offload",
        "traits.states.sharded_by",
    ),
)
def step_group_bytes(parts: StageParameters) -> Array:
    """Bytes of gradients copied at a time while a stage-3 optimizer steps.

    fp32: ``4 · min(1e9, shard)`` of what stays on the device. Source: sub_group_size,
    _prepare_fp32_grad_for_sub_group in deepspeed/runtime/zero/stage3.py.
    """
    states, strategy = parts.context.traits.states, parts.strategy
    shard = _rank_params(parts) / parts.num_shards
    elements = np.minimum(1e9, shard * (1.0 - offloaded_fraction(strategy)))
    held = element_bytes("fp32") * elements
    return np.where(copied_in_groups(strategy, states), held, 0.0)


@item(
    "memory.largest_gradient",
    inputs=(
        "model.vocab_size",
        "strategy.offload",
        "traits.states.sharded_by",
        "traits.states.shards_replica_states",
    ),
)
def largest_gradient_bytes(parts: StageParameters) -> Array:
    """Bytes kept for the largest tensor's gradient beside its share: that of the vocabulary.

    ``vocab_params · (copy + whole · (1 - 1/N) at stage 2 + staging)``, staging where the
    optimizer's states are offloaded below stage 3; both those of 16 bits under DeepSpeed. Source:
    accumulated whole, measured over gloo, and temp_grad_buffer_for_gpu_offload:
    deepspeed/runtime/zero/stage_1_and_2.py. Copied in fp32, one at a time, before it is added up
    by DeepSpeed's bf16 optimizer: _update_hp_grad in deepspeed/runtime/bf16_optimizer.py.
    """
    states, strategy = parts.context.traits.states, parts.strategy
    kept = weight_bytes(parts.context) * (states.sharded_by == "zero")
    whole = kept * (1.0 - 1.0 / parts.num_shards)
    per_element = 4.0 * states.shards_replica_states + np.where(
        strategy.zero_stage == 2, whole, 0.0
    )
    stages = offloads(strategy, "optimizer") * (strategy.zero_stage < 3)
    per_element = per_element + kept * stages
    return np.asarray(parts.costs.at(parts.costs.vocab_params) * per_element)


@item(
    "memory.largest_gradient.embedding",
    inputs=(
        "model.vocab_size",
        "traits.states.embedding_gradient_is_whole",
    ),
)
def embedding_gradient_bytes(parts: StageParameters) -> Array:
    """Bytes of the embedding's gradient beyond a rank's share: ``vocab_params · (tp - 1) · g``.

    Where every tp rank accumulates it whole until the last micro-batch (FSDP2 under pipelining
    with tensor parallelism). Source: framework traits.
    """
    states, strategy = parts.context.traits.states, parts.strategy
    whole = unsharded_until_step(strategy, states) & states.embedding_gradient_is_whole
    others = parts.costs.at(parts.costs.vocab_params) * (strategy.tp - 1.0)
    return np.where(whole, others * states.gradient_bytes, 0.0)


def _gathers(parts: StageParameters) -> Mask:
    """Stage 3 that gathers a layer's weights when it needs them."""
    whole = unsharded_until_step(parts.strategy, parts.context.traits.states)
    return np.asarray((parts.strategy.zero_stage >= 3) & ~whole)


def _joins_ends(parts: StageParameters) -> Mask:
    """Embedding and head are one unit: what no block holds, or one matrix."""
    context, states = parts.context, parts.context.traits.states
    joined = states.gathers_embedding_with_head | context.model.tied_embeddings
    return np.asarray(joined & (parts.strategy.pp == 1) & (not states.keeps_ends_gathered))


def _trained_root_params(parts: StageParameters) -> Array:
    """Parameters that the head's unit trains: the embedding's too, where they are one or tied."""
    return parts.last_params + np.where(_joins_ends(parts), parts.first_params, 0.0)


def _root_params(parts: StageParameters) -> Array:
    """Parameters gathered with the head, frozen ones too."""
    first = np.where(_joins_ends(parts), parts.first_frozen_elements, 0.0)
    return _trained_root_params(parts) + parts.last_frozen_elements + first


def gathered_head_bytes(parts: StageParameters) -> Array:
    """Bytes of weights gathered, and of gradients made, while the loss is computed (stage 3).

    ``2 · root`` for the unit of the head; where that holds the embedding too, the last layer is
    also kept gathered. Where the head is no unit, it counts as weights, and the units' buffers
    (:func:`unit_buffer_bytes`) are held. A chunked loss collects the head's gradient, ``4 · head``,
    and once it is whole reduces it from a copy, when ``10/12`` of a chunk's loss is gone:
    ``max(4 · head · (1 + 1/N) - 10/12 · chunk, 0)``. Where the loss is part of the root module,
    the buffer the head arrived in is still there in its forward, when the 16-bit logits' part of
    the backward, a sixth, is not: ``max(2 · head - 2 · logits, 0)``. Source: traced FSDP2 steps.
    """
    context, states = parts.context, parts.context.traits.states
    root = weight_bytes(context) * _root_params(parts)
    last_layer = weight_bytes(context) * parts.gathered * states.gathers_embedding_with_head
    gathered = root + last_layer
    if states.keeps_ends_gathered:
        gathered = unit_buffer_bytes(parts)
    held = np.where(_gathers(parts), gathered, 0.0)
    gradient = parts.last_params * states.collected_head_gradient_bytes
    chunk = 3.0 * parts.costs.at(parts.costs.largest_logits_bytes)
    copy = np.maximum(gradient * (1.0 + 1.0 / parts.num_shards) - 10.0 / 12.0 * chunk, 0.0)
    inside = weight_bytes(context) * (parts.last_params + parts.last_frozen_elements)
    inside = inside - 0.5 * parts.costs.at(parts.costs.largest_logits_bytes)
    arrives = _gathers(parts) & states.loss_inside_model
    arriving = np.where(arrives, np.maximum(inside, 0.0), 0.0)
    return np.asarray(held + gradient + np.where(gradient > 0, copy, 0.0) + arriving)


@item(
    "memory.gather_buffers",
    inputs=(
        "traits.states.sharded_by",
        "strategy.zero_stage",
    ),
)
def gather_pool_bytes(parts: StageParameters) -> Array:
    """Bytes of other streams' buffers, which nothing else may use.

    Gathered weights arrive in ``2 · (layer + largest unit)`` (stage 3, or stage 2 under
    pipelining); gradient shards of whole gradients in ``g · params / N``. Source:
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    context, strategy = parts.context, parts.strategy
    states = context.traits.states
    is_whole = unsharded_until_step(strategy, states)
    gathers = (strategy.zero_stage >= 3) | is_whole & (strategy.zero_stage >= 2)
    root = _root_params(parts)
    first = parts.first_params + parts.first_frozen_elements
    largest = np.maximum(np.maximum(first, root), parts.gathered)
    pool = weight_bytes(context) * (parts.gathered + largest)
    whole = is_whole * parts.params * context.model.num_blocks / strategy.pp
    pool = pool + whole * states.gradient_bytes / parts.num_shards
    return np.where(gathers & states.gathers_into_pools, pool, 0.0)


@item("memory.dead_blocks", inputs=("traits.kernels.saved.name",))
def dead_block_bytes(parts: StageParameters) -> Array:
    """Bytes of freed blocks that fit nothing else and stay reserved.

    One layer's forward working set with its gathered weights, and the gradient that the root
    unit reduces from, ``g · root``, where no tensor of the loss left a block as large. Source: a
    replay of traced FSDP2 steps by the allocator's rules, within 2 % of published reserved memory.
    """
    costs, context = parts.costs, parts.context
    working_set = costs.at(costs.freed_bytes)
    weights = np.where(_gathers(parts), weight_bytes(context) * parts.gathered, 0.0)
    reduced = context.traits.states.gradient_reduce_bytes * _trained_root_params(parts)
    fits = reduced <= costs.at(costs.largest_logits_bytes)
    kept = np.where(fits | ~_gathers(parts), 0.0, reduced)
    return working_set + weights + kept


def _whole_gradients(parts: StageParameters) -> Array:
    """Elements of whole gradients that wait for their reduction under stages 2 and 3.

    The largest unit, for which the next waits (_fsdp_param_group.py of FSDP2); a second layer under
    Megatron-FSDP (main_grad_alloc), at stage 2 at least 1e9 (suggested_RS_queue_capacity).
    Gradients that leave through a bucket are counted there.
    """
    states, strategy = parts.context.traits.states, parts.strategy
    if parts.context.traits.overheads.num_buckets > 0:
        return np.zeros(len(strategy))
    is_apart = ~_joins_ends(parts) & (strategy.pp == 1)
    unit = np.maximum(parts.params, np.where(is_apart, parts.last_params, 0.0))
    is_megatron = states.sharded_by == "megatron"
    units = unit + is_megatron * parts.params
    queue = np.where(strategy.zero_stage == 2, is_megatron * 1e9, 0.0)
    waiting = np.maximum(units, np.minimum(queue, _rank_params(parts)))
    return np.where(
        (strategy.zero_stage >= 2) & ~unsharded_until_step(strategy, states), waiting, 0.0
    )


def unit_buffer_bytes(parts: StageParameters) -> Array:
    """Gathered weights, and whole gradients, of the units at work under stages 2 and 3.

    ``w · min(gathered layers · params, live limit) + g · (max(params, head) + (units - 1) ·
    params)`` bytes, w and g as they travel: the reduced gradient is that of the unit before, the
    head's for the last layer (arXiv 1910.02054, section 5;
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; Megatron-Core
    param_and_grad_buffer.py, FixedPoolAllocator).
    """
    context, states = parts.context, parts.context.traits.states
    # The layer at work and one prefetched (arXiv 2304.11277, section 4); the two buffers of
    # Megatron-FSDP's units; DeepSpeed's stage3_prefetch_bucket_size.
    layers = np.where(_gathers(parts), 2.0, 0.0)
    # stage3_max_live_parameters 1e9 and stage3_prefetch_bucket_size 5e7; elsewhere whole units.
    most = 1.05e9 if states.sharded_by == "zero" else np.inf
    live = np.minimum(layers * parts.gathered, most)
    reduced = _whole_gradients(parts) * reduced_gradient_bytes(parts.strategy, states)
    return gathered_weight_bytes(context) * live + reduced


def transient_layer_bytes(parts: StageParameters) -> Array:
    """:func:`unit_buffer_bytes` and ``2 · down``: that projection's 16-bit gradient comes first.

    A unit of embedding and head stays gathered until the embedding has its gradient, and that of
    the head waits: ``2 · (root + vocabulary)``, seen in a traced step of torch's fully_shard.
    The caller adds the activation gradients of :func:`planner.layers.block.backward_tensors`.
    """
    made = _whole_gradients(parts) > 0
    held = np.where(made, parts.costs.at(parts.costs.largest_weight_params), 0.0)
    head = np.minimum(parts.first_params, parts.costs.at(parts.costs.vocab_params))
    waits = _gathers(parts) & _joins_ends(parts)
    held = held + np.where(waits, _trained_root_params(parts) + head, 0.0)
    return unit_buffer_bytes(parts) + weight_bytes(parts.context) * held


def offload_buffer_bytes(parts: StageParameters) -> Array:
    """Bytes of two layers' activations: the one at work, and the one on its way to the host.

    Where a stage offloads a layer's. Source: transformer_engine/pytorch/cpu_offload.py.
    """
    return 2.0 * parts.costs.at(parts.costs.largest_saved_bytes)


def sent_bytes(parts: StageParameters) -> Array:
    """Bytes a stage keeps of what it sent on, per micro-batch: h per token, divided over tp."""
    strategy = parts.strategy
    share = np.where(strategy.sequence_parallel == 0, strategy.tp, 1)
    boundary = parts.costs.at(parts.costs.boundary_bytes)
    return np.where(strategy.pp > 1, boundary / share, 0.0)


@item(
    "memory.kept_logits",
    inputs=(
        "traits.states.pipeline_engine",
        "strategy.num_micro_batches",
    ),
)
def kept_logits_bytes(parts: StageParameters) -> Array:
    """Bytes of all logits that a pipeline keeps to the end of the iteration, and of their join.

    ``2 · m · logits``. Source: torch/distributed/pipelining/stage.py (output_chunks,
    merge_chunks). Zero where outputs die with their backward.
    """
    strategy = parts.strategy
    keeps = parts.context.traits.states.pipeline_engine == "torch"
    logits = parts.costs.at(parts.costs.logits_bytes) * strategy.num_micro_batches
    return np.where((strategy.pp > 1) & keeps, 2.0 * logits, 0.0)


@item(
    "memory.receive_buffers",
    inputs=(
        "traits.states.pipeline_engine",
        "strategy.num_micro_batches",
    ),
)
def receive_buffer_bytes(parts: StageParameters) -> Array:
    """Bytes of one receive buffer: the boundary activation of a micro-batch.

    One for every micro-batch, made before the first step. Source:
    torch/distributed/pipelining/stage.py.
    """
    return np.where(parts.strategy.pp > 1, parts.costs.at(parts.costs.boundary_bytes), 0.0)
