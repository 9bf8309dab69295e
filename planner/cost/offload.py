"""What optimizer states and parameters in host memory or on NVMe cost in time.

Sections of papers are recalled.
"""

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.items import item
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


@item(
    "time.offload",
    title="parameter offload",
    inputs=("strategy.offload", "node.host_link_bytes_per_s"),
    also=(host_transfer_s,),
)
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
    (:func:`exposed_gradient_offload_s`). Excludes the one-step delayed
    update (section 5.2), no framework's default.
    """
    up_s = host_transfer_s(owned_params * HOST_WEIGHT_BYTES, cluster)
    return np.maximum(host_adam_s(owned_params, cluster, traits), up_s)


def exposed_gradient_offload_s(transfer_s: Array, backward_s: Array) -> Array:
    """``max(transfer - backward, 0)``: gradients go to the host as backward makes them.

    Copy engines do it, so computation is not slowed. Source: arXiv 2101.06840, section 4.1.
    """
    return np.maximum(transfer_s - backward_s, 0.0)


def nvme_optimizer_s(owned_params: Array, cluster: ClusterSpec) -> Array:
    """Optimizer states read from and written to the node's NVMe (arXiv 2104.07857, section 5).

    Runs beside Adam, chunk by chunk (section 6.2). Infinite where the node has no NVMe rate.
    """
    node = cluster.node
    if not node.nvme_read_bytes_per_s or not node.nvme_write_bytes_per_s:
        return owned_params + float("inf")
    num_bytes = owned_params * NVME_STATE_BYTES * node.num_accelerators
    return num_bytes / node.nvme_read_bytes_per_s + num_bytes / node.nvme_write_bytes_per_s
