"""The node of the catalog nearest to what was seen, or a new one made from it."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.catalog.detect.nvlink import Joined
from planner.catalog.detect.observation import Nics, Slot
from planner.catalog.hardware import (
    check_fabric,
    check_node,
    detection_rules,
    find_file,
    list_names,
)
from planner.catalog.hardware_file import FabricFile, NodeFile, SlotSection
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError

SAME = 0.03
"""Relative difference up to which two figures are the same."""
_USUAL_SLOT = Slot(generation=4, lanes=16)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a node should have; None: not told."""

    accelerator: str
    usual_node: str | None
    num_gpus: int | None
    joined: Joined | None
    gb_per_s: float | None
    """Of the NVLinks of one GPU."""
    nics: Nics | None


def same(seen: float, known: float | None) -> bool:
    """Whether two figures differ by no more than the catalog's own spread."""
    return known is not None and abs(seen - known) <= SAME * known


def slot_gb_per_s(slot: Slot) -> float:
    """Return what the slot of a GPU reaches."""
    return _kind(slot).gb_per_s.value * min(slot.lanes, 16) / 16


def _kind(slot: Slot) -> SlotSection:
    return detection_rules().slots[f"pcie{slot.generation}"]


@cache
def fabric_file(name: str) -> FabricFile:
    """Return the checked file of a fabric."""
    path = find_file("fabrics", name)
    return check_fabric(load_yaml(path), str(path))


def family(fabric: str) -> str:
    """Return the kind of ports that belong to a fabric."""
    return fabric_file(fabric).ports or ""


def is_pcie(node: NodeFile) -> bool:
    """Whether the GPUs of a node talk over PCIe."""
    return node.scale_up.kind.startswith("pcie")


def nodes_with(accelerator: str) -> dict[str, NodeFile]:
    """Return the nodes of the catalog that hold an accelerator."""
    found = {}
    for name in list_names("nodes"):
        raw = load_yaml(find_file("nodes", name))
        if raw.get("accelerator") == accelerator:
            found[name] = check_node(raw, name)
    return found


def nearest_node(wanted: Wanted, nodes: Mapping[str, NodeFile]) -> str:
    """Return the node most like the one wanted: shape first, then size, network, rate."""

    def distance(name: str) -> tuple[object, ...]:
        node = nodes[name]
        return (
            not fits(wanted, node),
            wanted.num_gpus not in (None, node.accelerators_per_node.value),
            _network_differs(wanted.nics, node),
            wanted.gb_per_s is not None
            and not same(wanted.gb_per_s, node.scale_up.gb_per_s_per_direction.value),
            name != wanted.usual_node,
            name,
        )

    return min(nodes, key=distance)


def fits(wanted: Wanted, node: NodeFile) -> bool:
    """Whether the links of a node have the shape wanted; two GPUs of a node show none."""
    shape, size = wanted.joined, wanted.num_gpus
    if shape is None or size is None or size == 1:
        return True
    if shape.group == 1:
        return is_pcie(node)
    if shape.group < size:
        package = node.package.accelerators.value if node.package else 1
        return package == shape.group
    return not is_pcie(node) and (size == 2 or node.scale_up.topology == shape.topology)


def same_ports(nics: Nics, node: NodeFile) -> bool:
    """Whether ports carry together what a node's do, as one kind; libraries join and split them."""
    if node.nics is None or node.nic_gbit_per_s is None:
        return False
    total = node.nics.value * node.nic_gbit_per_s.value
    return nics.kind in ("", family(node.fabric)) and same(nics.count * nics.gbit_per_s, total)


def _network_differs(nics: Nics | None, node: NodeFile) -> int:
    """0: the same ports; 1: others of a kind that few vendors have; 2: neither."""
    if nics is None or same_ports(nics, node):
        return 0
    return 1 if nics.kind == family(node.fabric) not in ("", "ethernet") else 2


def new_node(wanted: Wanted, base: str, slot: Slot | None, where: str) -> dict[str, Any]:
    """Return raw data of a node that is ``base`` with the links that were seen.

    Latency and efficiency of links are those of a node of the catalog with such links.
    Raises InputError where GPUs do not fill groups.
    """
    shape, size = wanted.joined, wanted.num_gpus
    if shape is None or size is None or (wanted.gb_per_s is None and shape.group > 1):
        raise InputError.single(where, "nvlink", "links of an accelerator without known NVLinks")
    raw = deepcopy(load_yaml(find_file("nodes", base)))
    for key in ("note", "package", "price"):
        raw.pop(key, None)
    raw["title"] = f"{size} x {wanted.accelerator} as detected, after {base}"
    raw["accelerators_per_node"] = _seen(size)
    if shape.group == size:
        raw["scale_up"] = _links(raw, shape, wanted.gb_per_s, size, f"nvlink-{shape.topology}")
    else:
        raw["scale_up"] = _pcie(raw, slot, size)
        if shape.group > 1:
            section = _links(raw, shape, wanted.gb_per_s, size, "")
            kept = ("gb_per_s_per_direction", "latency_us", "efficiency_fraction")
            package = {key: section[key] for key in kept}
            raw["package"] = {"accelerators": _seen(shape.group), **package}
    sources = raw.pop("sources") | {"detected": {"note": f"read from {where}"}}
    return raw | {"sources": sources}


def _seen(value: float) -> dict[str, object]:
    return {"value": value, "basis": "read", "source": "detected"}


def _borrow(raw: dict[str, Any], model: str) -> dict[str, Any]:
    """The scale-up section of a node of the catalog; its sources go along."""
    other = deepcopy(load_yaml(find_file("nodes", model)))
    raw["sources"] = other["sources"] | raw["sources"]
    section: dict[str, Any] = other["scale_up"]
    return section


def _links(
    raw: dict[str, Any], shape: Joined, gb_per_s: float | None, size: int, kind: str
) -> dict[str, Any]:
    own: dict[str, Any] = raw["scale_up"]
    section = _borrow(raw, detection_rules().mesh_node) if own["kind"].startswith("pcie") else own
    section |= {"kind": kind, "topology": shape.topology, "domain_accelerators": _seen(size)}
    section["gb_per_s_per_direction"] = _seen(gb_per_s or 0.0)
    if shape.topology != "switch":
        section.pop("reduces_in_network", None)
    return section


def _pcie(raw: dict[str, Any], slot: Slot | None, size: int) -> dict[str, Any]:
    model = _kind(slot or _USUAL_SLOT).node
    own: dict[str, Any] = raw["scale_up"]
    section = own if own["kind"].startswith("pcie") else _borrow(raw, model)
    return section | {"domain_accelerators": _seen(size)}
