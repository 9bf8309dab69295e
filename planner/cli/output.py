"""Where results and notes are written to."""

import os
from typing import TYPE_CHECKING

import typer

from planner.limits import printable

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
MIN_WIDTH = 80


def console() -> "Console":
    """Return a console on standard output: wide in a pipe without COLUMNS, never below 80."""
    import sys

    from planner.report.table import Screen

    width = None
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = PIPE_WIDTH
    screen = Screen(width=width, highlight=False, emoji=False, markup=False)
    screen.width = max(screen.width, MIN_WIDTH)
    return screen


def say(text: str) -> None:
    """Write a line to standard error; what files or paths hide in it stands escaped."""
    typer.echo(printable(text), err=True)
