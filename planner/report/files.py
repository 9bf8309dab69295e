"""Files that appear whole or not at all, and replace others only where that was asked for."""

import os
import stat
import tempfile
from contextlib import suppress
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


def check_replaceable(path: Path, *, option: str) -> None:
    """Raise InputError for a file that is not to be edited, or that replacing would part."""
    check_writable(path, force=True, option=option)
    status = path.stat()
    if not status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise InputError.single(str(path), option, "is read-only; allowed are files to write to")
    if status.st_nlink > 1:
        message = f"has {status.st_nlink} names (hard links), of which replacing it changes one"
        raise InputError.single(str(path), option, f"{message}; write beside it with --out")


def write_atomically(
    path: Path, content: str | bytes, *, option: str = "--save", like: Path | None = None
) -> None:
    """Write to a temporary file beside ``path``, then rename it into place; links are followed.

    With permissions, and as far as allowed the owner, of the file that it is to be ``like``.
    """
    temporary = None
    try:
        path = path.resolve()
        data = content.encode() if isinstance(content, str) else content
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".planner-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        status = like.stat() if like else None
        if status is not None:
            with suppress(PermissionError):
                os.chown(temporary, status.st_uid, status.st_gid)
        Path(temporary).chmod(stat.S_IMODE(status.st_mode) if status else 0o644)
        Path(temporary).replace(path)
    except WRITE_ERRORS as error:
        raise InputError.single(str(path), option, f"cannot be written: {error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
