"""Reads what implementations keep for backward: ``saved/NAME.yaml`` and ``saved/losses.yaml``."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from planner.documents.tree import load_own
from planner.spec.saved import SavedTables, SavedTensorSpec

_LOSSES = "losses"


def table_names() -> list[str]:
    """Return the implementations whose saved tensors are known."""
    folder = resources.files("planner.frameworks").joinpath("saved")
    stems = (entry.name.removesuffix(".yaml") for entry in folder.iterdir())
    return sorted(stem for stem in stems if stem != _LOSSES)


def loss_names() -> list[str]:
    """Return the vocabulary losses whose saved tensors are known."""
    return list(saved_figures(_LOSSES))


@cache
def saved_figures(name: str) -> dict[str, Any]:
    """Return a table file as it stands, sources included."""
    figures: dict[str, Any] = load_own(__package__, "saved", f"{name}.yaml")
    return figures


def _sections(
    node: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[SavedTensorSpec, ...]]]:
    """Yield dotted section names with their entries; a section holds entries or sections."""
    entries = list[SavedTensorSpec]()
    for name, child in node.items():
        if "width" not in child:
            yield from _sections(child, f"{prefix}.{name}" if prefix else name)
            continue
        entry = SavedTensorSpec(
            name=name,
            width=child["width"],
            element_bytes=float(child["bytes"]),
            multiple=float(child.get("multiple", 1.0)),
            is_linear_input=bool(child.get("linear_input", False)),
            when=child.get("when", "always"),
            is_freed=bool(child.get("freed", False)),
        )
        entries.append(entry)
    if entries or not node:
        yield prefix, tuple(entries)


def _inherited(name: str) -> dict[str, tuple[SavedTensorSpec, ...]]:
    """Sections of a table file laid over those it extends."""
    figures = dict(saved_figures(name))
    parent = figures.pop("extends", None)
    sections = _inherited(str(parent)) if parent else {}
    sections |= _sections(figures)
    return sections


@cache
def load_saved_tables(name: str, loss: str) -> SavedTables:
    """Return the tables of an implementation with those of a loss as section ``loss``."""
    sections = _inherited(name)
    sections |= _sections(saved_figures(_LOSSES)[loss], "loss")
    return SavedTables(name=name, sections=sections)
