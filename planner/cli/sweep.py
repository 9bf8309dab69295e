"""``planner sweep``: many questions at once, and what their answers say together."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.sweep.cells import Answers, Row, Sweep, Task
    from planner.sweep.run import Progress, Progressing
    from planner.sweep.winners import Asked

MAX_CELLS = 20_000
LINE_S = 30.0
"""Between lines about how far a run is, where no terminal shows a bar."""
FAILURES = 1
"""Exit code where cells failed that may be asked again."""


class Shown(StrEnum):
    """Forms of what a result says."""

    table = "table"
    csv = "csv"
    json = "json"
    html = "html"


class _RunIsMeant(TyperGroup):
    """A first word that is no command is the file of a sweep."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweep_app = typer.Typer(
    name="sweep",
    cls=_RunIsMeant,
    help="Ask many questions at once: planner sweep SWEEP.yaml, then planner sweep show RESULTS.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@sweep_app.command("run")
def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.yaml", help="Options of `planner plan`, each with a value or a list."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Results, in Parquet [SWEEP.parquet].")
    ] = None,
    cells: Annotated[
        Path | None, typer.Option(help="Folder of answers, kept for other sweeps [OUT.cells].")
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
    ] = MAX_CELLS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many cells there are, and stop.")
    ] = False,
    force: options.Force = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Answer every cell of a sweep once, on all cores or on Ray; go on where it was left."""
    from planner.cli.sweep_file import check_values, read_sweep
    from planner.errors import InputError
    from planner.sweep.results import polars
    from planner.sweep.store import Store

    if ray is not None and workers is not None:
        message = "is of this machine; a Ray cluster has its own"
        raise InputError.single("command line", "--workers", message)
    sweep = read_sweep(file)
    if len(sweep) > max_cells:
        message = (
            f"has {len(sweep):,} cells ({sweep.size}); at most {max_cells:,} are asked; "
            f"--max-cells {len(sweep)} asks them all"
        )
        raise InputError.single(str(file), "cells", message)
    if dry_run:
        typer.echo(f"{len(sweep):,} cells ({sweep.size})")
        return
    target = out or file.with_suffix(".parquet")
    polars("sweep")
    _check_target(target, force=force)
    executor, where = _executor(workers, ray, len(sweep))
    check_values(sweep, file)
    store = Store(folder=cells or target.with_suffix(".cells"))
    store.open()
    rows, state = _run(sweep, store.folder, executor, target)
    made = {"results": str(target), **_outcome(sweep, rows, state), "executor": where}
    _print(made, rows, sweep, as_json=output_format is options.TableOrJson.json)
    if made["by_status"]["failed"]:
        say("failed cells are not kept: the same command asks them again")
        raise typer.Exit(FAILURES)


def _check_target(target: Path, *, force: bool) -> None:
    """Raise InputError unless the results can be written; those of a sweep are replaced."""
    from planner.errors import InputError
    from planner.report.files import check_writable
    from planner.sweep.results import read_results

    check_writable(target, force=True, option="--out")
    if force or not target.exists():
        return
    try:
        read_results(target)
    except InputError:
        message = "exists and is no result of a sweep; --force replaces it"
        raise InputError.single(str(target), "--out", message) from None


def _executor(
    workers: int | None, ray: str | None, num_cells: int
) -> "tuple[Callable[[Iterable[Task]], Answers], str]":
    """Who answers, and who that is in words; raises InputError where nobody can."""
    from functools import partial

    from planner.cli.sweep_cell import answer
    from planner.sweep.on_ray import check_ray, on_ray
    from planner.sweep.processes import here, num_cores, on_processes

    if ray is not None:
        check_ray(ray)
        return partial(on_ray, answer=answer, address=ray), f"Ray at {ray}"
    count = min(workers or num_cores(), num_cells)
    said = f"{count} worker{'s' * (count > 1)}"
    if count == 1:
        return partial(here, answer=answer), said
    return partial(on_processes, answer=answer, workers=count), said


def _run(
    sweep: "Sweep",
    folder: Path,
    executor: "Callable[[Iterable[Task]], Answers]",
    target: Path,
) -> "tuple[Sequence[Row], Progressing]":
    """Ask what is not known, write the results, and return their rows."""
    from planner.cli.sweep_cell import columns, key_of
    from planner.report.files import write_atomically
    from planner.sweep.results import parquet
    from planner.sweep.run import run as ask
    from planner.sweep.store import Store

    try:
        with _shown_progress() as progress:
            found, keys, state = ask(
                sweep, Store(folder=folder), lambda cell: key_of(cell.question), executor, progress
            )
    except KeyboardInterrupt:
        say(f"what is answered is kept in {folder}; the same command goes on from there")
        raise
    write_atomically(target, parquet(sweep, keys, found, columns()), option="--out")
    return [found[key] for key in keys], state


@contextmanager
def _shown_progress() -> "Iterator[Progress]":
    """A bar in a terminal, else a line now and then."""
    from planner.cli.progress import delayed_progress

    said_s = 0.0
    with delayed_progress() as bar:

        def shown(state: "Progressing") -> None:
            nonlocal said_s
            done = state.known + state.answered
            text = f"{done:,} of {state.known + state.asked:,} cells, {state.cells_per_s:.2f} cells/s"
            bar(text, done / max(1, state.known + state.asked))
            if not sys.stderr.isatty() and state.seconds - said_s >= LINE_S:
                said_s = state.seconds
                say(text)

        yield shown


def _outcome(sweep: "Sweep", rows: "Sequence[Row]", state: "Progressing") -> dict[str, Any]:
    from planner.report.sweep import outcome

    return outcome(sweep, rows, state)


def _print(
    made: Mapping[str, Any], rows: "Sequence[Row]", sweep: "Sweep", *, as_json: bool
) -> None:
    from planner.cli.output import console
    from planner.report.sweep import print_outcome, render_outcome

    if as_json:
        typer.echo(render_outcome(made))
        return
    print_outcome(made, rows, sweep.size, console())
    typer.echo(f"Next: planner sweep show {made['results']}")


@sweep_app.command("show")
def show(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Parquet file written by `planner sweep`.")
    ],
    best: Annotated[
        str, typer.Option(help="What the best are by: time, days, cost, energy, gpu-hours or mfu.")
    ] = "time",
    where: Annotated[
        str,
        typer.Option(metavar="CONDITION", help="In SQL on columns: \"gpus <= 64 and tp = 8\"."),
    ] = "",
    under: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="At most so much: days=30; repeatable."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(help="Columns of what does not compete, or none [model, length, tokens]."),
    ] = None,
    changes: Annotated[
        str | None, typer.Option(metavar="OPTION", help="Show where the best changes along this.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Cells to show of each.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write into this file.")] = None,
    force: options.Force = False,
    output_format: Annotated[
        Shown, typer.Option("--format", help="Output format.")
    ] = Shown.table,
) -> None:
    """Show the best cells of a result, and where along an option the best changes."""
    from planner.cli.output import console
    from planner.report.files import check_writable
    from planner.report.sweep import print_show, render_show_csv, render_show_json, show_rows
    from planner.sweep.results import read_results
    from planner.sweep.winners import best_of, changes_of, plans_of

    if out is not None:
        check_writable(out, force=force, option="--out")
    found = read_results(results)
    asked, along = _read_show(found, best, where, under or [], per, changes, top)
    rows = plans_of(found, asked)
    if not rows:
        raise _nothing_left(found)
    shown = best_of(found, asked, rows)
    changing = changes_of(found, asked, rows, along) if along else None
    kept = [*(f"{column} <= {most:g}" for column, most in asked.under), *filter(None, [where])]
    if output_format is Shown.table and out is None:
        print_show(shown, changing, kept, found, console())
        return
    if output_format is Shown.html:
        text = _page(found, shown, changing, rows, kept)
    elif output_format is Shown.json:
        text = f"{render_show_json(shown, changing, kept, found)}\n"
    elif output_format is Shown.csv:
        text = render_show_csv(show_rows(shown, changing))
    else:
        text = _table_text(shown, changing, kept, found)
    _deliver(text, out)


def _read_show(
    found: Any,  # noqa: ANN401 - Results
    best: str,
    where: str,
    under: Sequence[str],
    per: str | None,
    changes: str | None,
    top: int,
) -> "tuple[Asked, str | None]":
    """What is asked of a result; raises InputError with every problem of it."""
    from planner.cli.collector import Collector
    from planner.sweep.winners import MEASURES, Asked, known_column

    collector = Collector()
    if best not in MEASURES:
        collector.add("--best", f"unknown; given {best!r}, allowed are {', '.join(MEASURES)}")
        best = "time"
    limits = [collector.read(lambda text=text: _limit(found, text)) for text in under]
    asked_per = None
    if per is not None:
        names = [name for name in per.split(",") if name.strip() and name.strip() != "none"]
        read = [
            collector.read(lambda name=name: known_column(found, name, "--per", found.frame.columns))
            for name in names
        ]
        asked_per = tuple(name for name in read if name)
    along = None
    if changes is not None:
        along = collector.read(
            lambda: known_column(found, changes, "--changes", found.varying or list(found.axes))
        )
    collector.finish()
    kept = tuple(each for each in limits if each)
    return Asked(best=best, where=where, under=kept, per=asked_per, top=top), along


def _limit(found: Any, text: str) -> tuple[str, float]:  # noqa: ANN401 - Results
    """A column and what it may be at most, of ``days=30``; raises InputError."""
    from planner.errors import InputError
    from planner.sweep.winners import known_column

    name, _, value = text.partition("=")
    numbers = [column for column, kind in found.frame.schema.items() if kind.is_numeric()]
    column = known_column(found, name, "--under", numbers)
    try:
        return column, float(value)
    except ValueError:
        message = f"must be COLUMN=NUMBER, such as days=30; given {text!r}"
        raise InputError.single("command line", "--under", message) from None


def _nothing_left(found: Any) -> Exception:  # noqa: ANN401 - Results
    from planner.errors import NothingFitsError

    plans = int((found.frame["status"] == "plan").sum())
    return NothingFitsError(f"no plan of {plans:,} in {found.path} keeps the conditions")


def _page(found: Any, shown: Any, changing: Any, rows: Any, kept: Sequence[str]) -> str:  # noqa: ANN401
    import shlex

    from planner.report.page.sweep import render_sweep_page
    from planner.report.plot import library

    library("matplotlib", "--format html")
    origin = shlex.join(["planner", *sys.argv[1:]])
    return render_sweep_page(found, shown, changing, rows, kept, origin)


def _table_text(shown: Any, changing: Any, kept: Sequence[str], found: Any) -> str:  # noqa: ANN401
    import io

    from planner.cli.output import PIPE_WIDTH
    from planner.report.screen import Screen
    from planner.report.sweep import print_show

    text = io.StringIO()
    screen = Screen(width=PIPE_WIDTH, file=text, highlight=False, emoji=False, markup=False)
    print_show(shown, changing, kept, found, screen)
    return text.getvalue()


def _deliver(text: str, out: Path | None) -> None:
    from planner.report.files import write_atomically

    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text, option="--out")
    say(f"wrote {out}")
