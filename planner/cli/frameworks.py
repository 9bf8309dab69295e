"""``planner frameworks``: the software a plan can assume."""

from typing import Annotated

import typer

from planner.cli import options


def frameworks(
    name: Annotated[
        str,
        typer.Argument(
            help="FRAMEWORK or FRAMEWORK/PROFILE to show; all are listed without.",
            metavar="[NAME]",
        ),
    ] = "",
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """List frameworks and profiles, or show one profile with the source of every trait."""
    from planner.cli.output import console
    from planner.report.document import serialise
    from planner.report.frameworks import (
        framework_body,
        frameworks_body,
        print_framework,
        print_frameworks,
    )

    if output_format is options.TableOrJson.json:
        body = framework_body(name) if name else frameworks_body()
        typer.echo(serialise("framework" if name else "frameworks", body))
    elif name:
        print_framework(name, console())
    else:
        print_frameworks(console())
