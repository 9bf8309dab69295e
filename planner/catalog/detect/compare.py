"""What was seen against a node of the catalog: the overrides of a cluster file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from planner.catalog.detect.nodes import (
    Wanted,
    fabric_file,
    family,
    is_pcie,
    same,
    same_ports,
    slot_gb_per_s,
)
from planner.catalog.detect.observation import Nics, Observation
from planner.catalog.hardware import detection_rules
from planner.catalog.hardware_file import AcceleratorFile, NodeFile


@dataclass(frozen=True, kw_only=True)
class Override:
    """One figure in place of the catalog's."""

    key: str
    value: float
    where: str
    catalog: float | None


def overrides_of(
    observations: Sequence[Observation],
    wanted: Wanted,
    accelerator: AcceleratorFile,
    node: NodeFile,
    *,
    is_new: bool,
) -> tuple[Override, ...]:
    """Return what differs; a new node has its size and links already."""
    own = (_size, _links, _shares)
    found = [] if is_new else [one for part in own for one in part(observations, wanted, node)]
    return (
        *_memory(observations, accelerator),
        *found,
        *_slots(observations, node, is_new=is_new),
        *_nics(observations, node),
        *_host_memory(observations, node),
    )


def fabric_of(nics: Nics | None, node: NodeFile) -> str | None:
    """Return the fabric of ports that the node's own does not fit, else None."""
    if nics is None:
        return None
    own = node.nic_gbit_per_s.value if node.nic_gbit_per_s else None
    is_own_kind = family(node.fabric) == nics.kind
    if is_own_kind and (same(nics.gbit_per_s, own) or same_ports(nics, node)):
        return None
    by_rate = {
        port.value: name
        for name in detection_rules().fabrics
        if family(name) == nics.kind and (port := fabric_file(name).port_gbit_per_s)
    }
    nearest = min(by_rate, key=lambda rate: abs(rate - nics.gbit_per_s), default=None)
    name = None if nearest is None else by_rate[nearest]
    return None if name == node.fabric else name


def _memory(
    observations: Sequence[Observation], accelerator: AcceleratorFile
) -> Iterator[Override]:
    for item in observations:
        if item.memory_mib and not same(item.memory_mib / 1024, accelerator.hbm_gib.value):
            yield _override("hbm_gib", item.memory_mib / 1024, item, accelerator.hbm_gib.value)
            return


def _size(
    observations: Sequence[Observation], wanted: Wanted, node: NodeFile
) -> Iterator[Override]:
    size, known = wanted.num_gpus, node.accelerators_per_node.value
    if size is None or size == known:
        return
    item = next(item for item in observations if item.num_gpus == size)
    yield _override("accelerators_per_node", size, item, known)
    domain = node.scale_up.domain_accelerators.value
    if domain == known:
        yield _override("scale_up_domain_accelerators", size, item, domain)


def _links(
    observations: Sequence[Observation], wanted: Wanted, node: NodeFile
) -> Iterator[Override]:
    known = node.scale_up.gb_per_s_per_direction.value
    if wanted.gb_per_s is None or same(wanted.gb_per_s, known):
        return
    shape, size = wanted.joined, wanted.num_gpus
    if shape is not None and shape.group == size:
        item = next(item for item in observations if item.links)
        yield _override("scale_up_gb_per_s_per_direction", wanted.gb_per_s, item, known)


def _shares(
    observations: Sequence[Observation], wanted: Wanted, node: NodeFile
) -> Iterator[Override]:
    """Ports, host memory and price of a part of the node, where nothing tells them."""
    size, known = wanted.num_gpus, node.accelerators_per_node.value
    if size is None or size >= known:
        return
    where = f"share of {size} of {known} GPUs"
    if node.nics and wanted.nics is None and node.nics.value > 1:
        nics = ceil(node.nics.value * size / known)
        yield Override(key="nics", value=nics, where=where, catalog=node.nics.value)
    figures = {"usd_per_hour": node.price.usd_per_hour if node.price else None}
    if not any(item.host_memory_mib for item in observations):
        figures["host_memory_gib"] = node.host_memory_gib
    for key, figure in figures.items():
        if figure is not None:
            value = float(f"{figure.value * size / known:.5g}")
            yield Override(key=key, value=value, where=where, catalog=figure.value)


def _slots(
    observations: Sequence[Observation], node: NodeFile, *, is_new: bool
) -> Iterator[Override]:
    """A slot slower than the catalog's; a faster one may still be shared."""
    item = next((item for item in observations if item.slot), None)
    if item is None or item.slot is None:
        return
    reached = slot_gb_per_s(item.slot)
    host = node.host_link_gb_per_s_per_direction.value
    if reached < host and not same(reached, host) and node.scale_up.kind != "none":
        yield _override("host_link_gb_per_s_per_direction", reached, item, host)
    between = node.scale_up.gb_per_s_per_direction.value
    if is_pcie(node) and not is_new and reached < between and not same(reached, between):
        yield _override("scale_up_gb_per_s_per_direction", reached, item, between)


def _nics(observations: Sequence[Observation], node: NodeFile) -> Iterator[Override]:
    item = next((item for item in observations if item.nics), None)
    if item is None or item.nics is None or same_ports(item.nics, node):
        return
    count = node.nics.value if node.nics else None
    rate = node.nic_gbit_per_s.value if node.nic_gbit_per_s else None
    if item.nics.count != count:
        yield _override("nics", item.nics.count, item, count)
    if not same(item.nics.gbit_per_s, rate):
        yield _override("nic_gbit_per_s", item.nics.gbit_per_s, item, rate)


def _host_memory(observations: Sequence[Observation], node: NodeFile) -> Iterator[Override]:
    known = node.host_memory_gib.value if node.host_memory_gib else None
    for item in observations:
        if item.host_memory_mib and not same(item.host_memory_mib / 1024, known):
            yield _override("host_memory_gib", item.host_memory_mib / 1024, item, known)
            return


def _override(key: str, value: float, item: Observation, catalog: float | None) -> Override:
    rounded = value if isinstance(value, int) else float(f"{value:.5g}")
    return Override(key=key, value=rounded, where=item.name, catalog=catalog)
