"""Published hardware spellings to clusters of the catalog."""

import re
from dataclasses import dataclass, replace
from functools import cache

from planner.catalog.clusters import load_cluster, part_of_node
from planner.spec.cluster import ClusterSpec
from planner.units import GBIT_PER_S
from planner.validation.records import Hardware


class CannotEstimateError(Exception):
    """A record cannot be estimated; the message is the reason shown for skipping it."""


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Hardware whose GPU and network spellings match belongs to ``node``."""

    gpu: str
    """Pattern at the start of the published GPU name."""
    node: str
    inter: str = ""
    """Pattern anywhere in the published network; empty: any, or none."""
    node_gbit_per_s: float | None = None
    """Published network rate of a node that the catalog has with another one."""


UNPUBLISHED = r"^$|^not stated$"
"""A network nobody named is taken as the common cloud shape of the accelerator."""
_RULES = (
    _Rule(gpu=r"a100-80gb", inter=r"Omni-Path", node="jean-zay-a100"),
    _Rule(gpu=r"a100-80gb", inter=r"4x HDR", node="hgx-a100-80-4hdr"),
    _Rule(gpu=r"a100-80gb", inter=r"8x HDR", node="selene-dgx-a100"),
    _Rule(gpu=r"a100-80gb", inter=r"^1600 Gb/s per node RoCE", node="hgx-a100-80-roce"),
    _Rule(gpu=r"a100-80gb", inter=r"^400 Gb/s per node", node="hgx-a100-80-2hdr"),
    _Rule(gpu=r"a100-80gb", inter=UNPUBLISHED, node="aws-p4de.24xlarge"),
    _Rule(gpu=r"a100-80gb", node="dgx-a100-640"),
    _Rule(gpu=r"a100-40gb", inter=r"^1600 Gb/s per node RoCE", node="hgx-a100-40-roce"),
    _Rule(gpu=r"a100-40gb", inter=r"EFA", node="aws-p4d.24xlarge"),
    _Rule(gpu=r"a100-40gb", inter=UNPUBLISHED, node="aws-p4d.24xlarge"),
    _Rule(gpu=r"a100-40gb", node="dgx-a100-320"),
    _Rule(gpu=r"a800-80gb", node="hgx-a800"),
    _Rule(gpu=r"h100-96gb-hbm2e-500w", node="hgx-h100-96-500w"),
    _Rule(gpu=r"h100-80gb", inter=r"EFA", node="aws-p5.48xlarge"),
    _Rule(gpu=r"h100-80gb", inter=r"GCP A3", node="gcp-a3-highgpu-8g"),
    _Rule(gpu=r"h100-80gb", inter=r"^800 Gb/s", node="dgx-h100", node_gbit_per_s=800.0),
    _Rule(gpu=r"h100-80gb", node="dgx-h100"),
    _Rule(gpu=r"h800-80gb", node="hgx-h800"),
    _Rule(gpu=r"h200-141gb", node="dgx-h200"),
    _Rule(gpu=r"b200-180gb", node="dgx-b200"),
    _Rule(gpu=r"b300-288gb", node="dgx-b300"),
    _Rule(gpu=r"gb200", node="gb200-tray"),
    _Rule(gpu=r"gb300", node="gb300-tray"),
    _Rule(gpu=r"v100-32gb-sxm2", inter=r"Omni-Path", node="jean-zay-v100"),
    _Rule(gpu=r"v100-32gb", node="dgx-2"),
    _Rule(gpu=r"mi250x-gcd", node="frontier-node"),
)


def _rule(hardware: Hardware) -> _Rule:
    if "not stated" in hardware.gpu:
        raise CannotEstimateError("accelerator model not stated")
    for rule in _RULES:
        if re.match(rule.gpu, hardware.gpu) and re.search(rule.inter, hardware.inter or ""):
            return rule
    raise CannotEstimateError(f"no catalog entry for {hardware.gpu}")


@cache
def _node_cluster(num_nodes: int, node: str) -> ClusterSpec:
    return load_cluster(f"{num_nodes}x{node}")


def to_cluster(hardware: Hardware) -> ClusterSpec:
    """Return the cluster a run used: its node type, and as many nodes as its GPUs fill.

    Fewer GPUs than a node holds are a part of one node, whose processor the run had to itself.
    Where the network is not published, the accelerator's common cloud shape stands in. Raises
    CannotEstimateError for unknown hardware.
    """
    rule = _rule(hardware)
    if hardware.gpus is None:
        raise CannotEstimateError("number of GPUs not published")
    size = _node_cluster(1, rule.node).node.num_accelerators
    used = min(hardware.gpus_per_node or size, size)
    num_nodes = -(-hardware.gpus // used)
    cluster = _node_cluster(num_nodes, rule.node)
    if hardware.gpus < used or used < size:
        local = min(hardware.gpus, used)
        cluster = replace(
            cluster,
            node=replace(part_of_node(cluster.node, local), whole=None),
            fabric=replace(cluster.fabric, num_accelerators=num_nodes * local),
        )
    if rule.node_gbit_per_s is not None:
        port = rule.node_gbit_per_s * GBIT_PER_S / size
        cluster = replace(cluster, fabric=replace(cluster.fabric, bytes_per_s=port))
    return cluster
