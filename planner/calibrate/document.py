"""The cluster file of a machine that is stated whole, as data."""

import re
from collections.abc import Sequence
from typing import Any

from planner.calibrate.measured import Machine, Table
from planner.calibrate.stated import Stated, sections
from planner.catalog.names import PLAIN_FABRIC

SOURCE = "measured"


def name_of_device(machine: Machine) -> str:
    """What the accelerator is called: its name, and of a processor the threads of a process."""
    words = re.sub(r"\((?:r|tm)\)|cpu|processor|@.*|nvidia|amd instinct", " ", machine.name.lower())
    slug = re.sub(r"[^a-z0-9.]+", "-", words).strip("-") or machine.device
    return f"{slug}-{threads_of(machine)}" if machine.device == "cpu" else slug


def threads_of(machine: Machine) -> str:
    """Threads of each process, in words that a name may have."""
    return "1-thread" if machine.threads == 1 else f"{machine.threads}-threads"


def whole_document(table: Table, figures: Sequence[Stated]) -> dict[str, Any]:
    """The cluster file as data."""
    machine, made = table.machine, sections(figures, SOURCE)
    threads = (
        f", {threads_of(machine).replace('-', ' ')} a process" if machine.device == "cpu" else ""
    )
    note = f"planner calibrate --measure, {machine.software}, {machine.backend or 'one process'}"
    source = {"note": note, "date": machine.date}
    name = name_of_device(machine)
    accelerator = {
        "title": f"{machine.name}{threads}, as measured",
        "vendor": machine.device.upper(),
        **made["accelerator"],
        "sources": {SOURCE: dict(source)},
    }
    count = {"value": machine.per_node, "basis": SOURCE, "source": SOURCE}
    links = {
        "kind": machine.backend or "none",
        "domain_accelerators": dict(count),
        **made["node"].pop("scale_up"),
    }
    node = {
        "title": f"{machine.per_node} x {name}",
        "accelerator": name,
        "accelerators_per_node": count,
        "scale_up": links,
        "fabric": PLAIN_FABRIC,
        **made["node"],
        "sources": {SOURCE: source},
    }
    overrides = {key: figure["value"] for key, figure in made.get("overrides", {}).items()}
    return {
        "node": node,
        "count": machine.nodes,
        "accelerator": accelerator,
        **({"overrides": overrides} if overrides else {}),
    }
