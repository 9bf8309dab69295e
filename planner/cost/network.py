"""Collective times over a hierarchy: a scale-up domain, and the levels inside and above it.

Sizes follow nccl-tests: all-reduce, the vector; all-gather, the gathered vector;
reduce-scatter, the input vector; all-to-all, one rank's send buffer.
"""

import numpy as np

from planner.collectives.cost import Link, busbw_factor, fitted_s
from planner.collectives.flat import (
    SHORTEST_CLOSED_DIMENSION,
    nvls_all_reduce,
    ring_s,
    tree_all_reduce_s,
)
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec, Collective, LevelSpec
from planner.units import Array, Mask

# Of an exchange of experts' tokens between domains, either way.
#
# Source: DeepEP's kernels between 2 and 4 nodes of 8 H100, 24 multiprocessors, 1,024 tokens and
# more (aiconfigurator-core 0.12.0): what lies beyond bytes over the ports' rate, dispatch 64-67 us
# behind 45-60 us in which counts are told, combine 135-160 us. The same is taken for NCCL's
# exchange, whose counts are gathered by an all-gather before it (assumed).
EXCHANGE_START_S = 1.3e-4


def link_share(level: LevelSpec, num_ranks: Array) -> Array | float:
    """Share of an accelerator's links that lead to the other ranks of its group.

    1 behind a switch. Fully connected: ``(n-1)/(N-1)``, one of the N-1 neighbours' links each
    (two MI300X reach 48 of the 313 GB/s that eight do). Hybrid cube mesh: two thirds of the links
    stay in the quad of a DGX-1V, shared by its three neighbours, and all are used beyond it
    (Nvidia DGX-1 white paper, figure 4). PCIe: few members, below one root, reach more of theirs
    (hwdb/pcie.yaml). Excludes which pair of a quad has the doubled link.
    """
    n = np.asarray(num_ranks, dtype=float)
    if level.root_accelerators:
        below_root = level.root_fraction / level.efficiency_fraction
        return np.where(n <= level.root_accelerators, below_root, 1.0)
    if level.topology == "fully_connected":
        peers = max(level.num_wired - 1, 1)
        return np.where(n > 1, (n - 1.0) / peers, 1.0)
    if level.topology == "hybrid_cube_mesh":
        in_quad = 2.0 / 3.0 * (n - 1.0) / 3.0
        return np.where((n > 1) & (n <= 4), in_quad, 1.0)
    return 1.0


def num_rings(level: LevelSpec, spans: tuple[Array, ...]) -> Array:
    """Rings that a group on a torus or mesh runs at once, one per dimension it spans.

    A whole dimension of a torus of four members and more closes into a ring; a part of one, a
    shorter one and any of a mesh is a line, at half the rate. At least a half. Source: Jouppi et
    al., ISCA 2023 (TPU v4), section 2; JAX scaling book, chapter 3.
    """
    together = np.zeros(())
    for span, length in zip(spans, level.dims, strict=True):
        rings = np.where(_closes(level, span, length), 1.0, 0.5)
        together = together + np.where(span > 1, rings, 0.0)
    return np.maximum(together, 0.5)


def _closes(level: LevelSpec, span: Array, length: int) -> Mask:
    """Return True if members along a dimension of this length form a ring rather than a line."""
    wraps = level.topology.startswith("torus") and length >= SHORTEST_CLOSED_DIMENSION
    return np.asarray((span == length) & wraps)


def domain_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array | float:
    """Bandwidth of a ring inside the domain, per accelerator.

    Where packages hold several members, these use their links out of the package together, and
    the ring also passes the link inside; a group within one package uses only that.
    """
    level = cluster.domain
    together = num_rings(level, group.spans) if group.spans else link_share(level, group.local)
    rate = level.achieved_bytes_per_s * together
    package = cluster.node.package
    if package is None:
        return rate
    inside = group.members[0]
    close = package.achieved_bytes_per_s
    joined = np.where(inside > 1, np.minimum(inside * rate, close), rate)
    return np.where((group.local > inside) | (inside == 1), joined, close)


def domain_hops_s(group: Group, cluster: ClusterSpec) -> Array:
    """Latency of one way round the members inside one domain: every dimension, every package."""
    level, package = cluster.domain, cluster.node.package
    if group.spans:
        hops = sum(span - 1.0 for span in group.spans)
        return np.asarray(hops * level.latency_s)
    if package is None:
        return (group.local - 1.0) * level.latency_s
    inside = group.members[0]
    between = np.ceil(group.local / inside) - 1.0
    return (inside - 1.0) * package.latency_s + between * level.latency_s


def _torus_all_to_all_s(num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """All-to-all on a torus or mesh: on a ring of D a byte travels D/4 links on average.

    ``hops + S · max(D / (4 · axis rate), (n-1)/n / (rings · axis rate))``; a line takes twice as
    long as a ring. Source: JAX scaling book, chapter 3 (bidirectional ring: V / (4 W)).
    """
    level = cluster.domain
    travelled = np.zeros(np.shape(group.local))
    for span, length in zip(group.spans, level.dims, strict=True):
        line = np.where(_closes(level, span, length), 1.0, 2.0)
        links = np.where(span > 1, line * span / 4.0, 0.0)
        travelled = np.maximum(travelled, links)
    least = busbw_factor("all_to_all", group.local) / num_rings(level, group.spans)
    seconds = num_bytes * np.maximum(travelled, least) / level.achieved_bytes_per_s
    return domain_hops_s(group, cluster) + seconds


def domain_s(collective: Collective, num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """A collective over the members inside one domain: the measured fit, or a ring without one.

    Without a fit, an all-reduce that the domain's switches add up takes ``2 α + (n+1)/n · S/B``
    where that is less (planner.collectives.flat.nvls_all_reduce).
    """
    fits = cluster.accelerator.collectives.get(collective, ())
    level, size = cluster.domain, group.local
    if fits:
        grows = not (collective == "all_reduce" and level.reduces_in_network)
        return fitted_s(fits, collective, num_bytes, size, latency_grows=grows)
    if collective == "all_to_all" and group.spans:
        return _torus_all_to_all_s(num_bytes, group, cluster)
    rate = domain_bytes_per_s(group, cluster)
    seconds = ring_s(collective, num_bytes, size, domain_hops_s(group, cluster), rate)
    if collective == "all_reduce" and level.reduces_in_network:
        link = Link(latency_s=level.latency_s, bytes_per_s=rate)
        seconds = np.minimum(seconds, nvls_all_reduce(num_bytes, size, link).time_s)
    return seconds


def _outer(group: Group, cluster: ClusterSpec) -> list[tuple[LevelSpec, Array, Array]]:
    """Levels above the domain with the members below and inside one group of each."""
    first = group.domain + 1
    below = group.members[group.domain : -1]
    return list(zip(cluster.levels[first:], below, group.members[first:], strict=True))


def ports_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array:
    """Bandwidth of a ring through the ports of domains: that of the slowest level it crosses.

    Into a level the members below it use their ports together, ``members · port /
    oversubscription``, or the few that the library gives a ring (``ring_bytes_per_s``); the other
    groups of the node use the other ports at the same time. Levels that the group does not cross do
    not slow it, but its traffic to any level above passes the ports of the lowest one.
    """
    rate = np.full(np.shape(group.local), np.inf)
    lowest = True
    for level, below, inside in _outer(group, cluster):
        ports = np.minimum(below * level.achieved_bytes_per_s, level.ring_achieved_bytes_per_s)
        if not lowest:
            ports = np.where(inside > below, ports, np.inf)
        rate = np.minimum(rate, ports)
        lowest = False
    return rate


def fabric_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array:
    """Bandwidth of a ring that leaves the domain: its ports, capped by the domain's rate.

    Where members have a link to each other, ``l`` chains lie beside each other in a domain, of
    which the last is the network's, and ``l - 1`` rings: two MI300X nodes have 357 GB/s, one 315.
    """
    inside = domain_bytes_per_s(group, cluster)
    if cluster.domain.topology == "fully_connected":
        inside = inside * group.local / np.maximum(group.local - 1.0, 1.0)
    return np.minimum(inside, ports_bytes_per_s(group, cluster))


def tree_ports_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array:
    """Ports as a tree of domains sees them, which sends ``2 S`` through each: twice, between two.

    Of two domains each is the root of one tree with half the vector and the leaf of the other: it
    sends S/2 down and S/2 up. From three on an inner domain sends to two children and a parent, and
    up as the leaf of the other tree: 2 S. Source: Sanders, Speck, Träff 2009; two nodes of 8 H100
    over 400 Gbit/s ports reach 468 GB/s of bus bandwidth, twelve 387. Before Hopper NCCL was mostly
    seen to stay with rings (two nodes of 8 A100: 86 of 100 GB/s, and 16-way tensor parallelism).
    """
    once = (group.num_domains == 2) & (cluster.accelerator.compute_capability >= 9.0)
    return ports_bytes_per_s(group, cluster) * np.where(once, 2.0, 1.0)


def _fabric_waits_s(group: Group, cluster: ClusterSpec) -> tuple[Array, Array]:
    """Latency over all levels above the domain: one way round the groups, and leaf to root.

    The way to the root is that of a binary tree over the domains, level within level.
    """
    hops_s = depth_s = np.zeros(np.shape(group.local))
    for level, below, inside in _outer(group, cluster):
        units = np.ceil(inside / below)
        hops_s = hops_s + (units - 1.0) * level.latency_s
        depth_s = depth_s + np.ceil(np.log2(units)) * level.latency_s
    return hops_s, depth_s


def _in_network_all_reduce_s(num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """All-reduce added up by the switches: every port carries its share once each way.

    ``2 · latency of the crossed levels + max(S / ports, 2 (l-1)/l · S / domain)``: l local members
    first scatter and last gather inside the domain. Source: Graham et al., COMHPC 2016 (SHARP);
    NCCL CollNet. Excludes the switches' limits on message size and number of jobs.
    """
    hops = 2.0 * domain_hops_s(group, cluster)
    for level, below, inside in _outer(group, cluster):
        hops = hops + np.where(inside > below, 2.0 * level.latency_s, 0.0)
    ports = fabric_bytes_per_s(group, cluster)
    share = busbw_factor("all_reduce", group.local) / domain_bytes_per_s(group, cluster)
    return hops + num_bytes * np.maximum(1.0 / ports, share)


def _switched_domain_all_reduce_s(num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """All-reduce added up by the switches of each domain, and by trees of domains between them.

    ``2 · (domain latency + depth) + S · max((l+1)/l / domain rate, 2 / ports)`` for l local members
    in each domain, the ports as :func:`tree_ports_bytes_per_s` has them. Source: NCCL,
    src/graph/tuning.cc (NVLSTree); stas00/ml-engineering, network/README.md. From two members on.
    """
    local = group.local
    inside = (local + 1.0) / local / domain_bytes_per_s(group, cluster)
    across = 2.0 / tree_ports_bytes_per_s(group, cluster)
    waits = 2.0 * (cluster.domain.latency_s + _fabric_waits_s(group, cluster)[1])
    seconds = waits + num_bytes * np.maximum(inside, across)
    return np.where(local > 1, seconds, np.inf)


def _all_to_all_s(num_bytes: Array, group: Group, cluster: ClusterSpec, copies: float) -> Array:
    """Domain share over the scale-up network beside the remote share over one rank's port.

    Every level above the domain bounds the share that enters it, at the port's rate over the
    level's oversubscription; the latency is that of the outermost level crossed. With k copies per
    token to D domains, deduplicated sending moves the expected number of distinct domains
    ``D (1 - (1 - 1/D)^k)`` instead of k (DeepEP, README).
    """
    inside_bytes = num_bytes * (group.local / group.size)
    domains = group.num_domains
    distinct = domains * (1.0 - (1.0 - 1.0 / domains) ** copies) / copies
    seconds = domain_s("all_to_all", inside_bytes, group, cluster)
    for level, below, inside in _outer(group, cluster):
        entering = (num_bytes - num_bytes * (below / group.size)) * distinct
        remote = level.latency_s + entering / level.achieved_bytes_per_s
        seconds = np.maximum(seconds, np.where(inside > below, remote, 0.0))
    return seconds


def exchange_start_s(num_bytes: Array, group: Group) -> Array:
    """Seconds before an exchange of experts' tokens between domains moves bytes.

    Ranks tell each other how many tokens to expect, then fill a pipeline of buffers over two
    networks. Source: EXCHANGE_START_S. Excludes those inside a domain, measured with their start.
    """
    crosses = (num_bytes > 0) & (group.local < group.size)
    return np.where(crosses, EXCHANGE_START_S, 0.0)


def collective_s(
    collective: Collective,
    num_bytes: Array,
    group: Group,
    cluster: ClusterSpec,
    copies_per_token: float = 1.0,
) -> Array:
    """Seconds of a collective on a group placed on the cluster.

    Inside a domain: measured fit or ring. Across domains: one ring (or tree, or the switches where
    they reduce) whose bandwidth is that of the slowest level it crosses and whose latency is the
    sum over the levels; no less than the same collective of the same bytes among the members of
    one domain, which is part of the work: a group that grows across domains never gets faster.
    Excludes contention between groups of different axes. 0 for a group of one, or no message.
    """
    num_bytes = np.asarray(num_bytes, dtype=float)
    inside = domain_s(collective, num_bytes, group, cluster)
    if collective == "all_to_all":
        outside = _all_to_all_s(num_bytes, group, cluster, copies_per_token)
    else:
        bandwidth = fabric_bytes_per_s(group, cluster)
        hops, depth = _fabric_waits_s(group, cluster)
        hops = hops + domain_hops_s(group, cluster)
        outside = ring_s(collective, num_bytes, group.size, hops, bandwidth)
    if collective == "all_reduce":
        # The tree or the switches, if they are faster.
        tree = np.minimum(
            domain_bytes_per_s(group, cluster), tree_ports_bytes_per_s(group, cluster)
        )
        outside = np.minimum(outside, tree_all_reduce_s(num_bytes, depth, tree))
        if cluster.domain.reduces_in_network:
            nvls = _switched_domain_all_reduce_s(num_bytes, group, cluster)
            outside = np.minimum(outside, nvls)
        if all(level.reduces_in_network for level in cluster.levels[group.domain + 1 :]):
            switches = _in_network_all_reduce_s(num_bytes, group, cluster)
            outside = np.minimum(outside, switches)
    across = np.maximum(inside, outside)
    seconds = np.where(group.local >= group.size, inside, across)
    return np.where((num_bytes > 0) & (group.size > 1), seconds, 0.0)


def broadcasts_s(num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """Seconds in which every rank of a group broadcasts its part of the bytes, one by one.

    ``all-gather of S + (n - 1) · hops``: as many bytes as an all-gather through the same links, but
    each of n chains waits for the latency of one way round the ranks, where an all-gather waits
    once. Source: derived; broadcast_params of InternEvo, internlm/solver/optimizer/
    hybrid_zero_optim.py, and torch's ZeroRedundancyOptimizer, whose broadcasts are issued in the
    order of ranks on one communicator. Excludes parts of unlike size.
    """
    hops = _fabric_waits_s(group, cluster)[0] + domain_hops_s(group, cluster)
    gathered = collective_s("all_gather", num_bytes, group, cluster)
    return gathered + np.where(gathered > 0, (group.size - 1.0) * hops, 0.0)


# What prices the collectives of any axis.
COLLECTIVE_FORMULAS = (collective_s, domain_s, fitted_s, ring_s, busbw_factor)


def point_to_point_s(num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """One message between neighbours of a group, over the innermost level that holds all of it.

    ``latency + S / rate``; above the domain the rate is the least of the levels passed. Neighbours
    inside one domain do not wait less than those that are farthest apart: a pipeline goes at the
    pace of its slowest link. Zero for an empty message.
    """
    levels = list(zip(cluster.levels, group.members, strict=True))
    rates = [level.achieved_bytes_per_s for level in cluster.levels]
    outside = group.domain + 1
    seconds = np.asarray(np.inf)
    for index, (level, inside) in reversed(list(enumerate(levels))):
        rate = min(rates[min(index, outside) : index + 1])
        message = level.latency_s + num_bytes / rate
        seconds = np.where(inside >= group.size, message, seconds)
    return np.where(num_bytes > 0, seconds, 0.0)
