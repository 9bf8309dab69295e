"""The cluster of a published run, from the catalog."""

from dataclasses import replace
from functools import cache

from planner.catalog.clusters import load_cluster, part_of_node
from planner.spec.cluster import ClusterSpec
from planner.units import GBIT_PER_S
from planner.validation.records import Hardware

PROCESSOR = ("host_cores", "host_memory_bytes_per_s")
"""Of a node, what a run on a part of it had to itself."""


class CannotEstimateError(Exception):
    """A record cannot be estimated; the message is the reason shown for skipping it."""


@cache
def _node_cluster(num_nodes: int, node: str) -> ClusterSpec:
    return load_cluster(f"{num_nodes}x{node}")


def to_cluster(hardware: Hardware) -> ClusterSpec:
    """Return the cluster a run used: its node type, and as many nodes as its GPUs fill.

    Fewer GPUs than a node holds are a part of one node, whose processor the run had to itself.
    Raises CannotEstimateError for hardware that the catalog does not have.
    """
    if hardware.node is None:
        raise CannotEstimateError(f"no catalog entry for {hardware.gpu}")
    if hardware.gpus is None:
        raise CannotEstimateError("number of GPUs not published")
    size = _node_cluster(1, hardware.node).node.num_accelerators
    used = min(hardware.gpus_per_node or size, size)
    num_nodes = -(-hardware.gpus // used)
    cluster = _node_cluster(num_nodes, hardware.node)
    if hardware.gpus < used or used < size:
        local = min(hardware.gpus, used)
        part = part_of_node(cluster.node, local)
        alone = {name: getattr(cluster.node, name) for name in PROCESSOR}
        cluster = replace(
            cluster,
            node=replace(part, whole=None, **alone),
            fabric=replace(cluster.fabric, num_accelerators=num_nodes * local),
        )
    if hardware.domain_gpus is not None:
        level = cluster.node.scale_up.within(hardware.domain_gpus)
        cluster = replace(cluster, node=replace(cluster.node, scale_up=level))
    if hardware.node_gbit_per_s is not None:
        port = hardware.node_gbit_per_s * GBIT_PER_S / size
        cluster = replace(cluster, fabric=replace(cluster.fabric, bytes_per_s=port))
    return cluster
