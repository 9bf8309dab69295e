"""``planner recipes``: layouts that vendors tuned and ship."""

from typing import Annotated

import typer

from planner.catalog.paths import EXAMPLE_ACCELERATOR
from planner.cli.options import TableOrJson


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model, accelerator, GPUs, precision, task or vendor, such as llama3 "
            f"{EXAMPLE_ACCELERATOR} bf16.",
            metavar="[WORDS]...",
        ),
    ] = None,
    output_format: Annotated[
        TableOrJson, typer.Option("--format", help="Output format.")
    ] = TableOrJson.table,
) -> None:
    """List tuned recipes that all words apply to; `plan --like RECIPE` starts from one."""
    from planner.catalog.recipes import check_words, matching
    from planner.cli.output import console
    from planner.report.recipes import print_recipes, render_recipes_json

    given = tuple(word for text in words or () for word in text.split())
    check_words(given)
    found = list(matching(given))
    if output_format is TableOrJson.json:
        typer.echo(render_recipes_json(found, given))
    else:
        print_recipes(found, given, console())
