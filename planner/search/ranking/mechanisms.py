"""Mechanisms that strategies use, and how often: the exponents of their factors.

Dimensionless columns; a mask counts as 0 and 1. Bounds from which on a degree counts are those of
tuned recipes and published runs.
"""

import numpy as np

from planner.cost.context import Context
from planner.cost.states import offloads
from planner.spec.strategy import PLACEMENT_NAMES, SCHEDULES, StrategyColumns
from planner.units import Array, Mask

# Names of PENALTIES and SIMPLICITY, and how often each strategy uses the mechanism.
Uses = list[tuple[str, Array | Mask]]


def _doublings(value: Array, beyond: Array | float = 1.0) -> Array:
    """``log2(value / beyond)`` where that is positive, else 0."""
    ratio = np.asarray(value, dtype=np.float64) / beyond
    return np.asarray(np.log2(np.maximum(ratio, 1.0)))


def degree_uses(context: Context, columns: StrategyColumns) -> Uses:
    """Return what degrees, micro-batches and experts use: ``experts / ep`` are whole on a rank."""
    tokens = columns.micro_batch * (context.job.seq_len / columns.cp)
    domain = context.cluster.domain.num_accelerators
    support = context.traits.support
    may_sequence = support.sequence_parallel and not support.sequence_parallel_required
    # Published runs have at least 4,096 tokens of a sequence on one rank of context parallelism.
    short = _doublings(4096 * columns.cp / context.job.seq_len)
    is_short = context.job.seq_len < 16384
    shards_always = min(support.zero_stages) >= 2
    # The most tokens of one micro-batch of several sequences on one rank in a tuned recipe.
    large = _doublings(tokens, 32768)
    is_spreading = context.model.moe is not None and support.ep
    local = context.model.moe.num_experts / columns.ep if context.model.moe else np.zeros(1)
    return [
        ("tensor_parallel", _doublings(columns.tp)),
        ("tensor_parallel_across_domains", columns.tp > domain),
        ("pipeline_parallel", _doublings(columns.pp)),
        ("deep_pipeline", _doublings(columns.pp, 16)),
        ("odd_degrees", np.bitwise_and(columns.pp, columns.pp - 1) > 0),
        ("context_parallel", _doublings(columns.cp)),
        ("short_context", (columns.cp > 1) & is_short),
        ("context_parallel_under_fsdp", (columns.cp > 1) & is_short & shards_always),
        ("short_context_pieces", np.where(columns.cp > 1, short, 0.0)),
        ("virtual_stages", _doublings(columns.vpp)),
        (
            "no_sequence_parallel",
            may_sequence & (columns.tp > 1) & (columns.sequence_parallel == 0),
        ),
        ("large_micro_batch", np.where(columns.micro_batch > 1, large, 0.0)),
        ("experts_not_spread", (columns.ep == 1) & is_spreading),
        # The most in a tuned recipe: 256 over ep 8, 32 over ep 1.
        ("many_local_experts", _doublings(local, 32)),
        # The most in a tuned recipe or a published training run.
        ("many_expert_ranks", _doublings(columns.ep, 64)),
    ]


def state_uses(context: Context, columns: StrategyColumns) -> Uses:
    """Return what ZeRO stages, rank orders, schedules and offload use.

    Of offload the optimizer, then parameters, then the disk, cumulatively, and the same for every
    percentage: a part offloaded takes the machinery of the whole.
    """
    support = context.traits.support
    usual = PLACEMENT_NAMES.index(support.placements[0])
    is_choice = min(support.zero_stages) < 2
    shards_weights = columns.zero_stage == 3
    ranks = columns.dp / columns.dp_replicate * columns.cp
    # Published pairs show no loss up to 192 ranks that share the weights under ZeRO stage 3.
    by_choice = shards_weights * _doublings(ranks, 192)
    # The most under FSDP in a published run, which the model meets (torchtitan, Composer).
    always = shards_weights * _doublings(ranks, 512)
    splits_backward = np.array([name not in ("1f1b", "gpipe") for name in SCHEDULES])
    beside = is_choice and support.pp
    domain = context.cluster.domain.num_accelerators
    return [
        (
            "tensor_parallel_beside_zero",
            (columns.tp > 1) & ((shards_weights & is_choice) | (not support.pp)),
        ),
        ("weights_across_domains", shards_weights & beside & (ranks * columns.tp > domain)),
        ("sharded_gradients", (columns.zero_stage == 2) & beside),
        ("sharded_weights", shards_weights & is_choice),
        ("weights_over_many_ranks", by_choice * is_choice),
        ("full_sharding_over_many_ranks", always * (not is_choice)),
        ("hybrid_sharding", (columns.dp_replicate > 1) & (columns.zero_stage > 0)),
        ("other_placement", columns.placement != usual),
        ("split_backward", splits_backward[columns.schedule]),
        ("optimizer_offload", columns.offload > 0),
        ("parameter_offload", offloads(columns, "parameters") > 0),
        ("nvme", offloads(columns, "nvme") > 0),
    ]
