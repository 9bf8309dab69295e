"""``planner calibrate``: a machine's own figures as a cluster file, from what was measured."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.calibrate.figures import Base
    from planner.calibrate.measured import Table
    from planner.calibrate.points import Point
    from planner.check.job import Request


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is fitted to what, and who asks."""

    cluster: str | None
    """None: the machine is stated whole."""
    files: tuple[str, ...]
    table: "tuple[str, Table] | None"
    """What was measured just now, or what a machine is stated from."""
    request: "Request"
    config: str | None
    out: Path | None
    command: str
    as_json: bool


def calibrate(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLUSTER] [FILE...]",
            help=f"{options.NODES_OF_A_KIND}, or a YAML file; then output of nccl-tests, "
            "rccl-tests or nvbandwidth, a CSV of products (m,n,k,dtype and time_us or tflops), "
            "logs of runs, or tables of --measure. Of such a table alone, or of --measure alone, "
            "the machine is stated whole.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this machine with torch, alone or under torchrun."),
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write what was measured to this file [beside --out]."),
    ] = None,
    nvme: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Measure the disk under this folder too."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the logs that state none.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration of the logs [their own].")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, and write nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the cluster to this YAML file.")] = None,
    force: options.Force = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Fit a cluster's figures to measurements, held to the catalog's where these say little."""
    from planner.check.job import Request
    from planner.report.files import write_atomically

    target = None if dry_run else out
    words = list(given or [])
    as_json = output_format is options.TableOrJson.json
    taken: tuple[str, Table] | None
    if measure:
        from planner.cli.calibrate_measure import measured_now

        taken = measured_now(words, table, nvme, target, force=force, dry_run=dry_run)
    else:
        _refuse_alone(table=table, nvme=nvme)
        check_out(target, force=force)
        taken = _table_alone(words)
    question = _Question(
        cluster=words[0] if words else None,
        files=tuple(words[1:]),
        table=taken,
        request=Request(model=model, cluster=words[0] if words else None),
        config=config,
        out=out,
        command=shlex.join(["planner", "calibrate", *(["--measure"] * measure), *(given or [])]),
        as_json=as_json,
    )
    text = _fitted(question) if words else _whole(question)
    if target is not None:
        write_atomically(target, text, option="--out")
        say(f"wrote {target}")
    elif not as_json:
        say("nothing written: --out FILE writes the cluster file")


def _refuse_alone(**given: object) -> None:
    from planner.errors import InputError, Problem

    problems = [
        Problem(where="command line", key=f"--{name}", message="needs --measure")
        for name, value in given.items()
        if value is not None
    ]
    if problems:
        raise InputError(problems)


def check_out(out: Path | None, *, force: bool) -> None:
    """Raise InputError where the cluster file cannot be written, or is named as none."""
    from planner.errors import InputError
    from planner.report.files import check_writable

    if out is None:
        return
    if out.suffix not in (".yaml", ".yml") or not out.name.isprintable():
        message = f"must be a name that ends in .yaml; given {str(out)!r}"
        raise InputError.single("command line", "--out", message)
    check_writable(out, force=force, option="--out")


def _table_alone(words: list[str]) -> "tuple[str, Table] | None":
    """The only table of the command line, taken from ``words``; else these are as they must be."""
    from planner.calibrate.measured import is_table, read_table
    from planner.documents.file import read_text
    from planner.errors import InputError
    from planner.limits import MAX_LOG_BYTES

    if len(words) == 1 and words[0].endswith(".csv"):
        text = read_text(words[0], MAX_LOG_BYTES)
        if is_table(text):
            return words[0], read_table(words.pop(), text)
    if len(words) < 2:
        missing = "FILE..." if words else "CLUSTER and FILE..."
        message = f"missing; give {missing}, a table of --measure alone, or --measure"
        raise InputError.single("command line", missing, message)
    return None


def _whole(question: _Question) -> str:
    """The machine stated whole: shown, and its cluster file."""
    from planner.calibrate.state import state
    from planner.calibrate.write_whole import whole_text
    from planner.cli.output import console
    from planner.report.measured import print_whole, render_whole_json

    assert question.table is not None
    path, table = question.table
    made = state(path, table, question.out or Path("measured.yaml"))
    text = whole_text(made, question.command)
    if question.as_json:
        typer.echo(render_whole_json(made, text))
    else:
        print_whole(made, console())
    return text


def _fitted(question: _Question) -> str:
    """The catalog's machine fitted to the points: shown, and its cluster file."""
    from datetime import UTC, datetime

    from planner.calibrate.figures import read_base
    from planner.calibrate.fit import calibrate as fit
    from planner.calibrate.table_points import table_points
    from planner.calibrate.write import cluster_text
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.calibrate import print_calibration, render_calibration_json

    assert question.cluster is not None
    base = read_base(question.cluster)
    with delayed_progress() as progress:
        progress("reading", 0.0)
        points = _points(question, base)
        if question.table is not None:
            points += table_points(*question.table, base.cluster)
        progress("fitting", 0.5)
        made = fit(base, points)
    folder = question.out.parent if question.out else Path()
    text = cluster_text(made, question.command, datetime.now(UTC).date(), folder)
    if question.as_json:
        typer.echo(render_calibration_json(made, text))
    else:
        print_calibration(made, console())
    return text


def _points(question: _Question, base: "Base") -> "list[Point]":
    """The points of all files; what is wrong with them is reported at once."""
    from functools import partial

    from planner.calibrate.points import Point
    from planner.calibrate.read import points_of
    from planner.cli.collector import Collector

    collector, found = Collector(), list[Point]()
    for name in question.files:
        one = partial(points_of, name, base, question.request, question.config)
        found += collector.read(one) or []
    collector.finish()
    return found
