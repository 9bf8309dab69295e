"""``planner frameworks``: the software a plan can assume."""

from typing import Annotated

import typer


def frameworks(
    name: Annotated[
        str,
        typer.Argument(
            help="FRAMEWORK or FRAMEWORK/PROFILE to show; all are listed without.",
            metavar="[NAME]",
        ),
    ] = "",
) -> None:
    """List frameworks and profiles, or show one profile with the source of every trait."""
    from planner.cli.output import console
    from planner.report.frameworks import print_framework, print_frameworks

    if name:
        print_framework(name, console())
    else:
        print_frameworks(console())
