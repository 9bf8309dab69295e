"""Accelerators, nodes and fabrics by name, alias or file: checked, in base units, or as rows."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from planner.catalog import hwdb_dir, unknown_name
from planner.catalog.figures import FileModel, validate
from planner.catalog.hardware_convert import (
    UNITS,
    figures_of,
    to_accelerator,
)
from planner.catalog.hardware_file import (
    AcceleratorFile,
    AliasesFile,
    DetectionFile,
    FabricFile,
    HardwareFile,
    HostMemoryFile,
    HostProcessorFile,
    Kind,
    NodeFile,
    PcieFile,
    PresetFile,
    RangesFile,
)
from planner.documents.file import is_file
from planner.documents.tree import load_trusted, load_yaml
from planner.limits import name_of
from planner.spec.cluster import AcceleratorSpec

Entry = tuple[Kind, str]  # of the catalog: its kind and its name
File = TypeVar("File", bound=HardwareFile)
SCHEMAS: Mapping[Kind, type[HardwareFile]] = {
    "accelerators": AcceleratorFile,
    "nodes": NodeFile,
    "fabrics": FabricFile,
    "clusters": PresetFile,
}


@cache
def list_names(kind: Kind) -> list[str]:
    """Return the names of one kind, sorted, a list that nobody changes."""
    return sorted(path.stem for path in (hwdb_dir() / kind).glob("*.yaml"))


def load_accelerator(argument: str | Path) -> AcceleratorSpec:
    """Return the accelerator of this name, alias or YAML file."""
    path, file = load_file(AcceleratorFile, "accelerators", argument)
    return to_accelerator(file, name_of(path.stem))


def _own(schema: type[FileModel], name: str) -> FileModel:
    """A file of which the catalog has one."""
    path = hwdb_dir() / f"{name}.yaml"
    return validate(schema, load_trusted(path), str(path))


@cache
def host_rules() -> tuple[HostProcessorFile, HostMemoryFile, PcieFile]:
    """Return what is assumed of nodes whose file states no processors, host memory or PCIe rate."""
    return (
        _own(HostProcessorFile, "host_processor"),
        _own(HostMemoryFile, "host_memory"),
        _own(PcieFile, "pcie"),
    )


@cache
def usual_ranges() -> dict[str, tuple[float, float]]:
    """Return the factors by which figures differ among machines, by their key in cluster files."""
    return {
        name: (section.lowest_factor.value, section.highest_factor.value)
        for name, section in _own(RangesFile, "ranges").ranges.items()
    }


@cache
def detection_rules() -> DetectionFile:
    """Return how what tools print is taken."""
    return _own(DetectionFile, "detection")


def is_path(argument: str | Path) -> bool:
    """Return True if an argument names a file rather than an entry of the catalog."""
    if isinstance(argument, Path):
        return True
    return "/" in argument or "\\" in argument or argument.endswith((".yaml", ".yml"))


def find_file(kind: Kind, argument: str | Path, beside: Path | None = None, key: str = "") -> Path:
    """Return the file of a name, alias or path; paths are relative to the file ``beside``."""
    if is_path(argument):
        return beside.parent / argument if beside else Path(argument)
    name = resolve_alias(kind, str(argument))
    path = hwdb_dir() / kind / f"{name}.yaml"
    if is_file(path):
        return path
    known = [*list_names(kind), *aliases()[kind]]
    where = str(beside) if beside else kind
    raise unknown_name(kind.removesuffix("s"), str(argument), known, where, key or str(argument))


def read_file(
    kind: Kind, argument: str | Path, beside: Path | None = None, key: str = ""
) -> tuple[Path, dict[str, Any]]:
    """Return the file of a name, alias or path, and its data as they stand."""
    path = find_file(kind, argument, beside, key)
    return path, load_yaml(path) if is_path(argument) else load_trusted(path)


def load_file(schema: type[File], kind: Kind, argument: str | Path) -> tuple[Path, File]:
    """Return the file of a name, alias or path, and what it holds."""
    path, raw = read_file(kind, argument)
    return path, validate(schema, raw, str(path))


def resolve_alias(kind: Kind, name: str) -> str:
    """Return the catalog name behind an alias; the aliases are read only when needed."""
    if is_file(hwdb_dir() / kind / f"{name}.yaml"):
        return name
    return aliases()[kind].get(name.lower(), name.lower())


def find_entry(name: str, kinds: Iterable[Kind] = tuple(SCHEMAS)) -> Entry | None:
    """Return the entry of this name or alias; None where there is none."""
    for kind in kinds:
        resolved = resolve_alias(kind, name)
        if resolved in list_names(kind):
            return kind, resolved
    return None


@cache
def aliases() -> Mapping[Kind, Mapping[str, str]]:
    """Return the other names of catalog entries, by kind."""
    return _own(AliasesFile, "aliases").root


_MACHINES: tuple[Kind, ...] = ("nodes", "accelerators", "clusters")


def normalised_machine(argument: str) -> str:
    """The argument as ``NxNAME`` of the catalog where only that can be meant, else unchanged.

    Machines as people write them: ``4x8 A100 80GB``, ``tpu-v5p-256``, ``p5.48xlarge``. Case,
    hyphens, blanks, a vendor's name and ``GB`` for ``G`` do not count, the number may stand last,
    and a node or accelerator alone is one of it.
    """
    text, count, times = argument.strip(), r"([0-9][0-9_,]*)", r"(?:\s*[xX*]\s*|\s+)"
    number_of_nodes = r"([0-9]{1,6})\s*nodes?\s+(?:(?:of|with|x)\s+)?"
    nodes_of = rf"(?:([0-9]{{1,6}})\s*[xX*]|{number_of_nodes})\s*([0-9]{{1,4}})"
    if nodes := re.fullmatch(rf"{nodes_of}{times}(\S.*)", text):
        text = f"{int(nodes[1] or nodes[2]) * int(nodes[3])}x{nodes[4]}"
    elif (nodes := re.fullmatch(rf"{number_of_nodes}(\D.*)", text)) and (of := _known(nodes[2])):
        kind, name = of
        if kind == "accelerators":
            name = load_file(AcceleratorFile, kind, name)[1].usual_node or name
        return f"{nodes[1]}x{name}"
    if tpu := re.fullmatch(r"(?:tpu[- ]?)?(v[2-7](?:[ep]|litepod)?)-([0-9]{1,6})", text.lower()):
        name = tpu[1].replace("litepod", "e")
        # Slices of these are named by their TensorCores, of which a chip has two; others by chips.
        cores = 2 if name in ("v2", "v3", "v4", "v5p") else 1
        text = f"{int(tpu[2]) // cores}xtpu-{name}"
    usual = re.fullmatch(rf"{count}[xX*](\S+)", text)
    if usual and find_entry(usual[2], _MACHINES):
        return text
    whole = _known(text)
    if whole is not None:
        kind, name = whole
        return argument if kind == "clusters" else f"1x{name}"
    first, last = rf"{count}{times}(\S.*)", rf"(.*\S)\s*[xX*:]\s*{count}"
    for pattern, at in ((first, 1), (last, 2)):
        match = re.fullmatch(pattern, text)
        found = _known(match[3 - at]) if match else None
        if match and found:
            return f"{match[at]}x{found[1]}"
    return argument


def _known(name: str) -> Entry | None:
    """The entry that a name can only mean."""
    return find_entry(name, _MACHINES) or _spellings().get(_plain(name))


@cache
def _spellings() -> Mapping[str, Entry | None]:
    """Return the meaning of every plain spelling; None of those that are ambiguous."""
    found: dict[str, Entry | None] = {}
    for kind in _MACHINES:
        names = {name: name for name in list_names(kind)}
        names |= aliases()[kind]
        for text, name in names.items():
            meant = kind, name
            known = found.setdefault(_plain(text), meant)
            if known != meant:
                found[_plain(text)] = None
    return found


def _plain(name: str) -> str:
    text = re.sub(r"(\d)gb\b", r"\1g", name.lower())
    # Several of them are H100s or GPUs.
    text = re.sub(r"(\d)s$|\s+gpus?$", r"\1", text.strip())
    text = re.sub(r"[^a-z0-9]", "", text)
    for vendor in ("nvidia", "amd", "standard", "geforce", "rtx"):
        text = text.removeprefix(vendor)
    return text


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure as its file gives it, with the citation of its source."""

    name: str
    value: float | bool | tuple[float, ...]  # in `unit`; of several figures a list, or a yes or no
    unit: str
    basis: str
    source: str
    note: str = ""


def load_entry(name: str) -> tuple[Kind, str, HardwareFile]:
    """Return kind, name and file of whatever catalog entry has this name or alias."""
    found = None if is_path(name) else find_entry(name)
    if found is None:
        known = [text for kind in SCHEMAS for text in (*list_names(kind), *aliases()[kind])]
        raise unknown_name("hardware", name, known, "hardware", name)
    kind, own = found
    return kind, own, load_file(SCHEMAS[kind], kind, own)[1]


def texts_of(file: HardwareFile) -> dict[str, str]:
    """Return the keys that are no figures, such as a node's accelerator and fabric."""
    return {
        key: str(value)
        for key, value in file
        if value and isinstance(value, str | int) and key not in ("title", "note")
    }


def figure_rows(file: HardwareFile) -> Iterator[FigureRow]:
    """Yield the figures of a file in its order."""
    for key, figure in figures_of(file):
        units = (unit for end, (unit, _, _) in UNITS.items() if key.endswith(end))
        yield FigureRow(
            name=key,
            value=figure.value,
            unit=next(units, ""),
            basis=figure.basis,
            source=file.sources[figure.source].citation(),
            note=figure.note,
        )
