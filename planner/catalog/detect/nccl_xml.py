"""NCCL's topology file (``NCCL_TOPO_DUMP_FILE``): GPUs, NVLinks, PCIe slots and NICs of one host.

``<system>`` holds ``<cpu>``, which hold nested ``<pci>``; a ``<gpu>`` lists its ``<nvlink>`` by
target and count, a ``<nic>`` its ``<net>`` with speed in Mbit/s. Links to switches have the class
of a bridge as ``tclass``, links to GPUs that of a display controller (src/graph/{xml,topo}.cc).
"""

import re
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from xml.etree import ElementTree

from planner.catalog.detect.observation import (
    Links,
    Nics,
    Observation,
    Problems,
    Slot,
)
from planner.limits import MAX_DEPTH, MAX_GPUS_PER_NODE, MAX_VALUES, brief

COMMAND = "NCCL_TOPO_DUMP_FILE=nccl.xml with any NCCL job on one node"
_DISPLAY = "0x03"
_ACCELERATOR = "0x0302"
_INFINIBAND = "0x0207"
_ETHERNET = "0x0200"
_AMAZON = "0x1d0f"
_CRAY = "0x17db"
_GIGATRANSFERS = re.compile(r"(\d{1,3}(?:\.\d)?) ?GT/s.*", re.ASCII)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MOST_LINKS = 72
_MAX_MBIT_PER_S = 10_000_000
_ASSUMED_MBIT_PER_S = 10_000
"""What NCCL takes for bridges, tunnels and containers' interfaces, which tell no speed."""

Element = ElementTree.Element


def parse_nccl_xml(text: str, where: str) -> Observation:
    """Return what the file tells of its host; raises InputError with every problem found."""
    problems = Problems(where)
    root = _root(text, problems)
    found = list(_walk(root))
    hosts = {element.get("host_hash") for element, _ in found if element.tag == "cpu"} - {None}
    if len(hosts) > 1:
        problems.add("cpu.host_hash", f"{len(hosts)} hosts in one file; dump a job on one node")
    gpus = [(element, pci) for element, pci in found if element.tag == "gpu"]
    gpus = gpus or [(element, pci) for element, pci in found if _is_bare_gpu(element)]
    if not gpus:
        problems.add("gpu", f"no GPU in the file; make one by {COMMAND}")
    if len(gpus) > MAX_GPUS_PER_NODE:
        problems.add("gpu", f"{len(gpus):,} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node")
    problems.stop()
    ids = {_pci_id(pci) for _, pci in gpus}
    if len(ids) > 1:
        kinds = ", ".join(sorted(brief(name) for name in ids))
        problems.add("pci.device", f"one host with several kinds of GPU ({kinds})")
    links = _links(gpus, problems)
    nics, notes = _nics([(e, pci) for e, pci in found if e.tag == "net"], problems)
    slot = _slot([pci for _, pci in gpus], problems)
    problems.stop()
    return Observation(
        where=where,
        gpu=ids.pop(),
        num_gpus=len(gpus),
        links=links,
        slot=slot,
        nics=nics,
        notes=notes,
    )


def _root(text: str, problems: Problems) -> Element:
    """The element ``system``; nothing that a document type could declare is read."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        problems.add("file", "declares a document type, which NCCL's files do not; refused")
        problems.stop()
    root: Element | None = None
    depth = count = 0
    try:
        for event, element in ElementTree.iterparse(StringIO(text), ("start", "end")):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            count += 1
            if depth > MAX_DEPTH:
                problems.add("file", f"nested deeper than {MAX_DEPTH} elements; refused")
            if count > 2 * MAX_VALUES:
                problems.add("file", f"more than {MAX_VALUES:,} elements; refused")
            problems.stop()
    except ElementTree.ParseError as error:
        line = error.position[0]
        message = f"not XML ({error.msg.split(':')[0]}); is the file cut off?"
        problems.add(f"line {line}", message)
    if root is not None and root.tag != "system":
        problems.add("system", f"the outermost element must be system; given {brief(root.tag)}")
    problems.stop()
    return root if root is not None else Element("system")


def _walk(root: Element, pci: Element | None = None) -> Iterator[tuple[Element, Element]]:
    """Every element with the innermost ``pci`` around it."""
    for child in root:
        around = child if child.tag == "pci" else pci
        yield child, around if around is not None else child
        yield from _walk(child, around)


def _is_bare_gpu(element: Element) -> bool:
    """The slot of a GPU, which is all that a file made for a virtual machine lists."""
    return element.tag == "pci" and element.get("class", "").startswith(_ACCELERATOR)


def _pci_id(pci: Element) -> str:
    vendor, device = pci.get("vendor", ""), pci.get("device", "")
    if not vendor or not device:
        return ""
    return f"{vendor}:{device}".replace("0x", "").lower()


def _number(element: Element, name: str, most: int, problems: Problems) -> int:
    """A whole attribute, 0 where it is missing; others are problems."""
    text = element.get(name, "0").strip() or "0"
    if not re.fullmatch(r"-?\d{1,12}", text, re.ASCII) or int(text) > most:
        key = f"{element.tag}.{name}"
        problems.add(key, f"must be a whole number up to {most:,}; given {brief(text)}")
        return 0
    return int(text)


def _links(gpus: list[tuple[Element, Element]], problems: Problems) -> Links | None:
    """NVLinks; None where no GPU lists any, as in files written by hand."""
    places = {pci.get("busid", "").lower(): index for index, (_, pci) in enumerate(gpus)}
    pairs = [[0] * len(gpus) for _ in gpus]
    switched = [0] * len(gpus)
    for index, (gpu, _) in enumerate(gpus):
        for link in gpu.findall("nvlink"):
            count = max(0, _number(link, "count", _MOST_LINKS, problems))
            peer = places.get(link.get("target", "").lower())
            if link.get("tclass", "").startswith(_DISPLAY) or peer is not None:
                if peer is not None and peer != index:
                    pairs[index][peer] += count
            else:
                switched[index] += count
    if not any(switched) and not any(map(any, pairs)):
        return None
    if len(set(switched)) > 1:
        message = f"GPUs with different numbers of links to switches: {sorted(set(switched))}"
        problems.add("nvlink.count", message)
    symmetric = tuple(
        tuple(max(pairs[i][j], pairs[j][i]) for j in range(len(gpus))) for i in range(len(gpus))
    )
    return Links(pairs=symmetric, to_switch=min(switched))


def _slot(slots: list[Element], problems: Problems) -> Slot | None:
    """The narrowest slot of a GPU; real files have widths of 0 and empty speeds, not told."""
    found = []
    for pci in slots:
        match = _GIGATRANSFERS.fullmatch(pci.get("link_speed", ""))
        generation = _GENERATIONS.get(float(match[1])) if match else None
        lanes = _number(pci, "link_width", 64, problems)
        if not generation or lanes <= 0:
            return None
        found.append(Slot(generation=generation, lanes=lanes))
    return min(found, key=lambda slot: 2**slot.generation * slot.lanes)


def _nics(
    nets: list[tuple[Element, Element]], problems: Problems
) -> tuple[Nics | None, tuple[str, ...]]:
    """The rate that carries most, counted; ports of other rates are named."""
    counts: Counter[tuple[int, str]] = Counter()
    virtual = 0
    for net, pci in {(e.get("name"), e.get("port")): (e, pci) for e, pci in nets}.values():
        speed = _number(net, "speed", _MAX_MBIT_PER_S, problems)
        if speed == _ASSUMED_MBIT_PER_S and pci.tag != "pci":
            virtual += 1
        elif speed >= 1000:
            counts[speed, _kind(pci)] += 1
    bridges = (f"not counted: network interfaces in no slot: {virtual}",) if virtual else ()
    if not counts:
        return None, bridges
    ranked = sorted(counts.items(), key=lambda item: -item[0][0] * item[1])
    (speed, kind), count = ranked[0]
    others = tuple(
        f"not counted: {number} x {mbit / 1000:g} Gbit/s" for (mbit, _), number in ranked[1:]
    )
    return Nics(count=count, gbit_per_s=speed / 1000, kind=kind), others + bridges


def _kind(pci: Element) -> str:
    vendor, device_class = pci.get("vendor", ""), pci.get("class", "")
    if vendor == _AMAZON:
        return "efa"
    if vendor == _CRAY:
        return "slingshot"
    if device_class.startswith(_INFINIBAND):
        return "infiniband"
    return "ethernet" if device_class.startswith(_ETHERNET) else ""
