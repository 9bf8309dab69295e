"""Collective times over a two-level network: a scale-up domain, and the fabric between domains.

Sizes follow nccl-tests: all-reduce, the vector; all-gather, the gathered vector;
reduce-scatter, the input vector; all-to-all, one rank's send buffer.
"""

import numpy as np

from planner.collectives.cost import busbw_factor
from planner.collectives.fitted import fitted_s
from planner.collectives.ring import ring_s
from planner.collectives.tree import tree_all_reduce_s
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec, Collective
from planner.units import Array, Mask


def domain_s(collective: Collective, num_bytes: Array, size: Array, cluster: ClusterSpec) -> Array:
    """A collective inside one scale-up domain: the measured fit, or a ring where none exists."""
    fits = cluster.accelerator.collectives.get(collective, ())
    if fits:
        return fitted_s(fits, collective, num_bytes, size)
    level = cluster.node.scale_up
    bandwidth = level.bytes_per_s * level.efficiency_fraction
    return ring_s(collective, num_bytes, size, level.latency_s, bandwidth)


def fabric_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array:
    """Bandwidth of a ring that leaves the domain: its local members' network ports together.

    The other groups of the node use the other ports at the same time. Capped by the domain.
    """
    level = cluster.node.scale_up
    ports = group.local * cluster.fabric.bytes_per_s * cluster.fabric.efficiency_fraction
    return np.minimum(ports, level.bytes_per_s * level.efficiency_fraction)


def _all_to_all_s(num_bytes: Array, group: Group, cluster: ClusterSpec, copies: float) -> Array:
    """Domain share over the scale-up network beside the remote share over one rank's port.

    With k copies per token to D domains, deduplicated sending moves the expected number of
    distinct domains ``D (1 - (1 - 1/D)^k)`` instead of k (DeepEP, README).
    """
    inside = num_bytes * (group.local / group.size)
    domains = group.num_domains
    distinct = domains * (1.0 - (1.0 - 1.0 / domains) ** copies) / copies
    outside = (num_bytes - inside) * distinct
    port = cluster.fabric.bytes_per_s * cluster.fabric.efficiency_fraction
    remote_s = cluster.fabric.latency_s + outside / port
    return np.maximum(domain_s("all_to_all", inside, group.local, cluster), remote_s)


def _across_s(
    collective: Collective, num_bytes: Array, group: Group, cluster: ClusterSpec
) -> Array:
    """A collective that spans domains: ring, or for all-reduce the tree when it is faster."""
    bandwidth = fabric_bytes_per_s(group, cluster)
    hops = (group.num_domains - 1.0) * cluster.fabric.latency_s
    hops = hops + (group.local - 1.0) * cluster.node.scale_up.latency_s
    factor = busbw_factor(collective, group.size)
    rounds = 2.0 if collective == "all_reduce" else 1.0
    ring = rounds * hops + factor * num_bytes / bandwidth
    if collective == "all_reduce":
        tree = tree_all_reduce_s(num_bytes, group.num_domains, cluster.fabric.latency_s, bandwidth)
        ring = np.minimum(ring, tree)
    return ring


def collective_s(
    collective: Collective,
    num_bytes: Array,
    group: Group,
    cluster: ClusterSpec,
    copies_per_token: float = 1.0,
) -> Array:
    """Seconds of a collective on a group placed on the cluster.

    Inside a domain: measured fit or ring. Across domains: one ring (or tree) whose bandwidth is
    that of the group's ports. Excludes contention between groups of different axes. Zero for a
    group of one or an empty message.
    """
    num_bytes = np.asarray(num_bytes, dtype=float)
    inside = domain_s(collective, num_bytes, group.size, cluster)
    if collective == "all_to_all":
        outside = _all_to_all_s(num_bytes, group, cluster, copies_per_token)
    else:
        outside = _across_s(collective, num_bytes, group, cluster)
    seconds = np.where(group.local >= group.size, inside, outside)
    return np.where((num_bytes > 0) & (group.size > 1), seconds, 0.0)


def point_to_point_s(num_bytes: Array, *, crosses: Mask, cluster: ClusterSpec) -> Array:
    """One message between neighbours, over the fabric where ``crosses``, else in the domain."""
    level, fabric = cluster.node.scale_up, cluster.fabric
    inside = level.latency_s + num_bytes / (level.bytes_per_s * level.efficiency_fraction)
    across = fabric.latency_s + num_bytes / (fabric.bytes_per_s * fabric.efficiency_fraction)
    return np.where(np.asarray(num_bytes) > 0, np.where(crosses, across, inside), 0.0)
