"""Machines of which a run uses a part of the GPUs and all of the host."""

from dataclasses import replace

from planner.spec.cluster import ClusterSpec


def alone_on(cluster: ClusterSpec) -> ClusterSpec:
    """The runs had the processors of their machines to themselves."""
    node = cluster.node
    whole = node.whole or node
    of_whole = {name: getattr(whole, name) for name in ("host_cores", "host_memory_bytes_per_s")}
    return replace(cluster, node=replace(node, whole=None, **of_whole))
