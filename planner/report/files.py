"""Files that appear whole or not at all, and replace others only where that was asked for."""

import os
import tempfile
from pathlib import Path

from planner.errors import InputError


def check_writable(path: Path, *, force: bool, option: str = "--save") -> None:
    """Raise InputError when ``path`` cannot be written, before any long work starts."""
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
    path = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as error:
        raise InputError.single(str(path), option, f"cannot be written: {error}") from error
