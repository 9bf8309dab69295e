"""Cost of gradient reduction and weight gathering on the data-parallel groups."""

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.context import Context, Rowed
from planner.cost.kernels import memory_bound_s
from planner.cost.network import broadcasts_s, collective_s
from planner.cost.states import reduced_gradient_bytes, unsharded_until_step
from planner.cost.topology import Group, group_of
from planner.layers.parameters import count_layer_tensors
from planner.spec.cluster import ClusterSpec, Collective
from planner.spec.job import element_bytes
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import ShardedBy
from planner.units import Array, Mask


def weight_bytes(context: Context) -> float:
    """Bytes of a weight as it travels: as kernels read it, in fp32 under autocast."""
    traits = context.traits
    is_cast = traits.kernels.widens_stream and not traits.training.is_frozen
    return element_bytes("fp32" if is_cast else context.job.precision)


@dataclass(frozen=True, kw_only=True)
class DataParallelCosts(Rowed):
    """Seconds per parameter on the data-parallel group, per iteration or per micro-batch."""

    reduce: Array  # Per iteration: gradients
    gather: Array  # Per iteration: updated weights
    layer_forward: Array  # Per micro-batch: stage 3 gathers before forward
    layer_backward: Array  # Per micro-batch: stage 3 gathers before backward and reduces after it
    layer_backward_gather: Array  # Gather part of it
    copy_gather: Array  # Per gather of stage 3: what arrived is copied into the weights
    copy_reduce: Array
    """Per micro-batch of stages 2 and 3: gradients are copied for their reduction."""
    bucket_fraction: Array  # Share of a model chunk's gradients in one bucket

    @property
    def both_passes(self) -> Array:
        """Per micro-batch: exchanges and copies of forward and backward, of trained weights."""
        return self.layer_forward + self.layer_backward + 2.0 * self.copy_gather + self.copy_reduce

    @property
    def both_gathers(self) -> Array:
        """Per micro-batch: gathers and copies of forward and backward, of frozen weights."""
        return self.layer_forward + self.layer_backward_gather + 2.0 * self.copy_gather


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """Exchanges and when they run: an all-reduce or a scatter of gradients, a gather of weights.

    Source: arXiv 1910.02054, section 7; arXiv 2304.11277, section 3.
    """

    all_reduces: Mask  # Gradients, which are scattered otherwise
    reduces_each: Mask  # Gradients, behind every micro-batch; otherwise once an iteration
    gathers_each: Mask  # Weights, before every forward and every backward
    gathers_once: Mask  # Updated weights, once an iteration


def exchanges_of(
    context: Context, strategy: StrategyColumns, *, stays_gathered: bool = False
) -> Exchanges:
    """Decide from ZeRO stage and traits; see :func:`data_parallel_costs`."""
    states, stage = context.traits.states, strategy.zero_stage
    whole = unsharded_until_step(strategy, states)
    each = (stage >= 3) & ~whole & (not stays_gathered)
    return Exchanges(
        all_reduces=(stage == 0) | ((stage <= 2) & (not states.scatters_gradients)),
        reduces_each=(stage >= 2) & states.reduces_every_micro_batch & ~whole,
        gathers_each=each,
        gathers_once=(stage >= 1) & ~each,
    )


def bucket_elements(
    context: Context, strategy: StrategyColumns, chunk_params: Array, layer_params: Array
) -> Array:
    """``min(elements, chunk)``: gradients sent in one message, a layer's where the trait says 0.

    Buckets do not cross model chunks. Megatron's have at least ``1e6 · dp`` elements:
    max(40e6, 1e6 · dp), megatron/core/distributed/distributed_data_parallel.py. Excludes the
    rounding of buckets to whole tensors.
    """
    wanted: Array | float = context.traits.overlap.gradient_bucket_elements
    if context.traits.states.sharded_by == "megatron":
        wanted = np.maximum(wanted, 1e6 * strategy.dp)
    return np.minimum(np.where(wanted > 0, wanted, layer_params), chunk_params)


def gather_elements(context: Context, layer_elements: Array, chunk_elements: Array) -> Array:
    """``min(max(elements, layer / tensors), chunk)``: weights gathered in one message at stage 3.

    A layer's where the trait says 0. Elsewhere modules are fetched one by one, and together with
    those that follow until they are ``weight_gather_elements``; n tensors of a layer count as
    alike. Source: fetch_sub_module in deepspeed/runtime/zero/partitioned_param_coordinator.py.
    Excludes small tensors that stay gathered, rounding to tensors, and hooks on the host.
    """
    wanted = context.traits.overlap.weight_gather_elements
    if not wanted:
        return layer_elements
    tensors = count_layer_tensors(context.model)
    return np.minimum(np.maximum(wanted, layer_elements / tensors), chunk_elements)


def gathered_weight_bytes(context: Context) -> float:
    """Bytes per weight gathered for a pass: fewer where the framework casts to fp8 first.

    Weights cut over further ranks are kept, and gathered, in MXFP8 and NVFP4 with their scales.
    """
    precision, states = context.job.precision, context.traits.states
    if states.cuts_weights:
        # A scale of a byte for 32 and for 16 weights.
        kept = {"mxfp8": 33.0 / 32.0, "fp4": 9.0 / 16.0}
        return kept.get(precision, weight_bytes(context))
    in_fp8 = precision in ("fp8", "fp8_block", "mxfp8")
    return states.fp8_gathered_weight_bytes if in_fp8 else weight_bytes(context)


def _seconds_per_param(
    collective: Collective,
    params: Array,
    num_bytes: Array | float,
    group: Group,
    cluster: ClusterSpec,
) -> Array:
    """Effective seconds per parameter at the average message's size (keeps stages affine)."""
    return collective_s(collective, params * num_bytes, group, cluster) / params


def gradient_copy_bytes(weight: float, wire: float, sharded_by: ShardedBy) -> float:
    """HBM traffic per gradient of a whole unit, from the product that wrote it to its reduction.

    FSDP1: tensors joined to one ``2 w``, widened where the reduction is wider ``w + g``, divided in
    place ``2 g``. FSDP2: copied, and widened, into the reduction's buffer, ``w + g``. ``weight``
    and ``wire``: bytes of a gradient as products write and as ranks exchange it. Source: FSDP1,
    _flat_param.py (torch.split) and _reduce_grad in _runtime_utils.py of torch/distributed/fsdp;
    FSDP2, foreach_reduce in _fully_shard/_fsdp_collectives.py. Excludes the padding of flat
    gradients that the ranks do not divide, and casts and sums of a rank's own part.
    """
    if sharded_by == "fsdp2":
        return weight + wire
    if sharded_by != "fsdp1":
        return 0.0
    return 2.0 * weight + (weight + wire) * (wire > weight) + 2.0 * wire


def copy_s_per_param(context: Context, when: Exchanges, stage: Array) -> tuple[Array, Array]:
    """Seconds per parameter to copy a unit's weights behind a gather, its gradients per backward.

    FSDP2: what arrived is copied into the weights, ``2 w``; flat weights are gathered in place.
    Gradients: :func:`gradient_copy_bytes` where every micro-batch is reduced, else each is added
    to whole ones, ``w + 2 g``, flat ones joined before; of it what exceeds
    ``weight_gradient_bytes``, which backward has already. From stage 2 on. Source:
    foreach_all_gather_copy_out, as there. Excludes weights that are gathered once an iteration.
    """
    traits = context.traits
    states, accelerator = traits.states, context.cluster.accelerator
    if not states.is_fsdp:
        return np.zeros(len(stage)), np.zeros(len(stage))
    weight, wire = weight_bytes(context), states.gradient_reduce_bytes
    handed = gradient_copy_bytes(weight, wire, states.sharded_by)
    joined = 2.0 * weight * (states.sharded_by == "fsdp1")
    moved = np.where(when.reduces_each, handed, joined + weight + 2.0 * wire)
    further = np.maximum(moved - traits.kernels.weight_gradient_bytes, 0.0) * (stage >= 2)
    whole = 2.0 * gathered_weight_bytes(context) * (states.sharded_by == "fsdp2")
    gathered = np.where(when.gathers_each, whole, 0.0)
    return memory_bound_s(gathered, accelerator), memory_bound_s(further, accelerator)


def data_parallel_costs(
    context: Context,
    strategy: StrategyColumns,
    group: Group,
    stage_params: Array,
    layer_params: Array,
    frozen_elements: Array | float = 0.0,
    *,
    stays_gathered: bool = False,
    weight_shards: float = 1.0,
) -> DataParallelCosts:
    """Price gradient reduction and weight gathering per parameter on ``group``.

    Stage 0: one all-reduce of gradients. Stages 1-2: reduce-scatter (some frameworks all-reduce,
    ``scatters_gradients``), and all-gather of weights (or broadcasts, ``broadcasts_weights``).
    Stage 2 with ``reduces_every_micro_batch`` and stage 3 repeat the reduction each micro-batch;
    stage 3 gathers twice each micro-batch, or once an iteration what ``stays_gathered``, and
    where it does not reshard under pipelining (arXiv 1910.02054, section 7; arXiv 2304.11277,
    section 3). Replicas of the sharding group all-reduce each rank's shard of the gradients after
    it is scattered (hybrid sharding, arXiv 2304.11277, section 3.2.2). Messages are buckets
    (:func:`bucket_elements`), or a layer from stage 3 on, gathered with its ``frozen_elements``
    (:func:`gather_elements`).

    Where ``weight_shards`` n neighbours hold a part of each weight, they gather it for both passes
    and scatter its gradient, a weight a message, in every micro-batch, ``2 w + g`` bytes; what a
    rank holds, 1/n, is reduced and gathered once an iteration over every n-th rank (Megatron-LM
    docs/api-guide/core/generalized_tensor_parallel.md, sections 1.3, 3.2). Excludes padding, and
    gathers of their own for recomputation and further tokens.
    """
    states, cluster = context.traits.states, context.cluster
    near, far, message, is_cut = group, group, layer_params, weight_shards > 1.0
    if is_cut:
        near, far = group.part(np.array(weight_shards)), group.every(weight_shards)
        # linear_qkv, linear_proj, linear_fc1 and linear_fc2, those two of all experts together.
        message = layer_params / 4.0
    stage = strategy.zero_stage
    when = exchanges_of(context, strategy, stays_gathered=stays_gathered)
    wire, weights = reduced_gradient_bytes(strategy, states), weight_bytes(context)
    layer_weights = gathered_weight_bytes(context)
    chunk_params = stage_params / (strategy.vpp * weight_shards)
    bucket = bucket_elements(context, strategy, chunk_params, layer_params / weight_shards)
    all_reduce = _seconds_per_param("all_reduce", bucket, wire, far, cluster)
    scatter = _seconds_per_param("reduce_scatter", bucket, wire, far, cluster)
    if states.broadcasts_weights:
        gather = broadcasts_s(stage_params * weights, group, cluster) / stage_params
    else:
        gather = _seconds_per_param("all_gather", bucket, weights, far, cluster)
    layer_reduce = _seconds_per_param("reduce_scatter", message, wire, near, cluster)
    if not states.scatters_gradients:
        whole = _seconds_per_param("all_reduce", layer_params, wire, group, cluster)
        layer_reduce = np.where(when.all_reduces, whole, layer_reduce)
    unit = message + frozen_elements
    unit = gather_elements(context, unit, unit / layer_params * chunk_params)
    layer_gather = _seconds_per_param("all_gather", unit, layer_weights, near, cluster)
    replicas = group_of("dp_replicate", strategy, cluster)
    if np.any(replicas.size > 1):
        shard_bytes = wire / np.where(stage >= 1, group.size, 1.0)
        across = _seconds_per_param("all_reduce", bucket, shard_bytes, replicas, cluster)
        layer_across = _seconds_per_param(
            "all_reduce", layer_params, shard_bytes, replicas, cluster
        )
        all_reduce, scatter = all_reduce + across, scatter + across
        layer_reduce = layer_reduce + layer_across
    backward_gather = layer_gather
    if states.zero3_secondary_weight_bytes:
        domain = group.part(group.local)
        backward_gather = _seconds_per_param("all_gather", unit, layer_weights, domain, cluster)
    gathered_back = np.where(when.gathers_each | is_cut, backward_gather, 0.0)
    copy_gather, copy_reduce = copy_s_per_param(context, when, stage)
    reduce = np.where(when.reduces_each, 0.0, np.where(when.all_reduces, all_reduce, scatter))
    return DataParallelCosts(
        reduce=reduce / weight_shards,
        gather=np.where(when.gathers_once, gather, 0.0) / weight_shards,
        layer_forward=np.where(when.gathers_each | is_cut, layer_gather, 0.0),
        layer_backward=gathered_back + np.where(when.reduces_each | is_cut, layer_reduce, 0.0),
        layer_backward_gather=gathered_back,
        copy_gather=copy_gather,
        copy_reduce=copy_reduce,
        bucket_fraction=bucket / chunk_params,
    )


def blended(
    dense: DataParallelCosts, expert: DataParallelCosts, fraction: Array
) -> DataParallelCosts:
    """Mean price of a layer's parameters, of which ``fraction`` are experts."""
    prices = {
        field.name: getattr(dense, field.name) * (1.0 - fraction)
        + getattr(expert, field.name) * fraction
        for field in fields(DataParallelCosts)
    }
    return DataParallelCosts(**prices)
