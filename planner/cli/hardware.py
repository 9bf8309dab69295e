"""``planner hardware``: the catalog of accelerators, nodes and fabrics, and machines as found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.catalog.paths import EXAMPLE_ACCELERATOR
from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.catalog.detect import Choice, Machine
    from planner.catalog.observe import Source


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
    partition: Annotated[str, typer.Option(help="Slurm partition to take nodes of.")] = "",
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """List the known hardware, show one entry with its sources, or detect a cluster."""
    as_json = output_format is options.TableOrJson.json
    if detect or from_files:
        from planner.catalog.detect import Choice

        choice = Choice(accelerator=accelerator, partition=partition)
        files = [*(from_files or []), *(names or [])] if from_files else []
        _check_usage(names if not from_files else None, out, force=force)
        machine = _merged([Path(file) for file in files], choice, detect=detect)
        command = _command(files, choice, detect=detect)
        _write(machine, out, command, as_json=as_json)
        return
    _refuse_alone(out=out, accelerator=accelerator, partition=partition)
    _show(tuple(names or ()), as_json=as_json)


def _show(words: tuple[str, ...], *, as_json: bool) -> None:
    from planner.catalog.words import find_hardware, is_hardware, one_name
    from planner.cli.output import console
    from planner.report.catalog import print_hardware, print_hardware_list
    from planner.report.catalog_documents import hardware_body, shown_document
    from planner.report.document import serialise

    name = one_name(words, is_hardware)
    if name and as_json:
        typer.echo(serialise(*shown_document(name)))
    elif name:
        print_hardware(name, console())
    elif as_json:
        typer.echo(serialise("hardware", hardware_body(find_hardware(words), words)))
    else:
        print_hardware_list(find_hardware(words), console())


def _refuse_alone(**given: object) -> None:
    """Options that mean something only with --detect or --from."""
    from planner.errors import InputError, Problem

    problems = [
        Problem(where="command line", key=f"--{name}", message="needs --detect or --from FILE")
        for name, value in given.items()
        if value
    ]
    if problems:
        raise InputError(problems)


def _check_usage(names: list[str] | None, out: Path | None, *, force: bool) -> None:
    """Refuse what cannot work before any tool is run."""
    from planner.errors import InputError
    from planner.report.files import check_writable

    if names:
        message = f"--detect takes no name; given {', '.join(names)}"
        raise InputError.single("command line", "NAME", message)
    if out is None:
        return
    if out.suffix not in (".yaml", ".yml") or not out.name.isprintable():
        message = f"must be a name that ends in .yaml; given {str(out)!r}"
        raise InputError.single("command line", "--out", message)
    check_writable(out, force=force, option="--out")


def _merged(files: list[Path], choice: "Choice", *, detect: bool) -> "Machine":
    """All sources read, their problems raised together, and one machine made of them."""
    from planner.catalog.detect import merge
    from planner.catalog.observe import ask_host, read_source
    from planner.errors import InputError, Problem

    sources: list[Source] = []
    problems: list[Problem] = []
    for file in files:
        try:
            sources.append(read_source(file))
        except InputError as error:
            problems += error.problems
    if detect:
        try:
            sources += ask_host()
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return merge(sources, choice)


def _write(machine: "Machine", out: Path | None, command: str, *, as_json: bool) -> None:
    """Write the file and show what was seen; without ``out``, the cluster file itself."""
    from planner.catalog.detect import cluster_text
    from planner.cli.output import console
    from planner.report.catalog_documents import detected_body
    from planner.report.detected import print_detected
    from planner.report.document import serialise
    from planner.report.files import write_atomically

    text = cluster_text(machine, command)
    if out is not None:
        write_atomically(out, text, option="--out")
    if as_json:
        written = [] if out is None else [str(out)]
        body = detected_body(machine, command=command, written=written)
        typer.echo(serialise("detected", body))
    elif out is None:
        typer.echo(text, nl=False)
    else:
        print_detected(machine, console())
    if out is not None:
        say(f"wrote {out}")


def _command(files: list[str], choice: "Choice", *, detect: bool) -> str:
    """The command as it can be repeated."""
    import shlex

    words = ["planner", "hardware", *(["--detect"] if detect else [])]
    words += ["--from", *files] if files else []
    words += ["--accelerator", choice.accelerator] if choice.accelerator else []
    words += ["--partition", choice.partition] if choice.partition else []
    return shlex.join(words)
