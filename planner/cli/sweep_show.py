"""``planner sweep show``: what the answers of a sweep say together."""

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.sweep.winners import Asked


class Shown(StrEnum):
    """Forms of what a result says."""

    table = "table"
    csv = "csv"
    json = "json"


def show(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Parquet file written by `planner sweep`.")
    ],
    best: Annotated[
        str, typer.Option(help="What the best are by: time, days, cost, energy, gpu-hours or mfu.")
    ] = "time",
    where: Annotated[
        str,
        typer.Option(metavar="CONDITION", help='In SQL on columns: "gpus <= 64 and tp = 8".'),
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
    output_format: Annotated[Shown, typer.Option("--format", help="Output format.")] = Shown.table,
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
        print_show(shown, changing, kept, console())
        return
    if output_format is Shown.json:
        text = f"{render_show_json(shown, changing, kept, found)}\n"
    elif output_format is Shown.csv:
        text = render_show_csv(show_rows(shown, changing))
    else:
        text = _table_text(shown, changing, kept)
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
    from functools import partial

    from planner.notes import Problems
    from planner.sweep.winners import MEASURES, Asked, known_column

    problems = Problems()
    if best not in MEASURES:
        problems.add("--best", f"unknown; given {best!r}, allowed are {', '.join(MEASURES)}")
        best = "time"
    columns = found.frame.columns
    limits = [problems.read(partial(_limit, found, text)) for text in under]
    names = [name for name in (per or "").split(",") if name.strip() not in ("", "none")]
    read = [problems.read(partial(known_column, found, name, "--per", columns)) for name in names]
    along = None
    if changes is not None:
        walked = found.varying or list(found.axes)
        along = problems.read(partial(known_column, found, changes, "--changes", walked))
    problems.finish()
    return Asked(
        best=best,
        where=where,
        under=tuple(each for each in limits if each),
        per=None if per is None else tuple(name for name in read if name),
        top=top,
    ), along


def _limit(found: Any, text: str) -> tuple[str, float]:  # noqa: ANN401 - Results
    """A column and what it may be at most, of ``days=30``; raises InputError."""
    from planner.errors import InputError
    from planner.sweep.winners import known_column

    name, _, value = text.partition("=")
    numbers = [column for column, kind in found.frame.schema.items() if kind.is_numeric()]
    column = known_column(found, name, "--under", numbers)
    try:
        most = float(value)
    except ValueError:
        most = math.nan
    if math.isnan(most):
        message = f"must be COLUMN=NUMBER, such as days=30; given {text!r}"
        raise InputError.single("command line", "--under", message)
    return column, most


def _nothing_left(found: Any) -> Exception:  # noqa: ANN401 - Results
    from planner.errors import NothingFitsError

    plans = int((found.frame["status"] == "plan").sum())
    return NothingFitsError(f"no plan of {plans:,} in {found.path} keeps the conditions")


def _table_text(shown: Any, changing: Any, kept: Sequence[str]) -> str:  # noqa: ANN401
    import io

    from planner.cli.output import PIPE_WIDTH
    from planner.report.sweep import print_show
    from planner.report.table import Screen

    text = io.StringIO()
    screen = Screen(width=PIPE_WIDTH, file=text, highlight=False, emoji=False, markup=False)
    print_show(shown, changing, kept, screen)
    return text.getvalue()


def _deliver(text: str, out: Path | None) -> None:
    from planner.report.files import write_atomically

    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text, option="--out")
    say(f"wrote {out}")
