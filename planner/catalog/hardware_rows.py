"""What the catalog knows about one piece of hardware, as rows to print."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.catalog.figures import Figure, Figures, Flag
from planner.catalog.hardware import (
    KINDS,
    Kind,
    aliases,
    check_accelerator,
    check_fabric,
    check_node,
    check_preset,
    find_file,
    is_path,
    list_names,
    resolve_alias,
)
from planner.catalog.hardware_convert import figures_of
from planner.catalog.hardware_file import HardwareFile
from planner.catalog.names import unknown_name
from planner.documents.yaml_text import load_yaml

_CHECKS: Mapping[Kind, Callable[..., HardwareFile]] = {
    "accelerators": check_accelerator,
    "nodes": check_node,
    "fabrics": check_fabric,
    "clusters": check_preset,
}
_UNITS: Mapping[str, str] = {
    "_gib": "GiB",
    "_kib": "KiB",
    "gb_per_s_per_direction": "GB/s per direction",
    "gb_per_s": "GB/s",
    "_gbit_per_s": "Gbit/s",
    "_tflops": "TFLOP/s",
    "_tb": "TB",
    "_us": "µs",
    "tdp_w": "W",
    "power_w": "W",
    "usd_per_hour": "USD/h",
}


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure as its file gives it, with the citation of its source."""

    name: str
    value: str
    stated: float | bool | tuple[float, ...]
    """The value as a number, of several a list, or a yes or no."""
    unit: str
    basis: str
    source: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class HardwareDetails:
    """A file of the catalog: what it is, what it refers to, and its figures."""

    kind: Kind
    name: str
    title: str
    note: str
    path: Path
    texts: Mapping[str, str]
    """Keys that are no figures, such as a node's accelerator and fabric."""
    rows: tuple[FigureRow, ...]


def describe_accelerator(argument: str | Path) -> HardwareDetails:
    """Return the figures of an accelerator."""
    return describe("accelerators", argument)


def describe_hardware(name: str) -> HardwareDetails:
    """Return the figures of whatever catalog entry has this name or alias."""
    for kind in KINDS:
        if not is_path(name) and resolve_alias(kind, name) in list_names(kind):
            return describe(kind, name)
    known = [text for kind in KINDS for text in (*list_names(kind), *aliases()[kind])]
    raise unknown_name("hardware", name, known, "hardware", name)


def describe(kind: Kind, argument: str | Path) -> HardwareDetails:
    """Return what the catalog says of an entry of a kind."""
    path = find_file(kind, argument)
    file = _CHECKS[kind](load_yaml(path), str(path))
    texts = {key: getattr(file, key) for key in type(file).model_fields}
    shown = {
        key: str(value)
        for key, value in texts.items()
        if isinstance(value, str | int) and value and key not in ("title", "note")
    }
    rows = tuple(_row(file, key, figure) for key, figure in figures_of(file))
    return HardwareDetails(
        kind=kind,
        name=path.stem,
        title=file.title,
        note=file.note,
        path=path,
        texts=shown,
        rows=rows,
    )


def _row(file: HardwareFile, key: str, figure: Figure | Figures | Flag) -> FigureRow:
    values = figure.value if isinstance(figure, Figures) else (figure.value,)
    yes_or_no = ("yes" if figure.value else "no") if isinstance(figure, Flag) else ""
    return FigureRow(
        name=key,
        stated=figure.value,
        value=yes_or_no or ", ".join(f"{value:g}" for value in values),
        unit=next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), ""),
        basis=figure.basis,
        source=file.sources[figure.source].citation(),
        note=figure.note,
    )
