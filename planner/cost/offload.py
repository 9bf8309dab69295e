"""Time cost of optimizer states and parameters in host memory or on NVMe (sections recalled)."""

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.items import item
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import OffloadTraits
from planner.units import Array, Mask


def host_link_share(strategy: StrategyColumns, cluster: ClusterSpec) -> Array:
    """Return the multiple of its host link share a rank has: one alone has its slot to itself.

    Source: hwdb, accelerators_per_host_slot. Excludes ranks of one node that share no slot.
    """
    return np.where(strategy.num_gpus == 1, cluster.node.accelerators_per_host_slot, 1.0)


def host_transfer_s(num_bytes: Array, cluster: ClusterSpec) -> Array:
    """``bytes / link``: between pinned host memory and one accelerator, over its link, one way.

    Both ways go at once. Source: arXiv 2104.07857, section 5.2 (a link per rank). Excludes latency.
    """
    return num_bytes / cluster.node.host_link_bytes_per_s


def state_transfer_s(
    num_bytes: Array, cluster: ClusterSpec, traits: OffloadTraits, pageable: Mask | bool = False
) -> Array:
    """``bytes / (link · f)``: f is 1 of pinned memory, else 0.2.

    The driver copies pageable memory through buffers of its own. Source: DeepSpeed pull request
    5301, whose weights came back 6 times as fast on one GPU, 4 to 5 times on 8, once pinned.
    """
    is_slow = np.asarray(pageable) | (not traits.is_pinned)
    fraction = np.where(is_slow, 0.2, 1.0)
    return host_transfer_s(num_bytes, cluster) / fraction


@item(
    "time.offload",
    title="parameter offload",
    inputs=(
        "strategy.offload",
        "traits.states.zero3_weight_bytes",
        "traits.offload.is_pinned",
        "node.host_link_bytes_per_s",
    ),
    also=(state_transfer_s, host_transfer_s),
)
def parameter_fetch_s(
    num_bytes: Array,
    on_nvme: Array,
    cluster: ClusterSpec,
    traits: OffloadTraits,
    share: Array | float = 1.0,
) -> Array:
    """One pass of parameters to the accelerator: the slower of host link and, on NVMe, its disks.

    ``max(bytes / link, bytes · gpus_per_node / read)``: disk to host and host to accelerator are
    pipelined (arXiv 2104.07857, section 6.2). ``share``: :func:`host_link_share`. Infinite where
    the node has no NVMe rate.
    """
    node = cluster.node
    read = node.nvme_read_bytes_per_s
    from_disk = num_bytes * node.num_accelerators / read if read else num_bytes + np.inf
    fetch = state_transfer_s(num_bytes / share, cluster, traits)
    return np.where(on_nvme > 0, np.maximum(fetch, from_disk), fetch)


def host_bytes_per_s(cluster: ClusterSpec, traits: OffloadTraits) -> float:
    """``min(threads · core, f · memory / ranks)``: what one rank's step moves in host memory.

    ``threads`` is 1, or the rank's share of the cores; all ranks of a node share its memory, of
    whose datasheet rate the implementation reaches ``host_bandwidth_fraction``. Excludes which
    socket the memory of a thread hangs on, but for what that fraction holds of it.
    """
    node = cluster.node
    share = traits.host_bandwidth_fraction * node.host_memory_bytes_per_s / node.num_accelerators
    cores = node.host_cores / node.num_accelerators if traits.host_threads == "share" else 1.0
    return min(max(cores, 1.0) * node.host_core_bytes_per_s, share)


def host_step_s(owned_params: Array, cluster: ClusterSpec, traits: OffloadTraits) -> Array:
    """``owned · bytes / rate``: the optimizer's step on the CPU, which memory bounds.

    Adam in fp32 reads master, two moments and gradient and writes all but the gradient, 28 bytes;
    clipping and casts add theirs (``host_step_bytes``). Rate: :func:`host_bytes_per_s`.
    """
    return owned_params * (traits.host_step_bytes / host_bytes_per_s(cluster, traits))


def host_optimizer_s(
    owned_params: Array, transfer_s: Array, cluster: ClusterSpec, traits: OffloadTraits
) -> Array:
    """``step + transfers``, or the longer one where the framework runs them side by side.

    ``transfer_s``: new weights to the device; where they run side by side, gradients too.
    Source: arXiv 2101.06840, section 5.1; framework traits. Excludes the one-step delayed update
    (section 5.2), no framework's default.
    """
    step = host_step_s(owned_params, cluster, traits)
    if traits.host_step_beside == "nothing":
        return step + transfer_s
    return np.maximum(step, transfer_s)


def exposed_gradient_offload_s(transfer_s: Array, backward_s: Array) -> Array:
    """``max(transfer - backward, 0)``: gradients go to the host as backward makes them.

    Copy engines do it, so computation is not slowed. Source: arXiv 2101.06840, section 4.1.
    """
    return np.maximum(transfer_s - backward_s, 0.0)


def nvme_optimizer_s(owned_params: Array, cluster: ClusterSpec) -> Array:
    """Optimizer states read from and written to the node's NVMe (arXiv 2104.07857, section 5).

    Master, two moments and fp32 gradient, 16 bytes a parameter each way: swap_in_optimizer_state in
    deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py. Infinite where the node has no
    NVMe rate. Excludes the depth of the request queue: 8 requests of 1 MiB a rank, DeepSpeed's
    default, keep a drive busy.
    """
    node = cluster.node
    if not node.nvme_read_bytes_per_s or not node.nvme_write_bytes_per_s:
        return owned_params + float("inf")
    num_bytes = owned_params * 16.0 * node.num_accelerators
    return num_bytes / node.nvme_read_bytes_per_s + num_bytes / node.nvme_write_bytes_per_s
