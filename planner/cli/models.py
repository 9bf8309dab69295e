"""``planner models``: the catalog of models."""

from typing import Annotated

import typer

from planner.cli import completion, options


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.models,
            help="Model, YAML file or config.json to show, or words such as moe qwen that all "
            "apply; all are listed without.",
            metavar="NAME|WORDS",
        ),
    ] = None,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """List the known models, or show one with its parameter count and sources."""
    from planner.catalog.models import is_model_file, meant_name
    from planner.catalog.words import find_models, one_name
    from planner.cli.output import console
    from planner.report.catalog import print_model, print_models
    from planner.report.catalog_documents import model_body, models_body
    from planner.report.document import serialise

    given = tuple(words or ())
    as_json = output_format is options.TableOrJson.json
    name = one_name(given, lambda word: is_model_file(word) or meant_name(word) is not None)
    if name:
        typer.echo(serialise("model", model_body(name))) if as_json else print_model(
            name, console()
        )
        return
    found = find_models(given)
    if as_json:
        typer.echo(serialise("models", models_body(found, given)))
    else:
        print_models(found, console())
