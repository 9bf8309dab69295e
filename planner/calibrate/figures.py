"""The figures that measurements can change: where they stand, and how sure the catalog is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.catalog.cluster_file import OVERRIDES
from planner.catalog.clusters import load_cluster, split_host_memory
from planner.catalog.hardware import Kind, find_file, is_path
from planner.catalog.paths import hwdb_dir
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.units import GB

BY_BASIS: Mapping[str, float] = {
    "measured": 0.05,
    "given": 0.05,
    "read": 0.10,
    "derived": 0.10,
    "recalled": 0.15,
    "assumed": 0.25,
}
"""Relative standard deviation of a figure of the catalog by how it is known; assumed, after the
ranges of tools/validation/constants.yaml: 5 % of measured products, 7 to 15 % of networks."""
OF_LATENCY = 4.0
"""Latencies vary so many times more than rates: drivers, switches, cables."""
UNKNOWN = 1.0
"""Of what the catalog has no figure of."""
RANGE_DEVIATIONS = 4.0
"""Standard deviations between the slowest and the fastest machine that the catalog states."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The cluster that is calibrated: as priced, and as its file says it."""

    cluster: ClusterSpec
    raw: Mapping[str, Any]
    """Of the cluster file that is written, before its own overrides change."""
    fresh: "Mapping[str, Known]" = field(default_factory=dict)
    """Figures that the catalog has none of: what was measured of them stands in their place."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A figure of the catalog, or of the cluster file in front of it."""

    value: float
    deviation: float
    """Relative."""
    basis: str


def read_base(argument: str) -> Base:
    """The base of a calibration; raises InputError where it is no whole number of nodes."""
    cluster = load_cluster(argument)
    place, _ = split_host_memory(argument)
    if is_path(place):
        raw = load_yaml(Path(place))
        for key in ("node", "accelerator", "fabric"):
            named = raw.get(key)
            if isinstance(named, str) and is_path(named):
                raw[key] = str(Path(place).parent / raw[key])
        return Base(cluster=cluster, raw=raw)
    if cluster.node.whole is not None:
        whole = cluster.node.whole.name
        message = f"a part of a node cannot be calibrated; give whole ones, such as 1x{whole}"
        raise InputError.single("command line", "CLUSTER", message)
    raw = {"node": cluster.node.name, "count": cluster.num_nodes}
    return Base(cluster=cluster, raw=raw)


def known(base: Base, key: str) -> Known | None:
    """The figure that a key of a cluster file replaces; None where the machine has none."""
    part, path = OVERRIDES[key]
    given = base.raw.get("overrides", {}).get(key)
    scale = OF_LATENCY if key.endswith("_us") else 1.0
    if given is not None:
        return Known(value=given, deviation=scale * BY_BASIS["given"], basis="given")
    section: Any = _file(base, part)
    for step in path:
        section = section.get(step) if isinstance(section, Mapping) else None
    if section is None and part == "node":
        section = load_yaml(hwdb_dir() / "host_processor.yaml").get(key)
    if not isinstance(section, Mapping) or "value" not in section:
        return base.fresh.get(key)
    basis = str(section.get("basis"))
    deviation = scale * BY_BASIS.get(basis, BY_BASIS["assumed"])
    gemm = base.cluster.accelerator.gemm
    if key == "gemm_sustained_fraction" and gemm.has_range:
        deviation = math.log(gemm.fastest / gemm.slowest) / RANGE_DEVIATIONS
    return Known(value=float(section["value"]), deviation=deviation, basis=basis)


def _file(base: Base, part: str) -> Mapping[str, Any]:
    """The raw file of a part, or the section of the cluster file that states it whole."""
    own = base.raw.get(part)
    if isinstance(own, Mapping):
        return own
    node_path: Path | None = None
    node: Mapping[str, Any] = {}
    if isinstance(base.raw["node"], Mapping):
        node = base.raw["node"]
    else:
        node_path = find_file("nodes", str(base.raw["node"]))
        node = load_yaml(node_path)
    if part == "node":
        return node
    name = str(own or node[part])
    kind: Kind = "accelerators" if part == "accelerator" else "fabrics"
    return load_yaml(find_file(kind, name, node_path, part))


def _of_node(cluster: ClusterSpec, **changes: Any) -> ClusterSpec:  # noqa: ANN401 - fields of a spec
    return replace(cluster, node=replace(cluster.node, **changes))


def _products(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    own = cluster.accelerator
    rate = min(1.0, factor * own.gemm.sustained_fraction)
    gemm = replace(own.gemm, sustained_fraction=rate)
    return _of_node(cluster, accelerator=replace(own, gemm=gemm))


def _collectives(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    """Measured lines ``1 / factor`` times as fast: they were measured at another rate of links."""
    own = cluster.accelerator
    lines = {
        kind: tuple(
            replace(fit, busbw_bytes_per_s=tuple(rate / factor for rate in fit.busbw_bytes_per_s))
            for fit in fits
        )
        for kind, fits in own.collectives.items()
    }
    return _of_node(cluster, accelerator=replace(own, collectives=lines))


def _level(level: LevelSpec, field: str, factor: float) -> LevelSpec:
    value = factor * getattr(level, field)
    return replace(level, **{field: min(1.0, value) if field.endswith("fraction") else value})


def _scale_up(field: str) -> "Change":
    def change(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        return _of_node(cluster, scale_up=_level(cluster.node.scale_up, field, factor))

    return change


def _fabric(field: str) -> "Change":
    def change(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        inner = tuple(_level(level, field, factor) for level in cluster.inner_fabric)
        return replace(cluster, fabric=_level(cluster.fabric, field, factor), inner_fabric=inner)

    return change


def _node(name: str) -> "Change":
    def change(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        rate = getattr(cluster.node, name)
        return cluster if rate is None else _of_node(cluster, **{name: factor * rate})

    return change


def _attention(kernel: str, name: str) -> "Change":
    """A kernel's rate; torch's is the vendor's where the file states no other."""

    def change(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        own = cluster.accelerator
        old = getattr(own, kernel)
        fit = replace(old, **{name: min(1.0, factor * getattr(old, name))})
        changes = {kernel: fit}
        if kernel == "attention" and own.attention_flash2 == old:
            changes["attention_flash2"] = fit
        return _of_node(cluster, accelerator=replace(own, **changes))

    return change


def _memory_bound(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    own = cluster.accelerator
    share = min(1.0, factor * own.memory_bound_fraction)
    return _of_node(cluster, accelerator=replace(own, memory_bound_fraction=share))


Change = Callable[[ClusterSpec, float], ClusterSpec]
FIGURES: Mapping[str, Change] = {
    "gemm_sustained_fraction": _products,
    "attention_forward_fraction": _attention("attention", "forward_fraction"),
    "attention_backward_fraction": _attention("attention", "backward_fraction"),
    "attention_flash2_forward_fraction": _attention("attention_flash2", "forward_fraction"),
    "attention_flash2_backward_fraction": _attention("attention_flash2", "backward_fraction"),
    "memory_bound_fraction": _memory_bound,
    "collectives_at_gb_per_s_per_direction": _collectives,
    "scale_up_efficiency_fraction": _scale_up("efficiency_fraction"),
    "scale_up_latency_us": _scale_up("latency_s"),
    "fabric_efficiency_fraction": _fabric("efficiency_fraction"),
    "fabric_latency_us": _fabric("latency_s"),
    "host_link_gb_per_s_per_direction": _node("host_link_bytes_per_s"),
    "host_core_gb_per_s": _node("host_core_bytes_per_s"),
    "host_memory_gb_per_s": _node("host_memory_bytes_per_s"),
    "nvme_read_gb_per_s": _node("nvme_read_bytes_per_s"),
    "nvme_write_gb_per_s": _node("nvme_write_bytes_per_s"),
}
"""Key of a cluster file to the cluster with that figure so many times as large."""


def with_factors(cluster: ClusterSpec, factors: Mapping[str, float]) -> ClusterSpec:
    """The cluster with figures so many times as large as they are."""
    for key, factor in factors.items():
        cluster = FIGURES[key](cluster, factor)
    return cluster


def with_fresh(base: Base, measured: Mapping[str, Sequence[float]]) -> Base:
    """The base with the median of what was measured in place of disks it knows no rate of."""
    cluster, fresh = base.cluster, dict(base.fresh)
    for key, values in measured.items():
        name = key.replace("_gb_per_s", "_bytes_per_s")
        if values and getattr(cluster.node, name) is None:
            value = float(np.median(values))
            fresh[key] = Known(value=value / GB, deviation=UNKNOWN, basis="none")
            cluster = _of_node(cluster, **{name: value})
    return replace(base, cluster=cluster, fresh=fresh)
