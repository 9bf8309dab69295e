"""``planner show``: models, hardware, recipes and software that are known, and JSON Schemas."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.catalog import EXAMPLE_ACCELERATOR
from planner.catalog.observe import ask_host, read_source
from planner.cli import options
from planner.cli.output import fail, say
from planner.documents.file import write_atomically
from planner.notes import Problems
from planner.report import document
from planner.report.document import Shown
from planner.report.files import check_yaml
from planner.report.table import ON_SCREEN

app = typer.Typer(no_args_is_help=True, **options.PROGRAM)
All = Annotated[bool, typer.Option("--all", help="Show all rows of a list, all lines of an entry.")]


def _shown(
    kind: str,
    body: Any,  # noqa: ANN401 - any row of planner.answers.show
    screen: Callable[..., None],
    rows: str = "",
    *,
    most: int | None = None,
) -> Shown:
    """An answer, on its screen at most so many rows or lines; as CSV it, or its ``rows``."""
    from planner.report.table import csv_text

    def csv() -> str:
        found = asdict(body)
        listed = found[rows] if rows else [found]
        return csv_text(listed, list(listed[0]) if listed else [])

    screen = partial(screen, most=most) if most else screen
    return Shown(kind=kind, found=body, screen=screen, forms={"csv": csv})


@app.command("models")
@options.shows(options.CSV)
def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=options.known_models,
            help="Model, YAML file or config.json to show, or words such as moe qwen that all "
            "apply; all are listed without.",
            metavar="NAME|WORDS",
        ),
    ] = None,
    list_all: All = False,
    output_format: str = "table",
) -> Shown:
    """List the known models, or show one with its parameter count and sources."""
    from planner.answers import show as answers
    from planner.catalog.models import is_model_file, meant_name
    from planner.catalog.words import unique_match
    from planner.report import show as report

    given = tuple(words or ())
    name = unique_match(given, lambda word: is_model_file(word) or meant_name(word) is not None)
    if name:
        return _shown("model", answers.model(name), report.print_model)
    most = report.MOST if output_format == "table" and not list_all else None
    return _shown("models", answers.models(given, most), report.print_models, "models")


@app.command("recipes")
@options.shows(options.CSV)
def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model, accelerator, GPUs, precision, task or vendor, such as llama3 "
            f"{EXAMPLE_ACCELERATOR} bf16.",
            metavar="[WORDS]...",
        ),
    ] = None,
    list_all: All = False,
) -> Shown:
    """List tuned recipes that all words apply to; `plan --like RECIPE` starts from one."""
    from planner.answers import show as answers
    from planner.report import show as report

    given = tuple(word for text in words or () for word in text.split())
    most = None if list_all else report.MOST
    return _shown("recipes", answers.recipes(given), report.print_recipes, "recipes", most=most)


@app.command("frameworks")
@options.shows(options.CSV)
def frameworks(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=options.known_frameworks,
            help="FRAMEWORK or FRAMEWORK/PROFILE to show; all are listed without.",
            metavar="[NAME]",
        ),
    ] = "",
    list_all: All = False,
) -> Shown:
    """List frameworks and profiles, or show one profile with the source of every trait."""
    from planner.answers import show as answers
    from planner.report import show as report

    if name:
        lines = None if list_all else ON_SCREEN
        found = answers.framework(name)
        return _shown("framework", found, report.print_framework, "traits", most=lines)
    most, listed = None if list_all else report.MOST, answers.frameworks()
    return _shown("frameworks", listed, report.print_frameworks, "profiles", most=most)


@app.command("schema")
def schema(
    name: Annotated[
        str, typer.Argument(help="Kind of document; all are listed without.", metavar="[NAME]")
    ] = "",
) -> None:
    """Print the JSON Schema of what a command writes with --format json, or list the schemas."""
    if name:
        typer.echo(json.dumps(document.schema(name), indent=1, ensure_ascii=False))
        return
    commands = document.commands()
    width = max(map(len, commands))
    for kind, command in commands.items():
        typer.echo(f"{kind:{width}}  {command}")


@app.command("hardware")
@options.shows(options.CSV)
def hardware(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|WORDS",
            help="Entry, 4xNODE or cluster file to show, or words such as "
            f"{EXAMPLE_ACCELERATOR} nvlink that all apply; all entries without.",
        ),
    ] = None,
    detect: Annotated[
        bool,
        typer.Option("--detect", help="Ask nvidia-smi and sinfo of this machine for a cluster."),
    ] = False,
    from_files: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="FILE...",
            help="Make a cluster file of what nvidia-smi (--query-gpu) or sinfo wrote about one "
            "kind of node.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the detected cluster to this YAML file.")
    ] = None,
    force: options.Force = False,
    accelerator: Annotated[
        str, typer.Option(help="Catalog name of the detected GPUs, or which of several kinds.")
    ] = "",
    list_all: All = False,
    output_format: str = "table",
) -> Shown:
    """List the known hardware, show one entry with its sources, or detect a cluster."""
    from planner.answers import show as answers
    from planner.catalog.words import is_hardware, unique_match
    from planner.report import show as report

    if detect or from_files:
        if names and not from_files:
            fail("NAME", f"--detect takes no name; given {', '.join(names)}")
        check_yaml(out, force=force)
        files = [*from_files, *(names or [])] if from_files else []
        return _detect(files, accelerator, out, on_host=detect)
    alone = {"--out": out, "--accelerator": accelerator}
    options.refuse_all(alone, "needs --detect or --from FILE")
    words = tuple(names or ())
    if name := unique_match(words, is_hardware):
        found = answers.hardware_entry(name)
        is_cluster = isinstance(found, answers.Cluster)
        kind, rows = ("cluster", "levels") if is_cluster else ("hardware-entry", "figures")
        return _shown(
            kind, found, report.print_hardware_entry, rows, most=None if list_all else ON_SCREEN
        )
    if output_format == "csv":
        fail("--format csv", "of one entry only: those of several kinds have different columns")
    most = report.MOST_OF_KINDS if output_format == "table" and not list_all else None
    return _shown("hardware", answers.hardware(words, most), report.print_hardware)


def _detect(
    files: list[str],
    accelerator: str,
    out: Path | None,
    *,
    on_host: bool,
) -> Shown:
    """One machine of all sources: its cluster file written, else shown, and what was seen."""
    from planner.answers import show as answers
    from planner.catalog.detect import cluster_text, merge
    from planner.report import show as report

    problems = Problems()
    read = (problems.read(partial(read_source, Path(file))) for file in files)
    sources = [source for source in read if source]
    if on_host:
        sources += problems.read(ask_host) or []
    problems.finish()
    machine = merge(sources, accelerator)
    command = [
        *("planner", "show", "hardware"),
        *(["--detect"] if on_host else []),
        *(["--from", *files] if files else []),
        *(["--accelerator", accelerator] if accelerator else []),
    ]
    text = cluster_text(machine, shlex.join(command))
    if out is not None:
        write_atomically(out, text, option="--out")
    found = answers.Detected(
        **vars(machine), cluster_file=text, written=() if out is None else (str(out),)
    )
    shown = _shown("detected", found, report.print_detected, "overrides")
    if out is None:
        return replace(shown, forms={**shown.forms, "table": lambda: text})
    return replace(shown, after=partial(say, f"wrote {out}"))
