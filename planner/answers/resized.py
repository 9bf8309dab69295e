"""The same machine at another size: more of its nodes, or more of one node's GPUs."""

import re
from dataclasses import replace

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.cost.context import Context
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec, NodeSpec

MORE_NODES = (4, 16, 64)  # times the nodes there are, where their number is no limit
MOST_GPUS = 2**17  # no larger cluster is looked at, unless the one asked about is
SAME_SHARE = 1e-9  # relative difference below which host memory is the node's own
_NAME = re.compile(r"\d+x.+")


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
    return cluster.name if _NAME.fullmatch(cluster.name) and _catalogs(cluster) else ""


def of_size(context: Context, num_gpus: int) -> Context:
    """The context on another number of the same GPUs."""
    return replace(context, cluster=resized(context.cluster, num_gpus))


def with_nodes(context: Context, num_nodes: int) -> Context:
    """The context on another number of the same nodes; of a part of a node, of whole ones."""
    node = context.cluster.node
    return of_size(context, num_nodes * (node.whole or node).num_accelerators)


def more_nodes(context: Context) -> tuple[int, ...]:
    """Numbers of nodes that stand for as many as one likes, ascending; never empty.

    Beside a part of a node first the whole one.
    """
    cluster = context.cluster
    factors = MORE_NODES if cluster.node.whole is None else (1, *MORE_NODES[:-1])
    possible = [factor * cluster.num_nodes for factor in factors]
    most = MOST_GPUS // (cluster.node.whole or cluster.node).num_accelerators
    return tuple(number for number in possible if number <= most) or (cluster.num_nodes,)


def _catalogs(cluster: ClusterSpec) -> ClusterSpec | None:
    """The catalog's cluster of that name, where it is this one but for its memory."""
    try:
        own = load_cluster(cluster.name)
    except InputError:
        return None
    node = replace(
        _with_hbm_of(cluster.node, own.node),
        host_memory_bytes=own.node.host_memory_bytes,
        host_memory_note=own.node.host_memory_note,
        nvme_bytes=own.node.nvme_bytes,
    )
    same = replace(cluster, assumptions=(), node=node)
    return own if same == replace(own, assumptions=()) else None


def _with_hbm_of(node: NodeSpec, other: NodeSpec) -> NodeSpec:
    accelerator = replace(node.accelerator, hbm_bytes=other.accelerator.hbm_bytes)
    return replace(node, accelerator=accelerator)


def _from_catalog(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec | None:
    """The catalog's cluster of so many GPUs, with the memory that differs from the catalog's."""
    own = _catalogs(cluster)
    if own is None:
        return None
    try:
        made = load_cluster_of(cluster.name, num_gpus)
    except InputError:
        return None
    given = cluster.node
    node = _with_hbm_of(made.node, given)
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
