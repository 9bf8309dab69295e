"""Clusters: ``16xdgx-h100``, ``512xh100-sxm``, or a YAML file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog import EXAMPLE_ACCELERATOR, EXAMPLE_MACHINE, EXAMPLE_NODE, unknown_name
from planner.catalog.cluster_file import ClusterFile, Overrides, Part
from planner.catalog.figures import validate
from planner.catalog.hardware import (
    File,
    aliases,
    find_entry,
    host_rules,
    is_path,
    list_names,
    load_file,
    normalised_machine,
    read_file,
)
from planner.catalog.hardware_convert import (
    collectives_scale,
    fabric_levels,
    to_accelerator,
    to_node,
)
from planner.catalog.hardware_file import AcceleratorFile, FabricFile, Kind, NodeFile, PresetFile
from planner.documents.tree import load_yaml
from planner.errors import InputError, Problem
from planner.limits import MAX_COUNT_DIGITS, MAX_GPUS, brief, name_of, short
from planner.notes import Note, NoteKind
from planner.spec.cluster import ClusterSpec, NodeSpec
from planner.units import GIB, format_bytes, parse_bytes

_COUNTED = re.compile(r"^\s*([+-]?[0-9][0-9_,.]*)\s*[xX*]\s*(\S+)\s*$")
LEAST_HOST_MEMORY_BYTES, MOST_HOST_MEMORY_BYTES = GIB, 2.0**50
Network = tuple[str, FabricFile]  # between nodes: its name, and what its file says
_SHAPE = (
    f"16x{EXAMPLE_NODE} (nodes), 512x{EXAMPLE_ACCELERATOR} (accelerators), "
    f"{EXAMPLE_MACHINE} (a machine) "
    "or a cluster file ending in .yaml; each may end in @512GiB, the host memory of a node; "
    "`planner show hardware` lists what is known, --detect asks this machine"
)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A file that a cluster is put together from, or a section of the cluster file in its place."""

    raw: Mapping[str, Any]
    name: str
    path: Path  # that its own paths are beside
    section: str = ""

    def checked(self, schema: type[File], part: Part, overrides: Overrides) -> File:
        """Return its checked data; problems of a section say which."""
        try:
            return validate(schema, overrides.apply(part, self.raw), str(self.path))
        except InputError as error:
            prefix = f"{self.section}." if self.section else ""
            found = [replace(each, key=f"{prefix}{each.key}") for each in error.problems]
            raise InputError(found) from None


def _part(kind: Kind, argument: str, beside: Path | None = None, key: str = "") -> _Part:
    path, raw = read_file(kind, argument, beside, key)
    return _Part(raw=raw, name=name_of(path.stem), path=path)


def load_cluster(argument: str | Path) -> ClusterSpec:
    """Return the cluster of ``NODESxNODE``, ``NxACCELERATOR``, a machine's name or a YAML file.

    ``NxACCELERATOR`` takes the accelerator's usual node, which is stated in the cluster's
    assumptions; N must fill whole nodes, or be smaller than one. A machine of the catalog is taken
    whole, or so many nodes of it with ``NODESxMACHINE``. Each may end in ``@512GiB``: the host
    memory of every node, or of the part of a node that is asked for. Raises InputError with every
    problem found.
    """
    argument, host_memory_bytes = split_host_memory(argument)
    if host_memory_bytes is not None:
        return with_host_memory(load_cluster(argument), host_memory_bytes)
    if is_path(argument):
        return _from_file(Path(argument))
    meant = normalised_machine(str(argument))
    if meant != argument:
        cluster = load_cluster(meant)
        note = Note(kind=NoteKind.given, text=f"{argument} is read as {meant}", subject="cluster")
        return replace(cluster, assumptions=(*cluster.assumptions, note))
    if find_entry(str(argument), ("clusters",)):
        return _from_preset(str(argument), None)
    counted = _COUNTED.match(str(argument))
    if counted is None:
        hint = f"did you mean {argument}x{EXAMPLE_ACCELERATOR}? " * str(argument).isdecimal()
        message = f"not a cluster; given {str(argument)!r}, {hint}allowed {_SHAPE}"
        raise InputError.single("cluster", str(argument) or "''", message)
    text, name = counted.groups()
    is_number = text.isdecimal() and len(text) <= MAX_COUNT_DIGITS
    if not is_number or not 1 <= int(text) <= MAX_GPUS:
        message = f"the count must be a whole number of 1 to {MAX_GPUS:,}; given {brief(text)}"
        raise InputError.single("cluster", short(str(argument)), message)
    count = int(text)
    match find_entry(name, ("nodes", "accelerators", "clusters")):
        case ("nodes", node):
            return _cluster(f"{count}x{node}", count, *node_of_catalog(node))
        case ("accelerators", accelerator):
            return _from_accelerators(count, accelerator)
        case ("clusters", _):
            return _from_preset(name, count)
    known = [*list_names("nodes"), *list_names("accelerators"), *list_names("clusters")]
    known += [*aliases()["nodes"], *aliases()["accelerators"]]
    raise unknown_name("node or accelerator", name, known, "cluster", str(argument))


def split_host_memory(argument: str | Path) -> tuple[str | Path, float | None]:
    """An argument without the host memory at its end, and those bytes; too few: InputError."""
    pattern = r"^\s*(.*\S)\s*@\s*([0-9.]+\s*[kKMGTP]?i?B)\s*$"
    found = re.match(pattern, argument) if isinstance(argument, str) else None
    if found is None:
        return argument, None
    try:
        num_bytes = read_host_memory(found.group(2))
    except ValueError as error:
        raise InputError.single("cluster", short(str(argument)), str(error)) from None
    return found.group(1), num_bytes


def read_host_memory(text: str) -> float:
    """Read the host memory of a node, such as ``512GiB``; raises ValueError."""
    num_bytes = parse_bytes(text)
    if not LEAST_HOST_MEMORY_BYTES <= num_bytes <= MOST_HOST_MEMORY_BYTES:
        raise ValueError(f"host memory of a node is 1GiB to 1PiB; given {brief(text)}")
    return num_bytes


def with_host_memory(cluster: ClusterSpec, host_memory_bytes: float) -> ClusterSpec:
    """Return the cluster with so much host memory in every node, as a user gives it."""
    node = replace(cluster.node, host_memory_bytes=host_memory_bytes, host_memory_note="")
    given = Note(
        kind=NoteKind.given,
        text=f"given: {format_bytes(host_memory_bytes)} of host memory per node",
        subject="host_memory",
    )
    return replace(cluster, node=node, assumptions=(*cluster.assumptions, given))


def load_cluster_of(argument: str, num_accelerators: int) -> ClusterSpec:
    """Return so many accelerators of the node and fabric of ``argument``.

    ``argument`` is that of ``load_cluster``, its count left out or ignored. Fewer accelerators
    than a node holds are a part of one node, with their share of its host memory, also where
    ``argument`` gives that. Raises InputError where they do not fill nodes.
    """
    machine, host_memory_bytes = split_host_memory(argument)
    if host_memory_bytes is not None:
        cluster = load_cluster_of(str(machine), num_accelerators)
        whole = cluster.node.whole or cluster.node
        share = cluster.node.num_accelerators / whole.num_accelerators
        return with_host_memory(cluster, share * host_memory_bytes)
    name, one = _smallest(argument)
    if one.node.whole is not None:
        return load_cluster(f"{num_accelerators}x{name}")
    size = one.node.num_accelerators
    num_nodes, rest = divmod(num_accelerators, size)
    if num_nodes and rest:
        message = f"{num_accelerators} is not a multiple of {size}, the GPUs in one {one.node.name}"
        raise InputError.single("cluster", argument, message)
    if num_nodes:
        is_file = is_path(name)
        return _from_file(Path(name), num_nodes) if is_file else load_cluster(f"{num_nodes}x{name}")
    fabric = replace(one.fabric, num_accelerators=num_accelerators)
    return replace(one, node=part_of_node(one.node, num_accelerators), num_nodes=1, fabric=fabric)


def _smallest(argument: str) -> tuple[str, ClusterSpec]:
    """Return what an argument names, without a count, and one of it; of a file, its cluster."""
    if is_path(argument):
        return argument, load_cluster(argument)
    meant = normalised_machine(argument)
    counted = _COUNTED.match(meant)
    name = counted.group(2) if counted else meant
    return name, load_cluster(f"1x{name}")


def largest_cluster_of(argument: str, most: int) -> ClusterSpec:
    """Return the largest cluster of whole nodes of ``argument`` with at most ``most`` accelerators.

    ``argument`` is that of ``load_cluster_of``. A machine of the catalog is taken no larger than
    it is; below one node the cluster is a part of one.
    """
    name, one = _smallest(str(split_host_memory(argument)[0]))
    size = (one.node.whole or one.node).num_accelerators
    if not is_path(name) and find_entry(name, ("clusters",)):
        most = min(most, load_cluster(name).num_accelerators)
    return load_cluster_of(argument, most if most < size else most // size * size)


def is_counted(argument: str) -> bool:
    """Return True if an argument has a count, such as ``16xdgx-h100``."""
    return _COUNTED.match(argument) is not None


def _from_preset(argument: str, count: int | None) -> ClusterSpec:
    path, file = load_file(PresetFile, "clusters", argument)
    whole = file.num_nodes.value
    if count is not None and count > whole:
        message = f"{path.stem} has {whole:,} nodes; given {count:,}"
        raise InputError.single("cluster", f"{count}x{path.stem}", message)
    node, fabric = _read(
        _part("nodes", file.node, path, "node"),
        fabric=_part("fabrics", file.fabric, path, "fabric") if file.fabric else None,
    )
    name = path.stem if count is None else f"{count}x{path.stem}"
    return _cluster(name, count or whole, node, fabric)


def _from_accelerators(count: int, accelerator: str) -> ClusterSpec:
    usual = load_file(AcceleratorFile, "accelerators", accelerator)[1].usual_node
    if usual is None:
        message = f"{accelerator} has no usual node; name a node: {count}xNODE"
        raise InputError.single("cluster", f"{count}x{accelerator}", message)
    node, fabric = node_of_catalog(usual)
    size = node.num_accelerators
    assumption = f"assumed node {usual}: {size} {accelerator} per node"
    if count < size:
        assumption = f"assumed node {usual}, of which {count} of {size} {accelerator}"
        node = part_of_node(node, count)
    elif count % size:
        below, above = count // size * size, (count // size + 1) * size
        message = (
            f"{count} is not a multiple of {size}, the {accelerator} in one {usual}; "
            f"nearest are {below} and {above}"
        )
        raise InputError.single("cluster", f"{count}x{accelerator}", message)
    num_nodes = max(1, count // size)
    note = Note(kind=NoteKind.assumed, text=assumption, subject="cluster")
    return _cluster(f"{count}x{accelerator}", num_nodes, node, fabric, (note,))


def part_of_node(node: NodeSpec, num_accelerators: int) -> NodeSpec:
    """Return the share of a node that belongs to some of its accelerators.

    Network, processors, host memory, disks, power and price are shared evenly; links per
    accelerator and slots stay.
    """
    share = num_accelerators / node.num_accelerators
    shared = (
        "nic_bytes_per_s",
        "host_memory_bytes",
        "host_cores",
        "host_memory_bytes_per_s",
        "nvme_bytes",
        "nvme_read_bytes_per_s",
        "nvme_write_bytes_per_s",
        "power_w",
        "usd_per_hour",
    )
    known = {name: getattr(node, name) for name in shared}
    return replace(
        node,
        name=f"{num_accelerators}/{node.num_accelerators} {node.name}",
        num_accelerators=num_accelerators,
        package=node.package and node.package.within(num_accelerators),
        scale_up=node.scale_up.within(num_accelerators),
        whole=node,
        **{name: value * share for name, value in known.items() if value is not None},
    )


def _from_file(path: Path, num_nodes: int | None = None) -> ClusterSpec:
    raw = load_yaml(path)
    if "pools" in raw:
        message = "mixed kinds of machines are not covered; give the node and count of one kind"
        raise InputError.single(str(path), "pools", message)
    raw, notes = _in_own_keys(raw)
    cluster = cluster_of_data(raw, path, num_nodes)
    return replace(cluster, assumptions=(*notes, *cluster.assumptions))


def _in_own_keys(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """``nodes``, ``gpus_per_node``, ``gpu`` and ``network`` (Gb/s) as ours, with a note."""
    gpu = raw.get("gpu")
    everyday = ("gpu", "gpus_per_node", "nodes", "network", "overrides")
    rest = {key: raw[key] for key in raw if key not in everyday}
    if not isinstance(gpu, str) or "node" in raw:
        return raw, ()
    one = load_cluster(f"1x{gpu}").node
    node = one.whole or one
    overrides = dict(raw.get("overrides") or {})
    size = raw.get("gpus_per_node", node.num_accelerators)
    count = raw.get("nodes", 1)
    if size != node.num_accelerators:
        sizes = ("accelerators_per_node", "scale_up_domain_accelerators", "nics")
        overrides |= dict.fromkeys(sizes, size)
    said = f"{count} x {node.name} of {size} {gpu}"
    gbit_per_s = r"^\s*([0-9.]{1,9})\s*(?:gb(?:it)?(?:/s|ps)|g)?\s*$"
    if rate := re.match(gbit_per_s, str(raw.get("network", "")), re.IGNORECASE):
        overrides["nic_gbit_per_s"] = float(rate[1])
        said += f", {rate[1]} Gb/s of every NIC"
    elif "network" in raw:
        rest["network"] = raw["network"]
    note = Note(kind=NoteKind.given, text=f"the file is read as {said}", subject="cluster")
    return {**rest, "node": node.name, "count": count, "overrides": overrides}, (note,)


def cluster_of_data(
    raw: Mapping[str, Any], path: Path, num_nodes: int | None = None
) -> ClusterSpec:
    """The cluster of what a file holds, its paths beside ``path``; raises InputError."""
    where = str(path)
    problems: list[Problem] = []
    parts: dict[str, _Part] = {}
    kinds: Mapping[Part, Kind] = {
        "node": "nodes",
        "accelerator": "accelerators",
        "fabric": "fabrics",
    }
    for key, kind in kinds.items():
        value = raw.get(key)
        if isinstance(value, dict) and key != "fabric":
            parts[key] = _Part(
                raw=value,
                name=_name(raw, key, path),
                path=path,
                section=key,
            )
        elif isinstance(value, str):
            try:
                parts[key] = _part(kind, value, path, key)
            except InputError as error:
                problems += error.problems
    stated: Mapping[str, Any] = {key: {} for key, part in parts.items() if part.section}
    file = validate(ClusterFile, {**raw, **stated}, where, problems)
    values = {key: getattr(file.overrides, key) for key in raw.get("overrides", ())}
    overrides = Overrides(where=where, values=values, levels=file.levels)
    node, fabric = _read(**parts, overrides=overrides)
    name = file.name or name_of(path.stem)
    return _cluster(name, num_nodes or file.count, node, fabric, overrides.notes())


def _name(raw: Mapping[str, Any], section: str, path: Path) -> str:
    """Return the name of a section: the accelerator as its node calls it, a node as the cluster."""
    node = raw.get("node")
    named = node.get("accelerator") if isinstance(node, dict) and section == "accelerator" else None
    return name_of(str(named or raw.get("name") or path.stem))


def _read(
    node: _Part,
    accelerator: _Part | None = None,
    fabric: _Part | None = None,
    overrides: Overrides | None = None,
) -> tuple[NodeSpec, Network]:
    """Join the files of a cluster, those left out as the node names them; all problems at once."""
    overrides = overrides or Overrides()
    file = node.checked(NodeFile, "node", overrides)
    problems: list[Problem] = []
    spec, network = None, None
    try:
        part = accelerator or _part("accelerators", file.accelerator, node.path, "accelerator")
        own = part.checked(AcceleratorFile, "accelerator", overrides)
        device = to_accelerator(own, part.name, file)
        scale = collectives_scale(own, file)
        spec = to_node(file, node.name, device, scale, *host_rules())
    except InputError as error:
        problems += error.problems
    try:
        part = fabric or _part("fabrics", file.fabric, node.path, "fabric")
        network = part.name, part.checked(FabricFile, "fabric", overrides)
    except InputError as error:
        problems += error.problems
    if spec is None or network is None:
        raise InputError(problems)
    return spec, network


@cache
def node_of_catalog(node: str) -> tuple[NodeSpec, Network]:
    """A node of the catalog and its network: clusters of every size are put together from it."""
    return _read(_part("nodes", node))


def _cluster(
    name: str, num_nodes: int, node: NodeSpec, network: Network, assumptions: tuple[Note, ...] = ()
) -> ClusterSpec:
    """Join nodes with a fabric; more than one scale-up domain needs a network."""
    num_accelerators = num_nodes * node.num_accelerators
    port_bytes_per_s = node.nic_bytes_per_s / node.num_accelerators
    if port_bytes_per_s == 0 and num_accelerators > node.scale_up.num_accelerators:
        message = f"no network ports are known for {node.name}; give nics and nic_gbit_per_s"
        raise InputError.single("cluster", name, f"{message} in the overrides of a cluster file")
    # Rate of a fabric that nothing uses: one scale-up domain and no known network ports.
    rate = port_bytes_per_s or 1e9
    fabric_name, fabric = network
    *inner, outermost = fabric_levels(fabric, fabric_name, num_nodes, node, rate)
    return ClusterSpec(
        name=name,
        node=node,
        num_nodes=num_nodes,
        fabric=outermost,
        inner_fabric=tuple(inner),
        assumptions=assumptions,
    )
