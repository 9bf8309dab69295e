"""What optimizer states and parameters in host memory or on NVMe cost in time.

Sections of papers are recalled.
"""

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.traits import OffloadTraits
from planner.units import Array

NVME_STATE_BYTES = 12.0
"""Optimizer bytes per parameter read from, and written to, NVMe each step."""
HOST_WEIGHT_BYTES = 2.0
"""Weights cross the host link in 16 bits."""


def host_transfer_s(num_bytes: Array, cluster: ClusterSpec) -> Array:
    """``bytes / link``: between host memory and one accelerator, over its own link, one way.

    Both ways go at once. Source: arXiv 2104.07857, section 5.2 (every rank uses its own link).
    Excludes latency and pageable memory.
    """
    return num_bytes / cluster.node.host_link_bytes_per_s


def parameter_fetch_s(num_bytes: Array, on_nvme: Array, cluster: ClusterSpec) -> Array:
    """One pass of parameters to the accelerator: the slower of host link and, on NVMe, its disks.

    ``max(bytes / link, bytes · gpus_per_node / read)``: disk to host and host to accelerator are
    pipelined (arXiv 2104.07857, section 6.2). Infinite where the node has no NVMe rate.
    """
    node = cluster.node
    read = node.nvme_read_bytes_per_s
    from_disk = num_bytes * node.num_accelerators / read if read else num_bytes + np.inf
    fetch = host_transfer_s(num_bytes, cluster)
    return np.where(on_nvme > 0, np.maximum(fetch, from_disk), fetch)


def host_adam_s(owned_params: Array, cluster: ClusterSpec, traits: OffloadTraits) -> Array:
    """``owned · ranks / rate``: the framework's optimizer on the CPU, with its own copies.

    ``ranks`` are those of a whole node where they share the rate, else 1: a part of a node has its
    share of the processor. Source: published pairs of runs with and without offload
    (``traits.offload``). ZeRO-Offload itself reports 4.3e9 parameters per second and DGX-2 for the
    kernel alone (arXiv 2101.06840, table 4, recalled), 3 to 14 times what runs show. Excludes other
    CPUs than those of the runs.
    """
    node = cluster.node.whole or cluster.node
    ranks = node.num_accelerators if traits.host_optimizer_shares_node else 1
    return owned_params * ranks / traits.host_optimizer_params_per_s


def host_optimizer_s(owned_params: Array, cluster: ClusterSpec, traits: OffloadTraits) -> Array:
    """``max(Adam, weights up)``: the step is never faster than the host link.

    Source: arXiv 2101.06840, section 5.1. Gradients came during backward
    (:func:`exposed_gradient_offload_s`). Excludes one-step delayed update
    (:func:`delayed_update_s`).
    """
    up_s = host_transfer_s(owned_params * HOST_WEIGHT_BYTES, cluster)
    return np.maximum(host_adam_s(owned_params, cluster, traits), up_s)


def exposed_gradient_offload_s(transfer_s: Array, backward_s: Array) -> Array:
    """``max(transfer - backward, 0)``: gradients go to the host as backward makes them.

    Copy engines do it, so computation is not slowed. Source: arXiv 2101.06840, section 4.1.
    """
    return np.maximum(transfer_s - backward_s, 0.0)


def delayed_update_s(step_s: Array, forward_backward_s: Array) -> Array:
    """``max(step - forward and backward, 0)``: the host updates while the next step computes.

    Weights are one step old, from some tens of steps on. Source: one-step delayed parameter
    update, arXiv 2101.06840, section 5.2. No framework's default; changes training.
    """
    return np.maximum(step_s - forward_backward_s, 0.0)


def nvme_optimizer_s(owned_params: Array, cluster: ClusterSpec) -> Array:
    """Optimizer states read from and written to the node's NVMe (arXiv 2104.07857, section 5).

    Runs beside Adam, chunk by chunk (section 6.2). Infinite where the node has no NVMe rate.
    """
    node = cluster.node
    if not node.nvme_read_bytes_per_s or not node.nvme_write_bytes_per_s:
        return owned_params + float("inf")
    num_bytes = owned_params * NVME_STATE_BYTES * node.num_accelerators
    return num_bytes / node.nvme_read_bytes_per_s + num_bytes / node.nvme_write_bytes_per_s


def bandwidth_efficiency(
    flops_per_byte: Array, bytes_per_s: Array, peak_flops_per_s: Array
) -> Array:
    """``a b / (a b + peak)``: share of time spent computing when transfers do not overlap.

    a is what one byte moved is worth: batch · seq for parameters and gradients in 16 bits,
    batch · seq / 4 for optimizer states, 24 · hidden · layers between checkpoints for
    activations. Source: ZeRO-Infinity, arXiv 2104.07857, section 4, equation 6.
    """
    work = np.asarray(flops_per_byte) * bytes_per_s
    return work / (work + peak_flops_per_s)


def window_pass_s(layer_s: Array, fetch_s: Array, num_layers: Array, window: Array) -> Array:
    """One pass over layers of which a window of w stays on the accelerator.

    ``max(n · compute, (n - w) · fetch + compute)``: the first w layers are there when the pass
    starts, each later one is fetched once a place is free, over one link. Backward is the same
    with gradients leaving the other way. Source: working window of STRONGHOLD (SC22, doi
    10.1109/SC41404.2022.00076); formula derived. Excludes layers of unequal time.
    """
    compute = num_layers * layer_s
    return np.maximum(compute, np.maximum(num_layers - window, 0.0) * fetch_s + layer_s)


def least_window(layer_s: Array, fetch_s: Array, num_layers: Array) -> Array:
    """Fewest layers on the accelerator for which :func:`window_pass_s` is all computation.

    ``ceil(n - (n - 1) · compute / fetch)``, at least 1. Source: derived.
    """
    hidden = (num_layers - 1.0) * layer_s / np.maximum(fetch_s, 1e-300)
    return np.maximum(np.ceil(num_layers - hidden), 1.0)


def layerwise_optimizer_s(backward_s: Array, update_s: Array, num_layers: Array) -> Array:
    """Exposed update when each layer is updated on the host as soon as its gradient is there.

    ``max(update, n · update - (n - 1) · backward)``, both per layer: the last layer's update has
    nothing to hide behind. Source: STRONGHOLD's concurrent updates (SC22); derived. The next
    forward may start on layers already updated, which this leaves out.
    """
    return np.maximum(update_s, num_layers * update_s - (num_layers - 1.0) * backward_s)


def direct_access_forward_s(
    layer_s: Array, fetch_s: Array, direct_s: Array, num_layers: int
) -> Array:
    """Forward whose first layers read weights in host memory directly while the rest are fetched.

    Least over k of ``max(k · direct + (n - k) · compute, (n - k) · fetch + compute)``; k = 0
    waits for the first layer's weights. Shapes broadcast. Source: MemFerry (INFOCOM 2025,
    abstract); formula derived. Excludes contention of direct reads with the fetches.
    """
    k = np.arange(num_layers + 1.0)
    compute, fetch, direct = (
        np.asarray(value, dtype=float)[..., None] for value in (layer_s, fetch_s, direct_s)
    )
    computed = k * direct + (num_layers - k) * compute
    fetched = (num_layers - k) * fetch + compute * (k < num_layers)
    least: Array = np.maximum(computed, fetched).min(axis=-1)
    return least
