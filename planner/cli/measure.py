"""``planner compare`` and ``planner calibrate``: what runs and machines measured."""

import os
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options
from planner.cli.output import fail, say
from planner.documents.file import read_text, write_atomically
from planner.errors import InputError, PlannerError
from planner.limits import MAX_LOG_BYTES
from planner.notes import Problems
from planner.report.files import check_writable, check_yaml

if TYPE_CHECKING:
    from planner.calibrate.fit import Base
    from planner.calibrate.rows import Table
    from planner.report.document import Shown
    from planner.search.search import Progress


@options.takes_files()
def compare(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs of Megatron-LM, NeMo, Megatron-Bridge, DeepSpeed, torchtitan or Trainer.",
        ),
    ],
    *,
    said: Mapping[str, Any],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Configuration or plan file of the run [the log's own settings]."
        ),
    ] = None,
    progress: "Progress",
) -> "Shown":
    """``planner compare``: what is wrong with some logs is said behind those that can be read."""
    from planner.cli.check import request_of
    from planner.compare.compare import compare as compared
    from planner.compare.log import read_log
    from planner.query.from_file import named
    from planner.report import measure as report
    from planner.report.document import Shown

    request = request_of(said, logs[0])
    named(request)
    problems, found = Problems(), []
    for number, name in enumerate(logs):
        progress(f"reading {name}", number / len(logs))
        log = problems.read(partial(read_log, name))
        one = problems.read(partial(compared, log, request, config)) if log else None
        found += [one] if one else []
    if not found:
        problems.finish()
    return Shown(
        kind="compare",
        found=found,
        body=report.compare_document,
        screen=report.print_comparisons,
        after=problems.finish,
    )


@options.shows()
def calibrate(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLUSTER] [FILE...]",
            help=f"{options.NODES_OF_A_KIND}, or a YAML file; then output of nccl-tests or "
            "rccl-tests, a CSV of products (m,n,k,dtype and time_us or tflops), logs of runs, or "
            "tables of --measure. Of such a table alone, or of --measure alone, the machine is "
            "stated whole.",
        ),
    ] = None,
    *,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this machine with torch, alone or under torchrun."),
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write what was measured to this file [beside --out]."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the logs that state none.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration of the logs [their own].")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, and write nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the cluster to this YAML file.")] = None,
    force: options.Force = False,
    progress: "Progress",
    output_format: str = "table",
) -> "Shown":
    """``planner calibrate``: of a catalog's cluster, or of a machine stated whole."""
    from planner.calibrate.fit import calibrate as fit
    from planner.calibrate.fit import cluster_text, read_base
    from planner.calibrate.machine import stated
    from planner.calibrate.points import Point, table_points
    from planner.calibrate.read import points_of
    from planner.query.from_file import Request
    from planner.report import measure as report
    from planner.report.document import Shown

    target, words = None if dry_run else out, list(given or [])
    command = shlex.join(["planner", "calibrate", *(["--measure"] * measure), *words])
    if table is not None and not measure:
        fail("--table", "needs --measure")
    csv = None if dry_run else table or (out and out.with_suffix(".csv"))
    taken = (
        _measured_now(words, csv, target, progress, force=force)
        if measure
        else _table_alone(words, target, force=force)
    )
    problems, points = Problems(), list[Point]()
    progress("reading", 0.0)
    if words:
        cluster, *files = words
        base, request = read_base(cluster), Request(model=model, cluster=cluster)
        for name in files:
            points += problems.read(partial(points_of, name, base.cluster, request, config)) or []
        problems.finish()
    else:
        assert taken is not None
        base = stated(*taken, out or Path("measured.yaml"))
    if taken is not None:
        points += table_points(*taken, base.cluster)
    progress("fitting", 0.5)
    made = fit(base, points)
    text = cluster_text(made, command, datetime.now(UTC).date(), out.parent if out else Path())

    def after() -> None:
        if target is not None:
            write_atomically(target, text, option="--out")
            say(f"wrote {target}")
        elif output_format != "json":
            say("nothing written: --out FILE writes the cluster file")

    return Shown(
        kind="calibrate",
        found=made,
        body=partial(report.calibrate_document, text=text),
        screen=report.print_calibration,
        after=after,
    )


def _table_alone(words: list[str], out: Path | None, *, force: bool) -> "tuple[str, Table] | None":
    """The only table of ``words``, taken from them, else None; ``out`` is checked before."""
    from planner.calibrate.rows import FIRST_LINE, read_table

    check_yaml(out, force=force)
    if len(words) == 1 and words[0].endswith(".csv"):
        text = read_text(words[0], MAX_LOG_BYTES)
        if text.startswith(FIRST_LINE):
            return words[0], read_table(words.pop(), text)
    if len(words) < 2:
        missing = "FILE..." if words else "CLUSTER and FILE..."
        fail(missing, f"missing; give {missing}, a table of --measure alone, or --measure")
    return None


def _measured_now(
    words: list[str], csv: Path | None, out: Path | None, progress: "Progress", *, force: bool
) -> "tuple[str, Table]":
    """Return the table all processes measured, and its name; those but the first leave here."""
    from planner.calibrate.fit import read_base
    from planner.calibrate.rows import table_text

    is_first = os.environ.get("RANK", "0") == "0"
    try:
        check_yaml(out, force=force)  # before minutes are spent on measuring
        if csv is not None:
            check_writable(csv, force=force, option="--table")
        found = _measured(read_base(words[0]) if words else None, progress)
    except PlannerError:
        if is_first:
            raise
        raise typer.Exit(2) from None
    if not is_first:
        raise typer.Exit(0)
    if csv is not None:
        write_atomically(csv, table_text(found), option="--table")
        say(f"wrote {csv}")
    return str(csv or "measured"), found


def _measured(base: "Base | None", progress: "Progress") -> "Table":
    from planner.calibrate.points import check_machine

    try:
        from planner.calibrate.measure import join, leave, measure
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        message = "torch is not installed; pip install 'parallel-planner[measure]'"
        raise InputError.single("command line", "--measure", message) from error

    world = join()
    try:
        if base is not None:  # before minutes are spent on measuring
            check_machine("--measure", world.machine, base.cluster)
        return measure(world, progress)
    finally:
        leave(world)
