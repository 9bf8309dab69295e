"""A detected machine for the terminal: what was seen, and what the cluster file says of it."""

from rich.console import Console
from rich.table import Table

from planner.catalog.detect.merge import Machine
from planner.report.screen import plain_table


def print_detected(machine: Machine, console: Console) -> None:
    """What was seen and where, what differs from the catalog, and what is the catalog's."""
    total = machine.num_nodes * machine.num_gpus
    source = "a new node after" if machine.new_node else "node"
    nodes = "node" if machine.num_nodes == 1 else "nodes"
    console.print(
        f"{total:,} x {machine.accelerator}: {machine.num_nodes:,} {nodes} of {machine.num_gpus} "
        f"({source} {machine.node} of the catalog)",
        style="bold",
    )
    table = _table("seen", "value", "where")
    for seen in machine.seen:
        table.add_row(seen.what, seen.value, seen.where)
    console.print(table)
    if machine.overrides:
        changed = _table("override", "value", "catalog", "seen in")
        for override in machine.overrides:
            known = "-" if override.catalog is None else f"{override.catalog:g}"
            changed.add_row(override.key, f"{override.value:.6g}", known, override.where)
        console.print(changed)
    if machine.fabric:
        console.print(f"fabric: {machine.fabric}, by kind and rate of the ports")
    console.print(f"From the catalog, told by nothing: {'; '.join(machine.kept)}.", markup=False)
    for note in machine.notes:
        console.print(f"note: {note}", markup=False)


def _table(*columns: str) -> Table:
    table = plain_table()
    for name in columns:
        is_number = name == "catalog" or (name == "value" and columns[0] == "override")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table
