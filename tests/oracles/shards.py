"""Exact bytes per rank of sharded weights, gradients and optimizer states, padding included.

What each framework allocates, tensor by tensor, with bf16 compute, fp32 master weights and
Adam. ``planner.cost.states`` prices the same states as bytes per parameter over the number
of shards. Rules are those of torch 2.13 and DeepSpeed 0.19; test_zero_shards.py runs both.

The scalar step counters of Adam, buckets and gathered weights are not in here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
from rank_parameters import layer_kind

from planner.layers.weights import Part, Weight, weight_shapes
from planner.spec.model import ModelSpec
from planner.units import Array, ceil_div

BF16 = 2
FP32 = 4
MOMENTS = 2 * FP32  # Both moments of Adam
ALIGNMENT = 2
"""Elements on which every ZeRO partition starts: ``nccl_start_alignment_factor`` of
deepspeed/runtime/zero/stage_1_and_2.py."""


@dataclass(frozen=True, kw_only=True)
class RankBytes:
    """Bytes one rank (or every rank of a column) holds."""

    parameters: Array  # of the tensors the model reads, sharded or whole
    accumulated: Array  # Gradients kept from one micro-batch to the next
    gradients: Array  # Gradients after the last backward, reduced, before the step
    optimizer: Array  # Master weights that are not ``parameters``, and both moments


def _sizes(weights: Sequence[Weight]) -> list[int]:
    return [prod(weight.shape) for weight in weights]


# --- FSDP2 -------------------------------------------------------------------------------------


def fsdp_shard_elements(
    shape: Sequence[int], num_shards: Array | int, dim: Array | int = 0
) -> Array:
    """Elements every rank allocates for its shard of one tensor: ceil(shape[dim] / N) · rest.

    The last ranks are padded to the size of the first; the shard's storage keeps the padding.
    Along another dimension than the first, N has to divide it.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py (``_init_sharded_param``).
    """
    shards = np.asarray(num_shards)
    extent = np.asarray(shape)[dim]
    elements: Array = ceil_div(extent, shards) * (prod(shape) // extent)
    return elements


def fsdp_own_elements(
    shape: Sequence[int], num_shards: Array | int, rank: Array | int, dim: Array | int = 0
) -> Array:
    """Elements of one tensor that belong to this rank: its shard without padding.

    Chunks of ceil(n / N) rows as torch.chunk makes them: the last ranks may own fewer rows or
    none. Source: torch/distributed/fsdp/_fully_shard/_fsdp_common.py (``_chunk_with_empty``).
    """
    shards = np.asarray(num_shards)
    rows = np.asarray(shape)[dim]
    chunk = ceil_div(rows, shards)
    per_row = fsdp_shard_elements(shape, shards, dim) // chunk
    own: Array = np.clip(rows - np.asarray(rank) * chunk, 0, chunk) * per_row
    return own


def fsdp_bytes(
    weights: Sequence[Weight],
    num_shards: Array | int,
    rank: Array | int = 0,
    expert_dim: Array | int = 0,
) -> RankBytes:
    """FSDP2 with fp32 shards: 4 padded, 4 padded (gradients), 8 · own elements (moments).

    Gradients are views of one buffer per ``fully_shard`` group, which has the padding of all its
    tensors; it is cast to the shards' dtype whatever ``reduce_dtype`` is. The moments are made
    like the unpadded shard. Rank 0 owns the most, so its bytes are the peak. torchtitan shards
    stacked experts along dimension 1 where there are fewer experts than ranks (``expert_dim``);
    Accelerate never does, so every rank then holds a whole expert.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (``foreach_reduce``),
    torch/optim/adamw.py, torchtitan/distributed/fsdp.py, accelerate/utils/fsdp_utils.py.
    """
    padded: Array = np.zeros(())
    own: Array = np.zeros(())
    for weight in weights:
        dim = expert_dim if "routed" in weight.name else 0
        padded = padded + fsdp_shard_elements(weight.shape, num_shards, dim)
        own = own + fsdp_own_elements(weight.shape, num_shards, rank, dim)
    return RankBytes(
        parameters=FP32 * padded,
        accumulated=FP32 * padded,
        gradients=FP32 * padded,
        optimizer=MOMENTS * own,
    )


# --- ZeRO stages 1 and 2 -----------------------------------------------------------------------


def zero_partition_elements(num_elements: Array | int, num_shards: Array | int) -> Array:
    """Elements of one rank's partition of a flattened parameter group: 2 · ceil(n / 2N).

    The group is padded at its end to a multiple of 2 N, so partitions are equal. Source:
    deepspeed/runtime/zero/stage_1_and_2.py (``flatten_dense_tensors_aligned``);
    deepspeed/runtime/bf16_optimizer.py pads alike.
    """
    return ALIGNMENT * ceil_div(num_elements, ALIGNMENT * np.asarray(num_shards))


def zero_touched_elements(sizes: Sequence[int], num_shards: int) -> Array:
    """Per rank, elements of all tensors of which its partition holds at least one element.

    With gradients accumulated in 16 bits a rank keeps these tensors' gradients whole, not only
    the slice it owns. ``sizes`` are the group's tensors in order. Source:
    deepspeed/runtime/zero/stage_1_and_2.py (``get_partition_info``, ``copy_grads_in_partition``).
    """
    ends = np.cumsum(np.asarray(sizes))
    partition = zero_partition_elements(ends[-1], num_shards)
    left = np.arange(num_shards) * partition
    bounds = np.concatenate([[0], ends])
    first = np.searchsorted(ends, left, side="right")
    last = np.searchsorted(bounds[:-1], left + partition, side="left")
    touched: Array = bounds[last] - bounds[first]
    return touched


def _padding_of_ranks(num_elements: int, num_shards: int) -> Array:
    """Per rank, elements of its partition that are padding."""
    partition = zero_partition_elements(num_elements, num_shards)
    left = np.arange(num_shards) * partition
    padding: Array = partition - np.clip(num_elements - left, 0, partition)
    return padding


def zero_bytes(
    groups: Sequence[Sequence[Weight]],
    num_shards: int,
    stage: Literal[1, 2],
    *,
    fp32_accumulation: bool = False,
) -> RankBytes:
    """ZeRO 1 or 2 on every rank, as columns of length ``num_shards``.

    ``groups`` are the optimizer's parameter groups, tensors in order; each is flattened and
    padded on its own to p elements per rank. bf16 weights 2 N p; fp32 master and moments 12 p;
    n elements in all. Gradients, bf16 (``grad_accum_dtype`` left out): stage 1 keeps all 2 n
    until the last backward, stage 2 the tensors its partition touches; after reduction both hold
    2 (touched + padding). fp32: stage 2 holds 4 p (of a group whose tensors it does not touch
    only at the end), stage 1 is another optimizer, which holds 4 N p and the bf16 gradients 2 n.
    Source: deepspeed/runtime/zero/stage_1_and_2.py (``independent_gradient_partition_epilogue``,
    ``_build_compact_grad_partition_buffer``), deepspeed/runtime/bf16_optimizer.py,
    deepspeed/runtime/engine.py (``_do_optimizer_sanity_check``).
    """
    every_rank: Array = np.zeros(num_shards)
    partition, used, touched, padding = every_rank, every_rank, every_rank, every_rank
    num_elements = 0
    for group in groups:
        sizes = _sizes(group)
        part = zero_partition_elements(sum(sizes), num_shards)
        touches = zero_touched_elements(sizes, num_shards)
        partition, used = partition + part, used + part * (touches > 0)
        touched = touched + touches
        padding = padding + _padding_of_ranks(sum(sizes), num_shards)
        num_elements += sum(sizes)
    whole = every_rank + BF16 * num_elements
    if not fp32_accumulation:
        gradients = BF16 * (touched + padding)
        accumulated = BF16 * touched if stage == 2 else whole
    elif stage == 2:
        gradients, accumulated = FP32 * partition, FP32 * used
    else:
        gradients = accumulated = FP32 * num_shards * partition + whole
    return RankBytes(
        parameters=BF16 * num_shards * partition,
        accumulated=accumulated,
        gradients=gradients,
        optimizer=(FP32 + MOMENTS) * partition,
    )


# --- ZeRO stage 3 ------------------------------------------------------------------------------


def zero3_partition_elements(num_elements: Array | int, num_shards: Array | int) -> Array:
    """Elements of one rank's partition of one tensor: ceil(n / N), on the last ranks padded.

    Source: deepspeed/runtime/zero/partition_parameters.py (``_aligned_size``,
    ``_partition_param``).
    """
    return ceil_div(num_elements, np.asarray(num_shards))


def zero3_sub_groups(
    sizes: Sequence[int], num_shards: int, sub_group_size: int = 10**9
) -> list[int]:
    """Partition elements of each sub-group, which the optimizer updates one after another.

    A sub-group is closed by the tensor that brings its partitions to ``sub_group_size``. During
    its update it holds an fp32 gradient of 4 bytes per element. Source:
    deepspeed/runtime/zero/stage3.py (``_create_fp16_sub_groups``).
    """
    groups = [0]
    for size in sizes:
        if groups[-1] >= sub_group_size:
            groups.append(0)
        groups[-1] += int(zero3_partition_elements(int(size), num_shards))
    return groups


def zero3_bytes(
    weights: Sequence[Weight],
    num_shards: Array | int,
    *,
    persistence_threshold: int = 100_000,
    fp32_accumulation: bool = False,
) -> RankBytes:
    """ZeRO 3, alike on every rank: with p = Σ ceil(n / N), 2 p weights, 2 p or 4 p gradients, 12 p.

    Tensors of at most ``persistence_threshold`` elements (``stage3_param_persistence_threshold``)
    stay gathered after the first step beside their partition: 2 N ceil(n / N) more.
    Source: deepspeed/runtime/zero/stage3.py (``lp_param_buffer``, ``grad_partitions_flat_buffer``,
    ``_create_fp32_partitions``, ``_post_step``),
    deepspeed/runtime/zero/parameter_offload.py (``mark_persistent_parameters``).
    """
    shards = np.asarray(num_shards)
    partition: Array = np.zeros(())
    gathered: Array = np.zeros(())
    for weight in weights:
        part = zero3_partition_elements(prod(weight.shape), shards)
        partition = partition + part
        gathered = gathered + part * shards * (prod(weight.shape) <= persistence_threshold)
    gradients = (FP32 if fp32_accumulation else BF16) * partition
    return RankBytes(
        parameters=BF16 * (partition + gathered),
        accumulated=gradients,
        gradients=gradients,
        optimizer=(FP32 + MOMENTS) * partition,
    )


def as_gpt2(layer: Iterable[Weight]) -> Iterable[Weight]:
    """A layer as GPT-2 registers it: norms first, q, k and v as one, matrices (in, out).

    Source: transformers/models/gpt2/modeling_gpt2.py with Conv1D of transformers/pytorch_utils.py.
    """
    tensors = {weight.name: weight.shape for weight in layer}
    for kind in ("weight", "bias"):
        rows, *columns = zip(*(tensors[f"{name}.{kind}"] for name in "qkv"), strict=True)
        tensors[f"qkv.{kind}"] = (sum(rows), *(column[0] for column in columns))
    for name in ("norm_0", "qkv", "attention_output", "norm_1", "mlp_up", "mlp_down"):
        for kind in ("weight", "bias"):
            yield Weight(f"{name}.{kind}", tensors[f"{name}.{kind}"][::-1])


def model_weights(model: ModelSpec, *, is_gpt2: bool = False) -> tuple[Weight, ...]:
    """All tensors of the model in the order of its parameters: embedding, layers, norm, head."""

    def named(prefix: str, weights: Iterable[Weight]) -> Iterable[Weight]:
        return (replace(weight, name=f"{prefix}.{weight.name}") for weight in weights)

    weights = [*named("embedding", weight_shapes(model, "embedding"))]
    for index in range(model.num_blocks):
        layer: Iterable[Weight] = weight_shapes(model, layer_kind(model, index))
        weights += named(f"layers.{index}", as_gpt2(layer) if is_gpt2 else layer)
    ends: tuple[Part, ...] = ("final_norm", "head", "extra")
    for end in ends:
        weights += named(end, weight_shapes(model, end))
    return tuple(weights)
