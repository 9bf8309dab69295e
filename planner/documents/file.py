"""Reads a file as text: bounded, regular, UTF-8, or one error with its line; writes one whole."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from planner.errors import InputError
from planner.limits import MAX_FILE_BYTES

# Among changes of a document, in the place of a value: the key goes.
REMOVED: Final = object()
# Of the system, of links that lead in a circle, of a NUL or what is no UTF-8 in a path.
WRITE_ERRORS = (OSError, RuntimeError, ValueError)


def is_file(path: Path | str) -> bool:
    """Return True if there is such a file; False for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for names too long


def is_folder(path: Path | str) -> bool:
    """Return True if there is such a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def read_text(
    path: Path | str,
    max_bytes: int = MAX_FILE_BYTES,
    errors: Literal["strict", "replace"] = "strict",
) -> str:
    """Return the file's text without a byte-order mark, line ends as they are.

    Raises InputError where there is no such file, it is no regular file or too large, its links
    lead in a circle, or it is not UTF-8 text; what has a line names it. ``errors``: bytes that are
    no text are replaced in what several processes printed, which cut each other's characters.
    """
    data, where = read_bytes(path, max_bytes), str(path)
    nul = data.find(b"\0")
    if nul >= 0:
        message = "is no text file: it holds a NUL byte"
        raise InputError.single(where, _line(data, nul), message)
    try:
        return data.decode("utf-8", errors).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
        raise InputError.single(where, _line(data, error.start), message) from None


def read_bytes(path: Path | str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return what a regular file holds; raises InputError where it is none, or too large."""
    try:
        return _bytes_of(path, max_bytes)
    except FileNotFoundError:
        raise InputError.single(str(path), "file", "no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError.single(str(path), "file", f"cannot be read: {reason}") from None


def _bytes_of(path: Path | str, max_bytes: int) -> bytes:
    """The content; opening waits for no writer of a named pipe."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe"}
            kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
            raise OSError(f"{kind}; a regular file is needed")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise OSError(f"{status.st_size:,} bytes are too many; allowed are {max_bytes:,}")
    return data


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


def _line(data: bytes, position: int) -> str:
    return "line " + str(data.count(b"\n", 0, position) + 1)
