"""``planner sweep``: many questions at once, and what their answers say together."""

import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import fail, say
from planner.documents.file import write_atomically
from planner.errors import InputError
from planner.report.document import Shown
from planner.report.files import check_writable

if TYPE_CHECKING:
    from planner.search.search import Progress


app = typer.Typer(no_args_is_help=True, **options.PROGRAM)


@app.command("run")
@options.shows()
def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.yaml", help="Options of `planner plan`, each with a value or a list."
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Results, JSON lines [SWEEP.jsonl].")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Processes [one for every core].")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ask on this Ray cluster: HOST:PORT, auto or local."),
    ] = None,
    max_cells: Annotated[
        int, typer.Option(min=1, help="Cells that a sweep may have at most.")
    ] = 20_000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many cells there are, and stop.")
    ] = False,
    force: options.Force = False,
    progress: "Progress",
) -> Shown | None:
    """Answer every cell of a sweep once, on all cores or on Ray; go on where it was left."""
    from planner.report import sweep as report
    from planner.sweep import run as running
    from planner.sweep.run import FAILED, Executor
    from planner.sweep.sweep import check_values, read_sweep

    if ray is not None and workers is not None:
        fail("--workers", "is of this machine; a Ray cluster has its own")
    sweep = read_sweep(file)
    if len(sweep) > max_cells:
        message = (
            f"has {len(sweep):,} cells ({sweep.size}); at most {max_cells:,} are asked; "
            f"--max-cells {len(sweep)} asks them all"
        )
        raise InputError.single(str(file), "cells", message)
    if dry_run:
        typer.echo(f"{len(sweep):,} cells ({sweep.size})")
        return None
    target = out or file.with_suffix(".jsonl")
    _check_target(target, force=force)
    check_values(sweep, file)
    count = min(workers or running.num_cores(), len(sweep))
    executor: Executor = partial(running.on_processes, workers=count)
    where = f"{count} worker{'s' * (count > 1)}"
    if ray is not None:
        executor, where = partial(running.on_ray, address=ray), f"Ray at {ray}"
    elif count == 1:
        executor = running.in_this_process
    try:
        results, num_known = running.run(sweep, target, executor, _shown_by(progress))
    except KeyboardInterrupt:
        kept = target.with_suffix(".partial")
        say(f"what is answered is kept in {kept}; the same command goes on from there")
        raise
    write_atomically(target, running.results_text(results), option="--out")
    target.with_suffix(".partial").unlink(missing_ok=True)
    following = f"planner sweep show {shlex.quote(str(target))}"
    screen = partial(report.print_outcome, rows=results.rows, size=sweep.size, following=following)
    has_failed = any(row["status"] == FAILED for row in results.rows)

    def after() -> None:
        if has_failed:
            say("failed cells are not kept: the same command asks them again")

    return Shown(
        kind="sweep",
        found=report.outcome(results, num_known, where),
        screen=screen,
        after=after,
        exit_code=int(has_failed),
    )


def _check_target(target: Path, *, force: bool) -> None:
    """Raise InputError unless the results can be written; those of a sweep are replaced."""
    from planner.sweep.run import read_results

    check_writable(target, force=True, option="--out")
    if force or not target.exists():
        return
    try:
        read_results(target)
    except InputError:
        message = "exists and is no result of a sweep; --force replaces it"
        raise InputError.single(str(target), "--out", message) from None


def _shown_by(progress: "Progress") -> Callable[[int, int, int], None]:
    """Show how far a sweep is; a line now and then where no terminal shows a bar."""
    started_s = said_s = time.monotonic()

    def shown(answered: int, asked: int, known: int) -> None:
        nonlocal said_s
        now_s = time.monotonic()
        rate = answered / max(now_s - started_s, 1e-9)
        text = f"{known + answered:,} of {known + asked:,} cells, {rate:.2f} cells/s"
        progress(text, (known + answered) / max(1, known + asked))
        if not sys.stderr.isatty() and now_s - said_s >= 30.0:
            said_s = now_s
            say(text)

    return shown


@app.command("show")
@options.shows(options.CSV)
def show(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="JSON lines written by `planner sweep`.")
    ],
    *,
    best: Annotated[
        str, typer.Option(help="What the best are by: time, days, cost, energy, gpu-hours or mfu.")
    ] = "time",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="days<=30, gpus<=64, framework=megatron; repeatable."
        ),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(help="Columns of what does not compete, or none [model, length, tokens]."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Cells to show of each.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write into this file.")] = None,
    force: options.Force = False,
) -> Shown:
    """Show the best cells of a result."""
    from planner.report import sweep as report
    from planner.sweep.run import read_results
    from planner.sweep.winners import winners

    if out is not None:
        check_writable(out, force=force, option="--out")
    shown = winners(read_results(results), best=best, where=where or [], per=per, top=top)
    return Shown(
        kind="sweep-show",
        found=shown,
        body=report.show_document,
        screen=report.print_show,
        forms={"csv": partial(report.render_show_csv, shown)},
        out=out,
    )
