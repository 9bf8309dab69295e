"""``planner validate``: published runs against the model."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"


def validate(
    runs: Annotated[Path, typer.Argument(help="Published runs, one JSON record a line.")],
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.")
    ] = Format.table,
) -> None:
    """Estimate published runs as they were configured, and compare."""
    from planner.cli.output import console
    from planner.validation.compare import compare_all
    from planner.validation.records import read_records

    comparisons = compare_all(read_records(runs))
    if output_format is Format.json:
        import json

        from planner.validation.report import to_json

        typer.echo(json.dumps(to_json(comparisons), indent=2, allow_nan=False))
        return
    from planner.validation.table import print_report

    print_report(comparisons, console())
