"""Writing results: consoles, files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError

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


def check_writable(path: Path, *, force: bool) -> None:
    """Raise InputError when ``path`` cannot be written, before any long work starts."""
    if path.exists() and not force:
        raise InputError.single(str(path), "--save", "exists already; use --force to replace it")
    if path.exists() and not path.is_file():
        message = "is no regular file (a folder or a device); a file name is needed"
        raise InputError.single(str(path), "--save", message)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError.single(
            str(path), "--save", f"cannot be written: {path.parent} is no writable folder"
        )


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary file beside ``path``, then rename it into place; links are followed."""
    path = path.resolve()
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise InputError.single(str(path), "--save", f"cannot be written: {error}") from error
