"""Files that appear whole or not at all, and replace others only where that was asked for."""

import os
import tempfile
from pathlib import Path

from planner.errors import InputError

WRITE_ERRORS = (OSError, RuntimeError, ValueError)
"""Of the system, of links that lead in a circle, of a NUL or what is no UTF-8 in a path."""


def check_writable(path: Path, *, force: bool, option: str = "--save") -> None:
    """Raise InputError when ``path`` cannot be written, before any long work starts."""
    try:
        path.resolve()
    except WRITE_ERRORS as error:
        raise InputError.single(str(path), option, f"cannot be written: {error}") from None
    if path.exists() and not force:
        raise InputError.single(str(path), option, "exists already; use --force to replace it")
    if path.exists() and not path.is_file():
        message = "is no regular file (a folder or a device); a file name is needed"
        raise InputError.single(str(path), option, message)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError.single(
            str(path), option, f"cannot be written: {path.parent} is no writable folder"
        )


def write_atomically(
    path: Path, content: str | bytes, *, option: str = "--save", mode: int = 0o644
) -> None:
    """Write to a temporary file beside ``path``, then rename it into place; links are followed."""
    temporary = None
    try:
        path = path.resolve()
        data = content.encode() if isinstance(content, str) else content
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".planner-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except WRITE_ERRORS as error:
        raise InputError.single(str(path), option, f"cannot be written: {error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
