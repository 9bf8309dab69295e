"""The same machine at another size: more of its nodes, or more of one node's GPUs."""

import re
from dataclasses import replace

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec, NodeSpec

_NAME = re.compile(r"(\d+)x(.+)")
SAME_SHARE = 1e-9
"""Relative difference below which host memory is the node's own."""


def resized(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """The cluster with another number of GPUs, in whole nodes or a part of one.

    As the catalog has it where the cluster comes from there, with the memory that was given for
    it; else as many of its own nodes below its outermost network level.
    """
    if num_gpus == cluster.num_accelerators:
        return cluster
    return _from_catalog(cluster, num_gpus) or _scaled(cluster, num_gpus)


def argument_of(cluster: ClusterSpec) -> str:
    """What the command line calls a cluster of the catalog; empty for one of a file."""
    named = _NAME.fullmatch(cluster.name)
    return cluster.name if named and _is_catalog(cluster) else ""


def _is_catalog(cluster: ClusterSpec) -> bool:
    return _own(cluster) is not None


def _own(cluster: ClusterSpec) -> ClusterSpec | None:
    """The catalog's cluster of that name, where it is this one but for its memory."""
    try:
        own = load_cluster(cluster.name)
    except InputError:
        return None
    same = replace(cluster, assumptions=(), node=_with_memory_of(cluster.node, own.node))
    return own if same == replace(own, assumptions=()) else None


def _with_memory_of(node: NodeSpec, other: NodeSpec) -> NodeSpec:
    return replace(
        node,
        accelerator=replace(node.accelerator, hbm_bytes=other.accelerator.hbm_bytes),
        host_memory_bytes=other.host_memory_bytes,
        host_memory_note=other.host_memory_note,
        nvme_bytes=other.nvme_bytes,
    )


def _from_catalog(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec | None:
    own = _own(cluster)
    if own is None:
        return None
    try:
        made = load_cluster_of(cluster.name, num_gpus)
    except InputError:
        return None
    given, node = cluster.node, made.node
    accelerator = replace(node.accelerator, hbm_bytes=given.accelerator.hbm_bytes)
    node = replace(node, accelerator=accelerator)
    for name in ("host_memory_bytes", "nvme_bytes"):
        was, catalogs = getattr(given, name), getattr(own.node, name)
        if was and (not catalogs or abs(was / catalogs - 1.0) > SAME_SHARE):
            node = replace(node, **{name: was})
    if given.host_memory_note != own.node.host_memory_note:
        node = replace(node, host_memory_note=given.host_memory_note)
    return replace(made, node=node)


def _scaled(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec:
    num_nodes = -(-num_gpus // cluster.node.num_accelerators)
    fabric = replace(cluster.fabric, num_accelerators=num_nodes * cluster.node.num_accelerators)
    return replace(cluster, num_nodes=num_nodes, fabric=fabric)
