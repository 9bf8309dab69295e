"""Several observations of one node, set against the catalog."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from planner.catalog.cluster_file import override_problems
from planner.catalog.detect.accelerator import accelerator_of, nearest_accelerators
from planner.catalog.detect.compare import Override, fabric_of, overrides_of
from planner.catalog.detect.nodes import Wanted, fits, is_pcie, nearest_node, new_node, nodes_with
from planner.catalog.detect.nvlink import Joined, joined, link_gb_per_s, most_links
from planner.catalog.detect.observation import Links, Observation, Slot
from planner.catalog.detect.recognise import Source
from planner.catalog.detect.slurm import choose_group
from planner.catalog.hardware import check_accelerator, find_file
from planner.catalog.hardware_file import AcceleratorFile, NodeFile
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError, Problem

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the user decides where sources leave it open; empty: take what was seen."""

    accelerator: str = ""
    partition: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One thing that a source told."""

    what: str
    value: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster as detected: a node of the catalog and what differs from it."""

    node: str
    num_nodes: int
    accelerator: str
    num_gpus: int
    fabric: str | None
    """None: that of the node."""
    overrides: tuple[Override, ...]
    new_node: dict[str, Any] | None
    """Raw data of a node that the catalog does not have; ``node`` is then what it is made from."""
    seen: tuple[Seen, ...]
    kept: tuple[str, ...]
    """What nothing told, from the catalog."""
    notes: tuple[str, ...]


def merge(sources: Sequence[Source], choice: Choice) -> Machine:
    """Return the machine that sources of one node and its cluster describe.

    Raises InputError where they contradict each other or name no accelerator of the catalog.
    """
    observations = [source for source in sources if isinstance(source, Observation)]
    slurm = [source for source in sources if not isinstance(source, Observation)]
    hint = _first_accelerator(observations, choice)
    problems: list[Problem] = []
    if choice.partition and not slurm:
        message = "partitions are told by sinfo; give its output"
        problems.append(Problem(where="command line", key="--partition", message=message))
    for nodes in slurm:
        try:
            observations.append(choose_group(nodes, hint, choice.accelerator, choice.partition))
        except InputError as error:
            problems += error.problems
    problems += _contradictions(observations)
    if problems:
        raise InputError(problems)
    return _machine(observations, _accelerator(observations, choice))


def _first_accelerator(observations: Sequence[Observation], choice: Choice) -> str | None:
    if choice.accelerator:
        return accelerator_of(choice.accelerator)
    names = (accelerator_of(item.gpu) for item in observations if item.gpu)
    return next((name for name in names if name), None)


def _accelerator(observations: Sequence[Observation], choice: Choice) -> str:
    """The catalog name of the GPUs; one that is not known is refused with the nearest."""
    named = [item for item in observations if item.gpu]
    found = _first_accelerator(observations, choice)
    if found:
        return found
    if choice.accelerator:
        where, key, text = "command line", "--accelerator", choice.accelerator
    elif named:
        where, key, text = named[0].where, "GPU", named[0].gpu
    else:
        message = "no source names the GPUs; add `nvidia-smi` output or give --accelerator NAME"
        raise InputError.single(", ".join(item.where for item in observations), "GPU", message)
    near = nearest_accelerators(text)
    hint = f"nearest are {', '.join(near)}" if near else "`planner hardware` lists all"
    message = f"no accelerator of the catalog is {text!r}; {hint}, choose with --accelerator NAME"
    message += " if it is one of them, else describe yours (docs/extending.md)"
    raise InputError.single(where, key, message)


def _contradictions(observations: Sequence[Observation]) -> Iterator[Problem]:
    """Two sources that tell different things of one node."""
    kinds = [(item, accelerator_of(item.gpu)) for item in observations if item.gpu]
    counts = [(item, item.num_gpus) for item in observations if item.num_gpus]
    sizes = [(item, item.num_nodes) for item in observations if item.num_nodes]
    for what, told in (("GPU", kinds), ("GPUs per node", counts), ("nodes", sizes)):
        known = [(item, value) for item, value in told if value]
        for item, value in known[1:]:
            first, other = known[0]
            if value != other:
                message = f"told {value} here and {other} by {first.where}; give files of one node"
                yield Problem(where=item.where, key=what, message=message)


def _machine(observations: Sequence[Observation], accelerator: str) -> Machine:
    path = find_file("accelerators", accelerator)
    file = check_accelerator(load_yaml(path), str(path))
    nodes = nodes_with(accelerator)
    if not nodes:
        message = f"no node of the catalog holds {accelerator}; write one (docs/extending.md)"
        raise InputError.single("nodes", accelerator, message)
    notes = [f"{item.name}: {note}" for item in observations for note in item.notes]
    wanted, link_notes = _wanted(observations, accelerator, file, nodes)
    base = nearest_node(wanted, nodes)
    whole = fits(wanted, nodes[base])
    where = ", ".join(item.where for item in observations)
    slot = _value(observations, "slot", Slot)
    names = ", ".join(item.name for item in observations)
    raw = None if whole else new_node(wanted, base, slot, names)
    overrides = overrides_of(observations, wanted, file, nodes[base], is_new=raw is not None)
    values = {override.key: override.value for override in overrides}
    problems = override_problems(values, where)
    if problems:
        raise InputError(problems)
    num_nodes = _value(observations, "num_nodes", int)
    if num_nodes is None:
        notes.append("nothing told how many nodes there are: count is 1, edit it")
    return Machine(
        node=base,
        num_nodes=num_nodes or 1,
        accelerator=accelerator,
        num_gpus=wanted.num_gpus or nodes[base].accelerators_per_node.value,
        fabric=fabric_of(wanted.nics, nodes[base]),
        overrides=overrides,
        new_node=raw,
        seen=tuple(_seen(observations, accelerator)),
        kept=tuple(_kept(observations, wanted, nodes[base], values)),
        notes=(*notes, *link_notes),
    )


def _wanted(
    observations: Sequence[Observation],
    accelerator: str,
    file: AcceleratorFile,
    nodes: dict[str, NodeFile],
) -> tuple[Wanted, list[str]]:
    """What the node should have, and why links that were seen were not taken."""
    shape: Joined | None = None
    notes = []
    rate = link_gb_per_s(file)
    for item in observations:
        if item.links is None or shape is not None:
            continue
        shape = joined(item.links, most_links(file))
        if shape is None or (rate is None and shape.group > 1):
            notes.append(f"{item.name}: its NVLinks have no shape known here; the catalog's kept")
            shape = None
        elif shape.group == 1 and not any(map(is_pcie, nodes.values())):
            if (item.num_gpus or 1) > 1:
                note = f"shows no NVLink, which every node with {accelerator} has"
                notes.append(f"{item.name}: {note} (topo -mp hides it); the catalog's kept")
            shape = None
    first = Wanted(
        accelerator=accelerator,
        usual_node=file.usual_node,
        num_gpus=_value(observations, "num_gpus", int),
        joined=shape,
        gb_per_s=None,
        nics=next((item.nics for item in observations if item.nics), None),
    )
    if shape is None or shape.group == 1 or rate is None:
        return first, notes
    return replace(first, gb_per_s=shape.links * rate), notes


def _value(observations: Sequence[Observation], name: str, kind: type[Value]) -> Value | None:
    """The first value told of a field."""
    values = (getattr(item, name) for item in observations)
    return next((value for value in values if isinstance(value, kind)), None)


def _seen(observations: Sequence[Observation], accelerator: str) -> Iterator[Seen]:
    """Everything told; sources that tell the same share a line."""
    rows: dict[tuple[str, str], list[str]] = {}
    for item in observations:
        gpu = f"{item.gpu} ({accelerator})" if item.gpu not in ("", accelerator) else item.gpu
        for what, value in (("GPU", gpu), *_told(item)):
            if value:
                rows.setdefault((what, value), []).append(item.name)
    for (what, value), names in rows.items():
        yield Seen(what=what, value=value, where=", ".join(names))


def _told(item: Observation) -> Iterator[tuple[str, str]]:
    """The figures of one source in words; empty where it tells none."""
    slot, nics = item.slot, item.nics
    yield "GPUs per node", str(item.num_gpus or "")
    yield "usable GPU memory", _gib(item.memory_mib)
    yield "GPU slot", f"PCIe {slot.generation} x{slot.lanes}" if slot else ""
    yield "NVLinks", _links_text(item.links) if item.links else ""
    yield "network", f"{nics.count} x {nics.gbit_per_s:g} Gbit/s {nics.kind}" if nics else ""
    yield "host memory", _gib(item.host_memory_mib)
    yield "nodes", f"{item.num_nodes:,}" if item.num_nodes else ""


def _gib(mib: float | None) -> str:
    return f"{mib / 1024:.5g} GiB" if mib else ""


def _links_text(links: Links) -> str:
    if links.to_switch:
        return f"{links.to_switch} per GPU to switches"
    if not any(map(any, links.pairs)):
        return "none"
    widths = sorted({count for row in links.pairs for count in row} - {0})
    return f"{' and '.join(map(str, widths))} between pairs of GPUs"


def _kept(
    observations: Sequence[Observation],
    wanted: Wanted,
    node: NodeFile,
    overridden: Mapping[str, float],
) -> Iterator[str]:
    """What nothing told."""
    if wanted.num_gpus is None:
        yield f"{node.accelerators_per_node.value} GPUs per node"
    if not any(item.memory_mib for item in observations):
        yield "GPU memory"
    if wanted.joined is None:
        key, rate = "gb_per_s_per_direction", node.scale_up.gb_per_s_per_direction.value
        known = "" if f"scale_up_{key}" in overridden else f", {rate:g} GB/s"
        yield f"links between GPUs ({node.scale_up.kind}{known})"
    if wanted.nics is None and node.nics and node.nic_gbit_per_s:
        count = overridden.get("nics", node.nics.value)
        network = f"{count:g} x {node.nic_gbit_per_s.value:g} Gbit/s, {node.fabric}"
        yield f"network ({network})"
    if not any(item.host_memory_mib for item in observations):
        known_gib = node.host_memory_gib.value if node.host_memory_gib else None
        gib = overridden.get("host_memory_gib", known_gib)
        memory = "unknown" if gib is None else f"{gib:g} GiB"
        yield f"host memory ({memory})"
    yield "compute rates, latencies, efficiencies, disks and price"
