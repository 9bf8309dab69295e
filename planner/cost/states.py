"""Bytes per parameter of weights, gradients and optimizer states on one rank."""

from dataclasses import dataclass

import numpy as np

from planner.cost.context import Rowed
from planner.layers.adapters import frozen_op
from planner.spec.items import item
from planner.spec.strategy import OFFLOAD_CODES, StrategyColumns, ranks_of_sequence
from planner.spec.traits import StateTraits
from planner.units import Array, Mask


def reduced_gradient_bytes(strategy: StrategyColumns, traits: StateTraits) -> Array:
    """Bytes per gradient on the wire: ``zero2_gradient_bytes`` from stage 2 on, where given."""
    late = traits.zero2_gradient_bytes or traits.gradient_reduce_bytes
    return np.where(strategy.zero_stage >= 2, late, traits.gradient_reduce_bytes)


@dataclass(frozen=True, kw_only=True)
class StateBytes(Rowed):
    """Bytes per parameter a rank holds (params already divided by tp, pp, ep and etp)."""

    weights: Array
    gradients: Array
    optimizer: Array  # Sum of the next three
    master_weights: Array
    states: Array  # The optimizer's own
    copies: Array  # Of gradients, or of weights in fp32 training
    host: Array  # Bytes in host memory or on NVMe
    optimizer_step: Array  # What the step makes, less weights and gradients gone by then

    @property
    def device(self) -> Array:
        """All that stays in HBM."""
        return self.weights + self.gradients + self.optimizer


def offloads(strategy: StrategyColumns, what: str) -> Array:
    """1.0 where the strategy offloads ``what`` (optimizer, parameters) or uses ``nvme``."""
    table = np.array([1.0 if what in code else 0.0 for code in OFFLOAD_CODES])
    return np.asarray(table[strategy.offload])


def offloaded_fraction(strategy: StrategyColumns) -> Array:
    """Share of the optimizer's states that live off the device."""
    return offloads(strategy, "optimizer") * strategy.offload_percent / 100.0


def shard_degree(strategy: StrategyColumns) -> Array:
    """Ranks over which ZeRO shards: dp / dp_replicate times cp, as every framework merges them."""
    return np.asarray(strategy.dp / strategy.dp_replicate * ranks_of_sequence(vars(strategy)))


def expert_shard_degree(strategy: StrategyColumns) -> Array:
    """Ranks over which ZeRO shards experts: those of :func:`shard_degree`, times tp / (etp · ep).

    Ranks of a stage with the same part of the same experts, in one sharding group; at least 1.
    """
    shards = shard_degree(strategy) * strategy.tp / (strategy.etp * strategy.ep)
    return np.maximum(shards, 1.0)


@dataclass(frozen=True, kw_only=True)
class FrozenShares(Rowed):
    """Share of the frozen weights on a rank's device and on its host."""

    device: Array
    host: Array


@item(
    "memory.frozen_weights",
    title="frozen weights",
    inputs=(
        "traits.training.mode",
        "strategy.zero_stage",
        "strategy.dp",
        "strategy.offload",
    ),
    also=(frozen_op,),
)
def frozen_shares(
    strategy: StrategyColumns, traits: StateTraits, num_shards: Array
) -> FrozenShares:
    """Share of frozen weights on one rank: whole below stage 3, ``w/N`` there.

    w is the ``frozen_shard_width``. FSDP keeps the shard beside the gathered weights at stage 2.
    Offloaded parameters take the shard to the host. Source:
    arXiv 1910.02054, section 5; torch/distributed/fsdp/_fully_shard/_fsdp_param.py. Excludes scales
    of 4-bit weights, which stay whole.
    """
    stage, away = strategy.zero_stage, offloads(strategy, "parameters")
    share = traits.frozen_shard_width / num_shards
    shard = np.where(stage >= 3, share, 0.0)
    beside = np.where((stage == 2) & traits.is_fsdp, share, 0.0)
    gathered = np.where(stage < 3, 1.0, 0.0)
    has_shard = shard + beside > 0
    kept = np.where(has_shard, shard + beside, gathered) * (1.0 - away)
    return FrozenShares(
        device=kept + np.where(has_shard, gathered, 0.0),
        host=np.where(has_shard, shard + beside, gathered) * away,
    )


def copied_in_groups(strategy: StrategyColumns, traits: StateTraits) -> Mask:
    """True where the step copies gradients group by group: DeepSpeed's stage 3, sub_group_size."""
    return np.asarray((strategy.zero_stage >= 3) & (traits.sharded_by == "zero"))


def whole_gradient_copy_bytes(traits: StateTraits) -> float:
    """Bytes per parameter of further gradient copies at stage 0: 8 under DeepSpeed in 16 bits.

    It flattens gradients in fp32 and keeps the flat copy its norm is taken from. Source:
    deepspeed/runtime/fp16/fused_optimizer.py. None where states of replicas are sharded.
    """
    is_flat = traits.sharded_by == "zero" and traits.master_weight_bytes > 0
    return 8.0 * (is_flat and not traits.shards_replica_states)


def without_gradient_copies(strategy: StrategyColumns, traits: StateTraits) -> Mask:
    """True where ``sharded_gradient_bytes`` are those copies, and live group by group only."""
    are_gradients = traits.master_weight_bytes > 0  # in fp32 training: a clone of the weights
    return np.asarray(copied_in_groups(strategy, traits) & are_gradients)


def unsharded_until_step(strategy: StrategyColumns, traits: StateTraits) -> Mask:
    """True where pipelining keeps stage-3 weights and gradients whole between micro-batches.

    Source: reshard_after_forward of torchtitan, whose default is false under pipelining.
    """
    return np.asarray((strategy.pp > 1) & (traits.pipeline_engine == "torch"))


@item("memory.weights", inputs=("strategy.zero_stage", "strategy.dp", "traits.states.weight_bytes"))
@item(
    "memory.gradients",
    inputs=(
        "strategy.zero_stage",
        "strategy.dp",
        "traits.states.gradient_bytes",
    ),
)
@item(
    "memory.optimizer",
    inputs=(
        "strategy.zero_stage",
        "strategy.dp",
        "strategy.offload",
        "strategy.offload_percent",
        "traits.states.master_weight_bytes",
        "traits.optimizer.name",
    ),
)
@item(
    "memory.transient.optimizer_step",
    inputs=(
        "strategy.zero_stage",
        "strategy.dp",
        "traits.states.steps_all_at_once",
        "traits.optimizer.name",
    ),
)
def state_bytes(
    strategy: StrategyColumns,
    traits: StateTraits,
    num_shards: Array,
    optimizer_bytes: float = 8.0,  # two fp32 moments
    master_bytes: float | None = None,
    domain_shards: Array | float = 1.0,
    weight_shards: float = 1.0,
    foreach_fraction: float = 0.0,
) -> StateBytes:
    """Weights, gradients and optimizer bytes per parameter by ZeRO stage and offload.

    ``domain_shards`` ranks of a scale-up domain share a second copy of the weights under ZeRO++
    (arXiv 2306.10209, section 3.2). ``optimizer_bytes`` are the optimizer's own states (Adam: two
    fp32 moments), to which master weights are added. Stage 1 shards the optimizer states K/N,
    stage 2 also the gradients, stage 3 also the weights; every shard is 1/num_shards (arXiv
    1910.02054, section 5). Under pipelining FSDP may keep weights and gradients whole
    (:func:`unsharded_until_step`). DeepSpeed's bf16 optimizer shards states at stage 0 as well
    (``shards_replica_states``). ``weight_shards`` of the ranks hold a part each of weight and
    gradient at every stage (Megatron-LM generalized_tensor_parallel.md, section 1.7). Offloaded
    optimizer states, all or ``offload_percent`` of them, take their gradient shard along (arXiv
    2101.06840, section 4). The step makes ``foreach_fraction`` of the optimizer's states anew where
    it takes all tensors at once; of FSDP only shards are left then, and no casts. Excludes padding,
    and on the device copies of gradients made group by group (:func:`buffers.step_group_bytes`).
    """
    stage = strategy.zero_stage
    whole = unsharded_until_step(strategy, traits)
    shard = traits.zero3_weight_bytes / num_shards
    kept = shard + traits.zero3_secondary_weight_bytes / domain_shards
    weights = np.where(stage >= 3, kept, traits.weight_bytes / weight_shards)
    weights = np.where((stage >= 3) & whole, traits.weight_bytes, weights)
    gradient_shards = np.where((stage >= 2) & ~whole, num_shards, weight_shards)
    accumulated = (stage >= 2) & (strategy.num_micro_batches > 1)
    late = traits.zero2_gradient_bytes or traits.gradient_bytes
    # bf16 at stage 0: fp32 gradients beside sharded states.
    early = np.where(
        stage == 0,
        np.maximum(traits.gradient_bytes, 4.0 * traits.shards_replica_states),
        traits.gradient_bytes,
    )
    gradients = np.where(stage >= 2, late, early) / gradient_shards
    gradients = gradients + np.where(accumulated, traits.accumulated_gradient_bytes, 0.0)
    buckets = np.where(strategy.dp > 1, traits.replica_bucket_bytes, 0.0)
    copies = np.where(
        stage >= 1, traits.sharded_gradient_bytes, whole_gradient_copy_bytes(traits) + buckets
    )
    master = traits.master_weight_bytes if master_bytes is None else master_bytes
    shards = np.where((stage >= 1) | traits.shards_replica_states, num_shards, weight_shards)
    optimizer = (master + optimizer_bytes + copies) / shards
    in_groups = np.where(without_gradient_copies(strategy, traits), copies, 0.0)
    host_optimizer = offloaded_fraction(strategy)
    stays = (1.0 - host_optimizer) / shards
    made = traits.steps_all_at_once * foreach_fraction * optimizer_bytes * stays
    resharded = weights + gradients - shard - late / num_shards
    casts = weights * (traits.master_weight_bytes > 0)
    gone = np.where(stage >= 2, resharded, casts) * traits.is_fsdp
    host_parameters = offloads(strategy, "parameters")
    follow = host_optimizer * (stage >= 2)
    # Pinned beside offloaded states, 16 bits of weights and, with several micro-batches, of
    # gradients: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py.
    staging = 4.0 * (traits.sharded_by == "zero") / shards
    return StateBytes(
        weights=weights * (1.0 - host_parameters),
        gradients=gradients * (1.0 - follow),
        optimizer=(optimizer - in_groups / shards) * (1.0 - host_optimizer),
        master_weights=master * stays,
        states=optimizer_bytes * stays,
        copies=(copies - in_groups) * stays,
        host=(optimizer + staging) * host_optimizer
        + weights * host_parameters
        + gradients * follow,
        optimizer_step=made - gone,
    )
