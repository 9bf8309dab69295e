"""What a layer costs under each policy for its saved activations."""

from dataclasses import replace

import numpy as np

from planner.cost.buffers import offload_buffer_bytes
from planner.cost.context import Context
from planner.cost.layer_times import LayerTimes
from planner.cost.module_sets import SelectiveCosts
from planner.cost.offload import host_transfer_s
from planner.cost.parts import Parts
from planner.cost.stage import PolicyCosts
from planner.spec.items import item
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Mask


def selected_costs(parts: Parts, pace: Array) -> SelectiveCosts:
    """Of the modules that the traits select, for every strategy."""
    costs = parts.costs
    saved = costs.at(costs.body.selective_saved_bytes)
    largest = costs.at(costs.largest_saved_bytes)
    return SelectiveCosts(
        added_s=pace * costs.exposed_at(costs.selective),
        saved_bytes=saved,
        lead_saved_bytes=costs.at(costs.lead.selective_saved_bytes) - saved,
        workspace_bytes=largest - costs.at(costs.largest_selective_saved_bytes),
    )


def with_selective(policies: PolicyCosts, selective: SelectiveCosts) -> PolicyCosts:
    """The same policies with other modules under selective recomputation."""

    def first(values: Array, replaced: Array) -> Array:
        return np.concatenate([replaced[None], values[1:]])

    return replace(
        policies,
        added_s=first(policies.added_s, selective.added_s),
        saved_bytes=first(policies.saved_bytes, selective.saved_bytes),
        lead_saved_bytes=first(policies.lead_saved_bytes, selective.lead_saved_bytes),
        workspace_bytes=first(policies.workspace_bytes, selective.workspace_bytes),
    )


def offers_activation_offload(context: Context, strategy: StrategyColumns) -> Mask:
    """Where saved activations can go to the host: offered, and its memory is known."""
    offered = context.traits.support.activation_offload
    known = bool(context.cluster.node.host_memory_bytes)
    always = np.full(len(strategy), known and offered == "yes")
    return np.asarray(always | (known & (offered == "without pipelining") & (strategy.pp == 1)))


def activation_transfer_s(context: Context, parts: Parts) -> Array:
    """Seconds of one layer's saved activations on their way to the host, or back."""
    saved = parts.costs.at(parts.costs.body.saved_bytes)
    return host_transfer_s(saved, context.cluster)


@item(
    "time.offload.activations",
    inputs=(
        "strategy.offloaded_layers_per_stage",
        "traits.support.activation_offload",
        "node.host_link_bytes_per_s",
    ),
    also=(activation_transfer_s, host_transfer_s),
)
def policy_costs(
    context: Context,
    strategy: StrategyColumns,
    parts: Parts,
    times: LayerTimes,
    pace: Array,
) -> PolicyCosts:
    """Costs under selective recomputation, full recomputation and offloading; each 3 x C.

    Selective: the forward of the selected modules is repeated and what they rebuild is not kept.
    Full: the whole forward is repeated, the layer's input is kept. Both rebuild, for one layer at
    a time, what they did not keep. Offloaded: everything kept goes to the host in forward and
    comes back in backward; per pass ``max(compute, fetch + transfer) - max(compute, fetch)`` shows,
    behind the parameters' own fetch over the same link, and the first layer's way there and back
    (:func:`overlap.prefetch_fill_s`); two layers' buffers
    (:func:`buffers.offload_buffer_bytes`). Source: arXiv 2205.05198, section 5;
    transformer_engine/pytorch/cpu_offload.py, which spreads the transfers of some layers over all
    of a pass: what that hides beyond a layer's own pass is left out.
    """
    costs = parts.costs
    saved, lead = costs.at(costs.body.saved_bytes), costs.at(costs.lead.saved_bytes)
    largest, boundary = costs.at(costs.largest_saved_bytes), costs.at(costs.boundary_bytes)
    offered = offers_activation_offload(context, strategy)
    transfer = activation_transfer_s(context, parts)
    shown, fill = 0.0 * saved, 0.0 * saved
    for compute in (times.sharded_forward, times.sharded_backward):
        both = times.fetch + transfer
        shown = shown + np.maximum(compute, both) - np.maximum(compute, times.fetch)
        fill = fill + np.minimum(both, compute) - np.minimum(times.fetch, compute)
    none, selective = 0.0 * saved, selected_costs(parts, pace)
    buffers = np.where(offered, offload_buffer_bytes(parts), 0.0)
    full_s, shown = pace * costs.exposed_at(costs.forward), pace * np.where(offered, shown, 0.0)
    return PolicyCosts(
        added_s=np.stack([selective.added_s, full_s, shown]),
        fill_s=np.stack([none, none, pace * np.where(offered, fill, 0.0)]),
        saved_bytes=np.stack([selective.saved_bytes, boundary, np.where(offered, 0.0, saved)]),
        lead_saved_bytes=np.stack(
            [selective.lead_saved_bytes, none, np.where(offered, 0.0, lead - saved)]
        ),
        workspace_bytes=np.stack([selective.workspace_bytes, largest - boundary, buffers]),
        host_bytes=np.stack([none, none, np.where(offered, saved, 0.0)]),
    )
