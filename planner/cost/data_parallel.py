"""What gradient reduction and weight gathering cost on the data-parallel groups."""

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.memory import kept_whole
from planner.cost.topology import Group, group_of
from planner.spec.cluster import ClusterSpec, Collective
from planner.spec.strategy import StrategyColumns
from planner.units import Array

GATHERED_WEIGHT_BYTES = 2.0
"""Weights travel in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class DataParallelCosts:
    """Seconds per parameter on the data-parallel group, per iteration or per micro-batch."""

    reduce: Array
    """Per iteration: gradients."""
    gather: Array
    """Per iteration: updated weights."""
    layer_forward: Array
    """Per micro-batch: stage 3 gathers before forward."""
    layer_backward: Array
    """Per micro-batch: stage 3 gathers before backward and reduces after it."""


def _seconds_per_param(
    collective: Collective,
    params: Array,
    num_bytes: Array | float,
    group: Group,
    cluster: ClusterSpec,
) -> Array:
    """Effective seconds per parameter at the average message's size (keeps stages affine)."""
    return collective_s(collective, params * num_bytes, group, cluster) / params


def data_parallel_costs(
    context: Context,
    strategy: StrategyColumns,
    group: Group,
    stage_params: Array,
    layer_params: Array,
) -> DataParallelCosts:
    """Price gradient reduction and weight gathering per parameter on ``group``.

    Stage 0: one all-reduce of gradients. Stages 1-2: reduce-scatter, and all-gather of weights.
    Stage 2 with ``reduces_every_micro_batch`` and stage 3 repeat the reduction each micro-batch;
    stage 3 gathers twice each micro-batch, or once an iteration where it does not reshard under
    pipelining (arXiv 1910.02054, section 7; arXiv 2304.11277, section 3). Replicas of the
    sharding group all-reduce each rank's shard of the gradients after it is scattered
    (hybrid sharding, arXiv 2304.11277, section 3.2.2).
    """
    states, cluster = context.traits.states, context.cluster
    stage = strategy.zero_stage
    wire, weights = states.gradient_reduce_bytes, GATHERED_WEIGHT_BYTES
    all_reduce = _seconds_per_param("all_reduce", stage_params, wire, group, cluster)
    scatter = _seconds_per_param("reduce_scatter", stage_params, wire, group, cluster)
    gather = _seconds_per_param("all_gather", stage_params, weights, group, cluster)
    layer_scatter = _seconds_per_param("reduce_scatter", layer_params, wire, group, cluster)
    layer_gather = _seconds_per_param("all_gather", layer_params, weights, group, cluster)
    replicas = group_of("dp_replicate", strategy, cluster)
    if np.any(replicas.size > 1):
        shard_bytes = wire / np.where(stage >= 1, group.size, 1.0)
        across = _seconds_per_param("all_reduce", stage_params, shard_bytes, replicas, cluster)
        layer_across = _seconds_per_param(
            "all_reduce", layer_params, shard_bytes, replicas, cluster
        )
        all_reduce, scatter = all_reduce + across, scatter + across
        layer_scatter = layer_scatter + layer_across
    backward_gather = layer_gather
    if states.zero3_secondary_weight_bytes:
        domain = group.part(group.local)
        backward_gather = _seconds_per_param("all_gather", layer_params, weights, domain, cluster)
    whole = kept_whole(strategy, states)
    each = (stage >= 2) & states.reduces_every_micro_batch & ~whole
    gathers_each = (stage >= 3) & ~whole
    return DataParallelCosts(
        reduce=np.where(stage == 0, all_reduce, np.where(each, 0.0, scatter)),
        gather=np.where((stage >= 1) & ~gathers_each, gather, 0.0),
        layer_forward=np.where(gathers_each, layer_gather, 0.0),
        layer_backward=np.where(gathers_each, backward_gather, 0.0)
        + np.where(each, layer_scatter, 0.0),
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


def contended_s(compute_s: Array, comm_s: Array, contention_fraction: float) -> Array:
    """``max(compute, comm) + c · min(compute, comm)``: overlap slows both sides.

    Seconds of one layer. Source: c is a framework trait (contention_fraction), fitted on
    published FSDP runs of MosaicML, IBM and torchtitan; plausible range 0.2-0.3. Excludes the
    first gather of a pass, which nothing hides.
    """
    return np.maximum(compute_s, comm_s) + contention_fraction * np.minimum(compute_s, comm_s)


def exposed_and_busy(context: Context, costs: DataParallelCosts) -> tuple[Array, Array]:
    """Per parameter: the least that shows of reduction and gather, and all of it."""
    overlap = context.traits.overlap
    shown = costs.reduce * (1.0 - overlap.data_parallel_hidden_fraction)
    shown = shown + costs.gather * (1.0 - overlap.parameter_gather_hidden_fraction)
    return shown, costs.reduce + costs.gather
