"""Cluster files of machines as seen: the nearest node of the catalog, and what differs from it.

Sources describe one kind of node; every override says where its figure was seen.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil
from typing import Any

from planner.catalog.cluster_file import OverrideValues, file_text
from planner.catalog.figures import Figure, validate
from planner.catalog.hardware import (
    aliases,
    detection_rules,
    list_names,
    load_file,
    read_file,
    resolve_alias,
)
from planner.catalog.hardware_file import AcceleratorFile, NodeFile
from planner.catalog.observe import Observation, Source
from planner.errors import InputError, Problem, nearest
from planner.notes import Problems
from planner.units import plural


@dataclass(frozen=True, kw_only=True)
class Override:
    """One figure in place of the catalog's."""

    key: str
    value: float
    where: str
    catalog: float | None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster as detected: a node of the catalog and what differs from it."""

    node: str
    num_nodes: int
    accelerator: str
    num_gpus: int
    overrides: tuple[Override, ...]
    notes: tuple[str, ...]


def merge(sources: Sequence[Source], accelerator: str = "") -> Machine:
    """Return the machine that sources of one node and its cluster describe.

    ``accelerator``: the user's decision where sources leave it open. Raises InputError where they
    contradict each other or name no accelerator of the catalog.
    """
    observations = [item for (item, *_) in sources if item.num_nodes is None]
    slurm = [groups for groups in sources if groups[0].num_nodes is not None]
    hint = _first_known(observations, accelerator)
    problems = Problems()
    for groups in slurm:
        chosen = problems.read(partial(_one_group, groups, hint))
        observations += [chosen] if chosen else []
    told: dict[str, list[tuple[str, Any]]] = {
        "GPU": [(item.where, accelerator_of(item.gpu)) for item in observations],
        "GPUs per node": [(item.where, item.num_gpus) for item in observations],
        "nodes": [(item.where, item.num_nodes) for item in observations],
    }
    # two sources that tell different things of one node
    for what, given in told.items():
        first, *others = [each for each in given if each[1]] or [("", None)]
        for where, value in others:
            if value != first[1]:
                message = f"told {value} here and {first[1]} by {first[0]}; give files of one node"
                problems.found.append(
                    Problem(
                        where=where,
                        key=what,
                        message=message,
                    )
                )
    problems.finish()
    name = _first_known(observations, accelerator) or _refuse(observations, accelerator)
    _, file = load_file(AcceleratorFile, "accelerators", name)
    num_gpus = _first(observations, "num_gpus")
    node_name, node = _nearest_node(name, file.usual_node, num_gpus)
    overrides = tuple(_overrides(observations, file, node))
    values = {override.key: override.value for override in overrides}
    where = ", ".join(item.where for item in observations)
    validate(OverrideValues, values, where)
    notes = [f"{item.name}: {note}" for item in observations for note in item.notes]
    num_nodes = _first(observations, "num_nodes")
    if num_nodes is None:
        notes.append("nothing told how many nodes there are: count is 1, edit it")
    return Machine(
        node=node_name,
        num_nodes=num_nodes or 1,
        accelerator=name,
        num_gpus=num_gpus or node.accelerators_per_node.value,
        overrides=overrides,
        notes=tuple(notes),
    )


def _first(observations: Sequence[Observation], name: str) -> Any:  # noqa: ANN401
    return next((value for item in observations if (value := getattr(item, name))), None)


# The accelerator: a tool's name for a GPU, never a guess.


def accelerator_of(gpu: str) -> str | None:
    """Return the catalog name of a GPU, None where no name, title or alias has the same words."""
    words = _words(gpu)
    return _by_words().get(words) if words else None


def _words(name: str) -> frozenset[str]:
    """Words of a name in lower case, without those of vendors and brands."""
    return frozenset(re.findall(r"[a-z0-9:]+", name.lower())) - set(detection_rules().brand_words)


@cache
def _by_words() -> dict[frozenset[str], str]:
    """Accelerators by the words of names, then aliases, then titles; the first of equals counts."""
    names = list_names("accelerators")
    pairs = [(name, name) for name in names]
    pairs += [(alias, resolve_alias("accelerators", alias)) for alias in aliases()["accelerators"]]
    titles = (read_file("accelerators", name)[1].get("title", "") for name in names)
    pairs += zip(titles, names, strict=True)
    return {_words(text): name for text, name in reversed(pairs)}


def _first_known(observations: Sequence[Observation], given: str) -> str | None:
    """The catalog name of the GPUs: as given, else the first one known."""
    names = [given] if given else [item.gpu for item in observations]
    return next(filter(None, map(accelerator_of, names)), None)


def _refuse(observations: Sequence[Observation], given: str) -> str:
    """Raise InputError for GPUs that nothing names, or not as the catalog, with the nearest."""
    named = next((item for item in observations if item.gpu), None)
    if given:
        where, key, text = "command line", "--accelerator", given
    elif named:
        where, key, text = named.where, "GPU", named.gpu
    else:
        message = "no source names the GPUs; add `nvidia-smi` output or give --accelerator NAME"
        raise InputError.single(", ".join(item.where for item in observations), "GPU", message)
    wanted = "-".join(sorted(_words(text)))
    by_words = {"-".join(sorted(words)): name for words, name in _by_words().items()}
    near = dict.fromkeys(by_words[each] for each in nearest(wanted, by_words))
    hint = f"nearest are {', '.join(near)}" if near else "`planner show hardware` lists all"
    message = f"no accelerator of the catalog is {text!r}; {hint}, choose with --accelerator NAME"
    message += " if it is one of them, else describe yours (docs/extending.md)"
    raise InputError.single(where, key, message)


# Nodes: one kind of a Slurm cluster, and the nearest of the catalog.


def _one_group(every: Source, hint: str | None) -> Observation:
    """The largest group of nodes, of the accelerator asked for if any; others become notes."""
    # a site may call GPUs by a part of their name, such as a100, or by a word of its own
    wanted = _words(hint) if hint else frozenset()
    matching = [group for group in every if group.gpu and _words(group.gpu) <= wanted]
    matching += [group for group in every if hint and accelerator_of(group.gpu) == hint]
    unnamed = [group for group in every if accelerator_of(group.gpu) is None]
    if hint and not matching and not unnamed:
        message = f"no nodes with {hint}; there are {'; '.join(map(_group_text, every))}"
        raise InputError.single(every[0].where, "GRES", message)
    group = (matching or (unnamed if hint else every))[0]
    notes = [
        f"left out: {_group_text(other)}; choose with --accelerator"
        for other in every
        if other is not group
    ]
    # The site's own word for GPUs that another source names better is no contradiction.
    return replace(
        group,
        gpu=group.gpu if hint in (None, accelerator_of(group.gpu)) else "",
        notes=(*notes, *group.notes),
    )


def _group_text(group: Observation) -> str:
    return f"{plural(group.num_nodes or 0, 'node')} of {group.num_gpus} x {group.gpu or 'GPU'}"


def _nearest_node(
    accelerator: str, usual: str | None, num_gpus: int | None
) -> tuple[str, NodeFile]:
    """The node with so many of an accelerator; else its usual one, else the first by name."""
    nodes = {}
    for name in list_names("nodes"):
        raw = read_file("nodes", name)[1]
        if raw["accelerator"] == accelerator:
            nodes[name] = validate(NodeFile, raw, name)
    if not nodes:
        message = f"no node of the catalog holds {accelerator}; write one (docs/extending.md)"
        raise InputError.single("nodes", accelerator, message)

    def distance(name: str) -> tuple[bool, bool, str]:
        size = nodes[name].accelerators_per_node.value
        return num_gpus not in (None, size), name != usual, name

    found = min(nodes, key=distance)
    return found, nodes[found]


# Overrides: what differs from the node of the catalog.


def _same(seen: float, known: float) -> bool:
    # Relative difference up to which two figures are the same: the catalog's own spread.
    return abs(seen - known) <= 0.03 * known


def _overrides(
    observations: Sequence[Observation], accelerator: AcceleratorFile, node: NodeFile
) -> Iterator[Override]:
    yield from _memory(observations, "memory_mib", "hbm_gib", accelerator.hbm_gib)
    yield from _size(observations, node)
    yield from _slot(observations, node)
    yield from _memory(observations, "host_memory_mib", "host_memory_gib", node.host_memory_gib)


def _memory(
    observations: Sequence[Observation], told: str, key: str, known: Figure | None
) -> Iterator[Override]:
    """First reported memory that differs from the catalog's."""
    for item in observations:
        gib = (getattr(item, told) or 0.0) / 1024
        if gib and not (known and _same(gib, known.value)):
            yield _override(key, gib, item.name, known)
            return


def _size(observations: Sequence[Observation], node: NodeFile) -> Iterator[Override]:
    """Another number of GPUs; ports, host memory and price of a part are its share."""
    size, whole = _first(observations, "num_gpus"), node.accelerators_per_node
    if size in (None, whole.value):
        return
    seen = next(item.name for item in observations if item.num_gpus == size)
    yield _override("accelerators_per_node", size, seen, whole)
    domain = node.scale_up.domain_accelerators
    if domain.value == whole.value:
        yield _override("scale_up_domain_accelerators", size, seen, domain)
    is_told = _first(observations, "host_memory_mib")
    shared = {
        "nics": node.nics if node.nics and node.nics.value > 1 else None,
        "usd_per_hour": node.price.usd_per_hour if node.price else None,
        "host_memory_gib": None if is_told else node.host_memory_gib,
    }
    for key, known in shared.items():
        if known and size < whole.value:
            value = known.value * (size / whole.value)
            where = f"share of {size} of {whole.value} GPUs"
            yield _override(key, ceil(value) if key == "nics" else value, where, known)


def _slot(observations: Sequence[Observation], node: NodeFile) -> Iterator[Override]:
    """A slot slower than the catalog's; a faster one may still be shared."""
    item = next((item for item in observations if item.slot), None)
    of_generation = f"pcie{item.slot.generation}_gb_per_s" if item and item.slot else ""
    if item is None or item.slot is None or of_generation not in detection_rules().slots:
        return
    lanes = min(item.slot.lanes, 16)
    reached = detection_rules().slots[of_generation].value * lanes / 16
    links, crossing = node.scale_up, {}
    if links.kind != "none":
        crossing["host_link_gb_per_s_per_direction"] = node.host_link_gb_per_s_per_direction
    if links.kind.startswith("pcie"):
        crossing["scale_up_gb_per_s_per_direction"] = links.gb_per_s_per_direction
    yield from (
        _override(key, reached, item.name, known)
        for key, known in crossing.items()
        if reached < known.value and not _same(reached, known.value)
    )


def _override(key: str, value: float, where: str, known: Figure | None) -> Override:
    rounded = value if isinstance(value, int) else float(f"{value:.5g}")
    return Override(
        key=key,
        value=rounded,
        where=where,
        catalog=known.value if known else None,
    )


def cluster_text(machine: Machine, command: str) -> str:
    """Return the YAML of a cluster file; comments say where each figure was seen."""
    seen = f"{machine.num_gpus} x {machine.accelerator}"
    remarks = [f"Seen: {seen}; what is not overridden is the node's."]
    remarks += [f"Note: {note}" for note in machine.notes]
    overrides = []
    for each in machine.overrides:
        known = "none" if each.catalog is None else f"{each.catalog:g}"
        overrides.append((each.key, f"{each.value:.6g}", f"{each.where}; catalog: {known}"))
    raw = {"node": machine.node, "count": machine.num_nodes}
    return file_text(f"`{command}`", remarks, raw, overrides)
