"""Costs of a layer under each policy for its saved activations."""

from dataclasses import replace

import numpy as np

from planner.cost.buffers import offload_buffer_bytes
from planner.cost.context import Context
from planner.cost.layer_passes import LayerTimes
from planner.cost.module_sets import SelectiveCosts
from planner.cost.offload import host_transfer_s
from planner.cost.stage import FULL, SELECTIVE, PolicyCosts, StageModel
from planner.cost.stage_parts import StageParameters
from planner.spec.items import item
from planner.spec.strategy import POLICIES, StrategyColumns
from planner.units import Array, Mask


def with_selective(policies: PolicyCosts, selective: SelectiveCosts) -> PolicyCosts:
    """The same policies with other modules under selective recomputation, the first of POLICIES."""
    replaced = {
        name: np.concatenate([costs[None], getattr(policies, name)[1:]])
        for name, costs in vars(selective).items()
    }
    return replace(policies, **replaced)


def offers_activation_offload(context: Context, strategy: StrategyColumns) -> Mask:
    """Return True per row if activations can be offloaded: offered, and host memory is known."""
    offered = context.traits.support.activation_offload
    known = bool(context.cluster.node.host_memory_bytes)
    always = np.full(len(strategy), known and offered == "yes")
    return np.asarray(always | (known & (offered == "without pipelining") & (strategy.pp == 1)))


def activation_transfer_s(parts: StageParameters) -> Array:
    """Seconds of one layer's saved activations on their way to the host, or back."""
    saved = parts.costs.at(parts.costs.body.saved_bytes)
    return host_transfer_s(saved, parts.context.cluster)


@item(
    "time.offload.activations",
    title="activation offload",
    inputs=(
        "strategy.offloaded_layers_per_stage",
        "traits.support.activation_offload",
        "node.host_link_bytes_per_s",
    ),
    also=(activation_transfer_s, host_transfer_s),
)
def offloaded_costs(parts: StageParameters, times: LayerTimes, pace: Array) -> PolicyCosts:
    """Costs of a layer whose saved activations are offloaded: none of them is kept.

    Everything goes to the host in forward and comes back in backward; per pass
    ``max(compute, fetch + transfer) - max(compute, fetch)`` shows,
    behind the parameters' own fetch over the same link, and the first layer's way there and back
    (:func:`overlap.prefetch_fill_s`); two layers' buffers
    (:func:`buffers.offload_buffer_bytes`). Source: transformer_engine/pytorch/cpu_offload.py, which
    spreads the transfers of some layers over all of a pass: what that hides beyond a layer's own
    pass is left out.
    """
    costs = parts.costs
    saved, lead = costs.at(costs.body.saved_bytes), costs.at(costs.lead.saved_bytes)
    offered = offers_activation_offload(parts.context, parts.strategy)
    transfer = activation_transfer_s(parts)
    shown, fill = 0.0 * saved, 0.0 * saved
    for compute in (times.sharded_forward, times.sharded_backward):
        both = times.fetch + transfer
        shown = shown + np.maximum(compute, both) - np.maximum(compute, times.fetch)
        fill = fill + np.minimum(both, compute) - np.minimum(times.fetch, compute)
    return PolicyCosts(
        added_s=pace * np.where(offered, shown, 0.0),
        fill_s=pace * np.where(offered, fill, 0.0),
        saved_bytes=np.where(offered, 0.0, saved),
        lead_saved_bytes=np.where(offered, 0.0, lead - saved),
        workspace_bytes=np.where(offered, offload_buffer_bytes(parts), 0.0),
        host_bytes=np.where(offered, saved, 0.0),
    )


def policy_costs(parts: StageParameters, times: LayerTimes, pace: Array) -> PolicyCosts:
    """Costs under each of POLICIES; K x C.

    Recomputation rebuilds, a layer at a time, what was not kept (arXiv 2205.05198, section 5).
    """
    costs, none = parts.costs, np.zeros(len(parts.strategy))
    saved, boundary = costs.at(costs.body.selective_saved_bytes), costs.at(costs.boundary_bytes)
    largest = costs.at(costs.largest_saved_bytes)
    by_name = {
        # The forward of the modules that the traits select is repeated, what they rebuild not kept.
        "selective": PolicyCosts(
            added_s=pace * costs.exposed_at(costs.selective),
            fill_s=none,
            saved_bytes=saved,
            lead_saved_bytes=costs.at(costs.lead.selective_saved_bytes) - saved,
            workspace_bytes=largest - costs.at(costs.largest_selective_saved_bytes),
            host_bytes=none,
        ),
        # The whole forward is repeated, and the layer's input is kept.
        "full": PolicyCosts(
            added_s=pace * costs.exposed_at(costs.repeated),
            fill_s=none,
            saved_bytes=boundary,
            lead_saved_bytes=none,
            workspace_bytes=largest - boundary,
            host_bytes=none,
        ),
        "offloaded": offloaded_costs(parts, times, pace),
    }
    rows = [vars(by_name[name]) for name in POLICIES]
    return PolicyCosts(**{name: np.stack([row[name] for row in rows]) for name in rows[0]})


def with_recomputed_mtp(model: StageModel, policy: int) -> StageModel:
    """The model whose blocks of multi-token prediction are recomputed as all its layers are.

    Selectively, or in full (Megatron-Core: where ``uniform`` takes single layers; ``block`` leaves
    them out). Full recomputation keeps a block's input; norms and projection before it are counted
    as kept. Excludes offloaded activations. Source:
    megatron/core/transformer/multi_token_prediction.py, _checkpointed_forward.
    """
    if not model.num_mtp_layers or policy not in (SELECTIVE, FULL):
        return model
    policies = model.policies
    freed = model.saved_bytes - policies.saved_bytes[policy]
    return replace(
        model,
        last_s=model.last_s + model.num_mtp_layers * policies.added_s[policy],
        last_transient_bytes=model.last_transient_bytes - model.num_mtp_layers * freed,
    )
