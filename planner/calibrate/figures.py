"""The figures that measurements can change: where they stand, and how sure the catalog is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.answers.parameters import scaled
from planner.catalog import hwdb_dir
from planner.catalog.cluster_file import OVERRIDES
from planner.catalog.clusters import load_cluster, split_host_memory
from planner.catalog.hardware import find_file, is_path
from planner.catalog.hardware_file import Kind
from planner.documents.tree import load_yaml
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec

# Relative standard deviation of a figure of the catalog by how it is known; assumed, after the
# ranges of tools/validation/constants.yaml: 5 % of measured products, 7 to 15 % of networks.
BY_BASIS: Mapping[str, float] = {
    "measured": 0.05,
    "given": 0.05,
    "read": 0.10,
    "derived": 0.10,
    "recalled": 0.15,
    "assumed": 0.25,
}


@dataclass(frozen=True)
class Figure:
    """A figure in the unit of its key: as the catalog has it, or as measurements make it."""

    key: str  # of overrides in a cluster file; of a machine stated whole where the figure stands
    value: float
    deviation: float = 0.0  # relative
    num_points: int = 0  # that it depends on; 0: read from the system, or follows from others
    note: str = ""
    values: tuple[float, ...] = ()  # of a list, which ends in value
    basis: str = "measured"  # of the catalog, or the cluster file in front
    catalog: float | None = None  # what was fitted; a machine stated whole has nothing behind it

    @property
    def factor(self) -> float:
        """New over old."""
        return self.value / self.catalog if self.catalog else 1.0


@dataclass(frozen=True, kw_only=True)
class Base:
    """The cluster that is calibrated: as priced, and as its file says it."""

    cluster: ClusterSpec
    raw: Mapping[str, Any]  # of the cluster file that is written, before its own overrides change


def read_base(argument: str) -> Base:
    """The base of a calibration; raises InputError where it is no whole number of nodes."""
    cluster = load_cluster(argument)
    place, _ = split_host_memory(argument)
    if is_path(place):
        raw = load_yaml(Path(place))
        # files are named from the folder of the cluster file
        named = {key: str(Path(place).parent / file) for key, file in named_files(raw).items()}
        return Base(cluster=cluster, raw={**raw, **named})
    if cluster.node.whole is not None:
        whole = cluster.node.whole.name
        message = f"a part of a node cannot be calibrated; give whole ones, such as 1x{whole}"
        raise InputError.single("command line", "CLUSTER", message)
    raw = {"node": cluster.node.name, "count": cluster.num_nodes}
    return Base(cluster=cluster, raw=raw)


def named_files(raw: Mapping[str, Any]) -> dict[str, str]:
    """The files that a cluster file names, by their keys."""
    parts = {key: raw.get(key) for key in ("node", "accelerator", "fabric")}
    return {key: part for key, part in parts.items() if isinstance(part, str) and is_path(part)}


def known(base: Base, key: str) -> Figure | None:
    """The figure that a key of a cluster file replaces; None where the machine has none."""
    part, *path = OVERRIDES[key].split(".")
    given = base.raw.get("overrides", {}).get(key)
    # latencies vary so many times more than rates: drivers, switches, cables
    scale = 4.0 if key.endswith("_us") else 1.0
    if given is not None:
        return Figure(key, given, scale * BY_BASIS["given"], basis="given")
    # the raw file of the part, or the section of the cluster file that states it whole
    named = base.raw["node"]
    file = None if isinstance(named, Mapping) else find_file("nodes", str(named))
    section: Any = load_yaml(file) if file else named
    if part != "node":
        section = base.raw.get(part) or section[part]
    if not isinstance(section, Mapping):
        kind: Kind = "accelerators" if part == "accelerator" else "fabrics"
        section = load_yaml(find_file(kind, str(section), file, part))
    for step in path:
        section = section.get(step) if isinstance(section, Mapping) else None
    # nodes that state no processor are priced with the usual one
    if section is None and part == "node":
        section = load_yaml(hwdb_dir() / "host_processor.yaml").get(key)
    if not isinstance(section, Mapping) or "value" not in section:
        return None
    basis = str(section.get("basis"))
    deviation = scale * BY_BASIS.get(basis, BY_BASIS["assumed"])
    gemm = base.cluster.accelerator.gemm
    if key == "gemm_sustained_fraction" and gemm.has_range:
        # Standard deviations between the slowest and the fastest machine that the catalog states.
        deviation = math.log(gemm.fastest / gemm.slowest) / 4.0
    return Figure(key, float(section["value"]), deviation, basis=basis)


FIGURES: Mapping[str, tuple[str, ...]] = {
    "gemm_sustained_fraction": ("node.accelerator.gemm.sustained_fraction",),
    "attention_forward_fraction": ("node.accelerator.attention.forward_fraction",),
    "attention_backward_fraction": ("node.accelerator.attention.backward_fraction",),
    "attention_flash2_forward_fraction": ("node.accelerator.attention_flash2.forward_fraction",),
    "attention_flash2_backward_fraction": ("node.accelerator.attention_flash2.backward_fraction",),
    "memory_bound_fraction": ("node.accelerator.memory_bound_fraction",),
    "collectives_at_gb_per_s_per_direction": (
        "node.accelerator.collectives.*.*.busbw_bytes_per_s.*",
    ),
    "scale_up_efficiency_fraction": ("node.scale_up.efficiency_fraction",),
    "scale_up_latency_us": ("node.scale_up.latency_s",),
    "fabric_efficiency_fraction": (
        "fabric.efficiency_fraction",
        "inner_fabric.*.efficiency_fraction",
    ),
    "fabric_latency_us": ("fabric.latency_s", "inner_fabric.*.latency_s"),
    "host_link_gb_per_s_per_direction": ("node.host_link_bytes_per_s",),
    "host_core_gb_per_s": ("node.host_core_bytes_per_s",),
    "host_memory_gb_per_s": ("node.host_memory_bytes_per_s",),
}
TORCHS_KERNEL = {
    "attention_forward_fraction": "attention_flash2_forward_fraction",
    "attention_backward_fraction": "attention_flash2_backward_fraction",
}


def with_factors(cluster: ClusterSpec, factors: Mapping[str, float]) -> ClusterSpec:
    """The cluster with figures so many times as large as they are; fractions end at 1."""
    for key, factor in factors.items():
        paths = FIGURES[key]
        own = cluster.accelerator
        # torch's kernel is the vendor's where the file states no other
        if key in TORCHS_KERNEL and own.attention_flash2 == own.attention:
            paths += FIGURES[TORCHS_KERNEL[key]]
        for path in paths:
            most = 1.0 if key.endswith("fraction") else math.inf
            # the key is the rate of links that lines were measured at: these follow its inverse
            times = 1.0 / factor if key.startswith("collectives_at_") else factor
            cluster = scaled(cluster, path.split("."), times, most)
    return cluster
