"""A detected machine for the terminal: what was seen, and what the cluster file says of it."""

from rich.console import Console

from planner.catalog.detect import Machine, Override, Seen
from planner.report.table import Column, Table, rich_table


def print_detected(machine: Machine, console: Console) -> None:
    """What was seen and where, what differs from the catalog, and what is the catalog's."""
    total = machine.num_nodes * machine.num_gpus
    nodes = "node" if machine.num_nodes == 1 else "nodes"
    console.print(
        f"{total:,} x {machine.accelerator}: {machine.num_nodes:,} {nodes} of {machine.num_gpus} "
        f"(node {machine.node} of the catalog)",
        style="bold",
    )
    console.print(rich_table(Table(machine.seen, SEEN)))
    if machine.overrides:
        console.print(rich_table(Table(machine.overrides, OVERRIDES)))
    console.print(f"From the catalog, told by nothing: {'; '.join(machine.kept)}.", markup=False)
    for note in machine.notes:
        console.print(f"note: {note}", markup=False)


SEEN: list[Column[Seen]] = [
    Column("seen", lambda seen: seen.what, right=False, wraps=True),
    Column("value", lambda seen: seen.value, right=False, wraps=True),
    Column("where", lambda seen: seen.where, right=False, wraps=True),
]
OVERRIDES: list[Column[Override]] = [
    Column("override", lambda one: one.key, right=False, wraps=True),
    Column("value", lambda one: f"{one.value:.6g}"),
    Column("catalog", lambda one: "-" if one.catalog is None else f"{one.catalog:g}"),
    Column("seen in", lambda one: one.where, right=False, wraps=True),
]
