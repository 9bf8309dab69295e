"""``planner schema``: what is in the JSON documents of the commands."""

from typing import Annotated

import typer


def schema(
    name: Annotated[
        str, typer.Argument(help="Kind of document; all are listed without.", metavar="[NAME]")
    ] = "",
) -> None:
    """Print the JSON Schema of what a command writes with --format json, or list the schemas."""
    import json

    from planner.report import document

    if name:
        typer.echo(json.dumps(document.schema(name), indent=1, ensure_ascii=False))
        return
    commands = document.commands()
    width = max(map(len, commands))
    for kind, command in commands.items():
        typer.echo(f"{kind:{width}}  {command}")
