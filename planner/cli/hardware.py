"""``planner hardware``: the catalog of accelerators, nodes and fabrics."""

from typing import Annotated

import typer


def hardware(
    name: Annotated[
        str, typer.Argument(help="Entry, 4xNODE or cluster file; all entries without.")
    ] = "",
) -> None:
    """List the known hardware, or show one entry with the source of every figure."""
    from planner.cli.output import console
    from planner.report.catalog import print_hardware, print_hardware_list

    if name:
        print_hardware(name, console())
    else:
        print_hardware_list(console())
