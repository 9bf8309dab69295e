"""The console results are written to."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
MIN_WIDTH = 80


def console() -> "Console":
    """Return a console on standard output: wide in a pipe without COLUMNS, never below 80."""
    import sys

    from rich.console import Console

    width = None
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = PIPE_WIDTH
    screen = Console(width=width, highlight=False, emoji=False)
    screen.width = max(screen.width, MIN_WIDTH)
    return screen
