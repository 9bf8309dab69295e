"""What optimizer states and parameters in host memory or on NVMe cost in time."""

from planner.spec.cluster import ClusterSpec
from planner.units import Array

HOST_ADAM_PARAMS_PER_S = 4.3e9
"""One node's vectorised Adam on the CPU: 1 billion parameters in 0.23 s on a DGX-2.

Source: ZeRO-Offload, arXiv 2101.06840, table 4 (recalled).
"""
NVME_STATE_BYTES = 12.0
"""Optimizer bytes per parameter read from, and written to, NVMe each step."""


def host_optimizer_s(owned_params: Array, wire_bytes: float, cluster: ClusterSpec) -> Array:
    """Gradients down, Adam on the node's CPUs, weights up.

    ``owned · (g + 2) / link + owned · gpus_per_node / rate``: all ranks of a node share its
    CPUs. Source: arXiv 2101.06840, sections 4-5. Excludes one-step delayed update.
    """
    node = cluster.node
    transfer_s = owned_params * (wire_bytes + 2.0) / node.host_link_bytes_per_s
    adam_s = owned_params * node.num_accelerators / HOST_ADAM_PARAMS_PER_S
    return transfer_s + adam_s


def nvme_optimizer_s(owned_params: Array, cluster: ClusterSpec) -> Array:
    """Optimizer states read from and written to the node's NVMe (arXiv 2104.07857, section 5).

    Infinite where the node has no NVMe rate.
    """
    node = cluster.node
    if not node.nvme_read_bytes_per_s or not node.nvme_write_bytes_per_s:
        return owned_params + float("inf")
    num_bytes = owned_params * NVME_STATE_BYTES * node.num_accelerators
    return num_bytes / node.nvme_read_bytes_per_s + num_bytes / node.nvme_write_bytes_per_s


def parameter_fetch_s(num_bytes: Array, cluster: ClusterSpec) -> Array:
    """One pass of parameters from host memory to the accelerator over its own link."""
    return num_bytes / cluster.node.host_link_bytes_per_s
