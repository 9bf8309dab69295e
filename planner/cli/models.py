"""``planner models``: the catalog of models."""

from typing import Annotated

import typer


def models(
    name: Annotated[
        str, typer.Argument(help="Model, YAML file or config.json to show; all are listed without.")
    ] = "",
) -> None:
    """List the known models, or show one with its parameter count and sources."""
    from planner.cli.output import console
    from planner.report.catalog import print_model, print_models

    if name:
        print_model(name, console())
    else:
        print_models(console())
