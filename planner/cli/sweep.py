"""``planner sweep``: many questions at once, and what their answers say together."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from planner.cli import options
from planner.cli.output import say
from planner.cli.sweep_show import show

if TYPE_CHECKING:
    from planner.sweep.cells import Answers, Row, Sweep, Task
    from planner.sweep.run import Progress, Progressing

MAX_CELLS = 20_000
LINE_S = 30.0
"""Between lines about how far a run is, where no terminal shows a bar."""
FAILURES = 1
"""Exit code where cells failed that may be asked again."""


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
            text = (
                f"{done:,} of {state.known + state.asked:,} cells, {state.cells_per_s:.2f} cells/s"
            )
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


sweep_app.command("show")(show)
