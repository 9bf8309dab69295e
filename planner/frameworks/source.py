"""Reads a configuration file as text: bounded, regular, UTF-8, or one error with its line."""

import os
import stat
from pathlib import Path

from planner.errors import InputError
from planner.frameworks.format import SourceText

MAX_BYTES = 8 * 2**20
"""A thousand times the longest launch script seen."""
_BOM = "\ufeff"


def read_source(path: Path | str) -> SourceText:
    """Return the file's text without a byte-order mark, line ends as they are.

    Raises InputError where there is no such file, it is no regular file or too large, its links
    lead in a circle, or it is not UTF-8 text; what has a line names it.
    """
    try:
        data = _bytes_of(path)
    except FileNotFoundError:
        raise InputError.single(str(path), "file", "no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError.single(str(path), "file", f"cannot be read: {reason}") from None
    return SourceText(path=str(path), text=_text_of(data, str(path)).removeprefix(_BOM))


def _bytes_of(path: Path | str) -> bytes:
    """The content; opening waits for no writer of a named pipe."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{_kind(status.st_mode)}; a regular file is needed")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise OSError(f"{status.st_size:,} bytes are too many; allowed are {MAX_BYTES:,}")
    return data


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _text_of(data: bytes, where: str) -> str:
    nul = data.find(b"\0")
    if nul >= 0:
        message = "is no text file: it holds a NUL byte"
        raise InputError.single(where, _line(data, nul), message)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
        raise InputError.single(where, _line(data, error.start), message) from None


def _line(data: bytes, position: int) -> str:
    number = data[:position].count(b"\n") + 1
    return f"line {number}"
