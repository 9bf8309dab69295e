"""Output of commands besides their answers: the console, notes, progress, the next command."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from planner.documents.file import write_atomically
from planner.errors import InputError
from planner.limits import printable

if TYPE_CHECKING:
    from rich.console import Console

    from planner.report.document import Shown
    from planner.search.search import Progress


def console() -> "Console":
    """Return a console on standard output: wide in a pipe without COLUMNS, never below 80."""
    from planner.report.table import Screen

    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    screen = Screen(width=160 if is_free else None, highlight=False, emoji=False, markup=False)
    screen.width = max(screen.width, 80)
    return screen


def show_as(form: str, shown: "Shown | None") -> None:
    """Print an answer in the form asked for, and do what follows; exits with its code."""
    if shown is None:
        return
    forms = {"json": lambda: f"{shown.to_json()}\n", **shown.forms}
    if form not in forms:
        shown.screen(shown.found, console=console())
    elif shown.out is None:
        typer.echo(forms[form](), nl=False)
    else:
        write_atomically(shown.out, forms[form](), option="--out")
        say(f"wrote {shown.out}")
    shown.after()
    if shown.exit_code:
        raise typer.Exit(shown.exit_code)


def fail(option: str, message: str) -> NoReturn:
    """Raise InputError about an option."""
    raise InputError.single("command line", option, message)


def say(*lines: str) -> None:
    """Write lines to standard error; what files or paths hide in them stands escaped."""
    for text in lines:
        typer.echo(printable(text), err=True)


@contextmanager
def delayed_progress() -> "Iterator[Progress]":
    """Yield a progress callback, which rank 0 alone shows, on terminals, after a second."""
    if not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        yield lambda _message, _fraction: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from planner.report.table import Screen

    text = TextColumn("{task.description}", markup=False)
    bar = Bar(text, BarColumn(), TimeElapsedColumn(), console=Screen(stderr=True), transient=True)
    task = bar.add_task("starting", total=1.0)
    timer = threading.Timer(1.0, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda message, fraction: bar.update(task, description=message, completed=fraction)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
