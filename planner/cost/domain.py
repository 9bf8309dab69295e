"""Collectives inside one scale-up domain: measured fits, or a ring over the domain's topology."""

import numpy as np

from planner.collectives.cost import Link, busbw_factor
from planner.collectives.fitted import fitted_s
from planner.collectives.flat import ring_s
from planner.collectives.grid import SHORTEST_CLOSED_DIMENSION
from planner.collectives.in_network import nvls_all_reduce
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec, Collective, LevelSpec
from planner.units import Array, Mask


def link_share(level: LevelSpec, num_ranks: Array) -> Array | float:
    """Share of an accelerator's links that lead to the other ranks of its group.

    1 behind a switch. Fully connected: ``(n-1)/(N-1)``, one of the N-1 neighbours' links each
    (two MI300X reach 48 of the 313 GB/s that eight do). Hybrid cube mesh: two thirds of the links
    stay in the quad of a DGX-1V, shared by its three neighbours, and all are used beyond it
    (Nvidia DGX-1 white paper, figure 4). Excludes which pair of a quad has the doubled link.
    """
    n = np.asarray(num_ranks, dtype=float)
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
    each = [
        np.where(span > 1, np.where(_closes(level, span, length), 1.0, 0.5), 0.0)
        for span, length in zip(spans, level.dims, strict=True)
    ]
    rings: Array = np.maximum(np.asarray(sum(each)), 0.5)
    return rings


def _closes(level: LevelSpec, span: Array, length: int) -> Mask:
    """Whether the members along a dimension of this length form a ring rather than a line."""
    wraps = level.topology.startswith("torus") and length >= SHORTEST_CLOSED_DIMENSION
    return np.asarray((span == length) & wraps)


def _level_bytes_per_s(group: Group, level: LevelSpec) -> Array | float:
    """Rate of the domain's own network for the group's members inside one domain."""
    if group.spans:
        return level.achieved_bytes_per_s * num_rings(level, group.spans)
    return level.achieved_bytes_per_s * link_share(level, group.local)


def domain_bytes_per_s(group: Group, cluster: ClusterSpec) -> Array | float:
    """Bandwidth of a ring inside the domain, per accelerator.

    Where packages hold several members, these use their links out of the package together, and
    the ring also passes the link inside; a group within one package uses only that.
    """
    rate = _level_bytes_per_s(group, cluster.domain)
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
        return np.asarray(sum(span - 1.0 for span in group.spans) * level.latency_s)
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
        travelled = np.maximum(travelled, np.where(span > 1, line * span / 4.0, 0.0))
    least = busbw_factor("all_to_all", group.local) / num_rings(level, group.spans)
    seconds = num_bytes * np.maximum(travelled, least) / level.achieved_bytes_per_s
    return domain_hops_s(group, cluster) + seconds


def domain_s(collective: Collective, num_bytes: Array, group: Group, cluster: ClusterSpec) -> Array:
    """A collective over the members inside one domain: the measured fit, or a ring without one.

    Without a fit, an all-reduce that the domain's switches add up takes ``2 α + (n+1)/n · S/B``
    where that is less (planner.collectives.in_network.nvls_all_reduce).
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
