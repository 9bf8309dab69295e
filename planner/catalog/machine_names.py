"""Machines as people write them: ``4x8 A100 80GB``, ``tpu-v5p-256``, ``p5.48xlarge``."""

import re
from collections.abc import Mapping
from functools import cache

from planner.catalog.hardware import aliases, find_entry, list_names
from planner.catalog.hardware_file import Kind

_COUNT = r"([0-9][0-9_,]*)"
_COUNT_FIRST = re.compile(rf"^{_COUNT}(?:\s*[xX*]\s*|\s+)(\S.*)$")
_USUAL = re.compile(rf"^{_COUNT}[xX*](\S+)$")
_COUNT_LAST = re.compile(rf"^(.*\S)\s*[xX*:]\s*{_COUNT}$")
_NODES_OF = re.compile(
    r"^([0-9]{1,6})\s*(?:[xX*]|nodes?\s+(?:of|with|x))\s*([0-9]{1,4})(?:\s*[xX*]\s*|\s+)(\S.*)$"
)
_TPU_SLICE = re.compile(r"^(?:tpu-?)?(v[2-7](?:[ep]|litepod)?)-([0-9]{1,6})$")
# Slices of these are named by their TensorCores, of which a chip has two; of the others by chips.
_TWO_CORES = ("v2", "v3", "v4", "v5p")
_KINDS: tuple[Kind, ...] = ("nodes", "accelerators", "clusters")


def normalised_machine(argument: str) -> str:
    """The argument as ``NxNAME`` of the catalog where only that can be meant, else unchanged.

    Case, hyphens, blanks, a vendor's name and ``GB`` for ``G`` do not count, the number may stand
    last, and a node or accelerator alone is one of it.
    """
    text = argument.strip()
    if nodes := _NODES_OF.match(text):
        text = f"{int(nodes[1]) * int(nodes[2])}x{nodes[3]}"
    if tpu := _TPU_SLICE.match(text.lower()):
        name = tpu[1].replace("litepod", "e")
        text = f"{int(tpu[2]) // (2 if name in _TWO_CORES else 1)}xtpu-{name}"
    usual = _USUAL.match(text)
    if usual and find_entry(usual[2], _KINDS):
        return text
    whole = _known(text)
    if whole is not None:
        kind, name = whole
        return argument if kind == "clusters" else f"1x{name}"
    for pattern, at in ((_COUNT_FIRST, 1), (_COUNT_LAST, 2)):
        match = pattern.match(text)
        found = _known(match[3 - at]) if match else None
        if match and found:
            return f"{match[at]}x{found[1]}"
    return argument


def _known(name: str) -> tuple[Kind, str] | None:
    """Kind and name in the catalog of what a name can only mean."""
    return find_entry(name, _KINDS) or _spellings().get(_plain(name))


@cache
def _spellings() -> Mapping[str, tuple[Kind, str]]:
    """Return the meaning of every plain spelling, except those that are ambiguous."""
    found: dict[str, set[tuple[Kind, str]]] = {}
    for kind in _KINDS:
        for text, name in (*((name, name) for name in list_names(kind)), *aliases()[kind].items()):
            found.setdefault(_plain(text), set()).add((kind, name))
    return {plain: next(iter(those)) for plain, those in found.items() if len(those) == 1}


def _plain(name: str) -> str:
    text = re.sub(r"(\d)gb\b", r"\1g", name.lower())
    text = re.sub(r"[^a-z0-9]", "", text)
    for vendor in ("nvidia", "amd", "standard", "geforce", "rtx"):
        text = text.removeprefix(vendor)
    return text
