"""The catalog as JSON: models, hardware, clusters, and machines as found; base units."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.catalog.clusters import is_counted, load_cluster
from planner.catalog.detect import Machine, cluster_text
from planner.catalog.hardware import (
    HardwareDetails,
    describe,
    describe_hardware,
    is_path,
    load_accelerator,
    load_node,
)
from planner.catalog.models import load_model, load_model_details
from planner.catalog.words import SINGULAR, Entry
from planner.layers.parameters import (
    count_active_parameters,
    count_mtp_parameters,
    count_parameters,
)
from planner.limits import MAX_GPUS
from planner.spec.cluster import AcceleratorSpec, ClusterSpec, NodeSpec
from planner.spec.model import ModelSpec


def _counts(model: ModelSpec) -> dict[str, Any]:
    return {
        "parameters": count_parameters(model),
        "active_parameters": count_active_parameters(model),
    }


def models_body(names: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """A list of models of the catalog, and the words that it was asked for with."""
    models = [load_model(name) for name in names]
    rows = [
        {
            "name": model.name,
            **_counts(model),
            "is_mixture": model.moe is not None,
            "num_blocks": model.num_blocks,
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "max_seq_len": model.max_seq_len,
        }
        for model in models
    ]
    return {"words": list(words), "models": rows}


def model_body(name: str) -> dict[str, Any]:
    """One model: counts, shape, and where they come from."""
    details = load_model_details(name)
    model, file = details.spec, details.file
    published = (file.params_published_b, file.params_active_published_b)
    stated, active = (None if each is None else each * 1e9 for each in published)
    source = file.provenance
    return {
        "name": model.name,
        **_counts(model),
        "mtp_parameters": model.num_mtp_layers and count_mtp_parameters(model),
        "published_parameters": stated,
        "published_active_parameters": active,
        "model": asdict(model),
        "basis": source.basis if source else None,
        "note": source.note if source else "",
        "sources": [each.citation() for each in source.sources] if source else [],
        "notes": list(details.notes),
    }


def _accelerator(details: HardwareDetails, spec: AcceleratorSpec) -> dict[str, Any]:
    return {
        "name": details.name,
        "title": details.title,
        "vendor": spec.vendor,
        "architecture": spec.architecture,
        "hbm_bytes": spec.hbm_bytes,
        "hbm_bytes_per_s": spec.hbm_bytes_per_s,
        "peak_flops_per_s": dict(spec.peak_flops_per_s),
        "power_w": spec.tdp_w,
    }


def _node(details: HardwareDetails, spec: NodeSpec) -> dict[str, Any]:
    return {
        "name": details.name,
        "title": details.title,
        "accelerator": spec.accelerator.name,
        "gpus": spec.num_accelerators,
        "scale_up": spec.scale_up.name,
        "scale_up_gpus": spec.scale_up.num_accelerators,
        "scale_up_bytes_per_s": spec.scale_up.bytes_per_s,
        "fabric": spec.fabric,
        "network_bytes_per_s": spec.nic_bytes_per_s or None,
        "host_memory_bytes": spec.host_memory_bytes,
        "usd_per_hour": spec.usd_per_hour,
    }


def _summary(details: HardwareDetails) -> dict[str, Any]:
    """What lists show of an entry."""
    if details.kind == "accelerators":
        return _accelerator(details, load_accelerator(details.name))
    if details.kind == "nodes":
        return _node(details, load_node(details.name))
    title = {"name": details.name, "title": details.title}
    return title | ({"node": details.texts["node"]} if details.kind == "clusters" else {})


def hardware_body(entries: Sequence[Entry], words: Sequence[str]) -> dict[str, Any]:
    """A list of hardware, by kind, and the words that it was asked for with."""
    found: dict[str, Any] = {f"{word}s": [] for word in SINGULAR.values()}
    for kind, name in entries:
        found[f"{SINGULAR[kind]}s"].append(_summary(describe(kind, name)))
    return {"words": list(words), **found}


def shown_document(name: str) -> tuple[str, dict[str, Any]]:
    """What kind of document an entry, 4xNODE or a cluster file is, and its body."""
    if is_counted(name) or is_path(name):
        return "cluster", _cluster(load_cluster(name))
    details = describe_hardware(name)
    whole = {"clusters": details.name, "nodes": f"{MAX_GPUS}x{details.name}"}.get(details.kind)
    return "hardware-entry", _entry(details, load_cluster(whole) if whole else None)


def _entry(details: HardwareDetails, cluster: ClusterSpec | None) -> dict[str, Any]:
    """One entry: every figure as its file states it, and the levels of its network."""
    kind = SINGULAR[details.kind]
    parts = {each: _summary(details) if each == kind else None for each in ("accelerator", "node")}
    return {
        "kind": kind,
        "name": details.name,
        "title": details.title,
        "note": details.note,
        **parts,
        "texts": dict(details.texts),
        "figures": [
            {
                "name": row.name,
                "value": row.stated,
                "unit": row.unit,
                "basis": row.basis,
                "source": row.source,
                "note": row.note,
            }
            for row in details.rows
        ],
        "levels": _levels(cluster) if cluster else [],
    }


def _levels(cluster: ClusterSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": level.name,
            "topology": level.topology,
            "dims": level.dims,
            "gpus": level.num_accelerators,
            "bytes_per_s": level.bytes_per_s,
            "efficiency_fraction": level.efficiency_fraction,
            "latency_s": level.latency_s,
            "oversubscription": level.oversubscription,
            "reduces_in_network": level.reduces_in_network,
        }
        for level in cluster.levels
    ]


def _cluster(cluster: ClusterSpec) -> dict[str, Any]:
    """A cluster: what it is of, and the levels of its network."""
    return {
        "name": cluster.name,
        "node": cluster.node.name,
        "nodes": cluster.num_nodes,
        "accelerator": cluster.accelerator.name,
        "gpus": cluster.num_accelerators,
        "levels": _levels(cluster),
        "assumed": [*cluster.accelerator.assumptions, *map(str, cluster.assumptions)],
    }


def detected_body(machine: Machine, *, command: str, written: Sequence[str]) -> dict[str, Any]:
    """A machine as found: what was seen, what differs from the catalog, and its file."""
    return {
        "node": machine.node,
        "nodes": machine.num_nodes,
        "accelerator": machine.accelerator,
        "gpus_per_node": machine.num_gpus,
        "seen": [asdict(each) for each in machine.seen],
        "overrides": [asdict(each) for each in machine.overrides],
        "from_catalog": list(machine.kept),
        "notes": list(machine.notes),
        "cluster_file": cluster_text(machine, command),
        "written": list(written),
    }
