"""Reads a configuration file: its text, and the name it was given by."""

from pathlib import Path

from planner.documents.file import read_text
from planner.formats.format import SourceText


def read_source(path: Path | str) -> SourceText:
    """Return the file's text without a byte-order mark, line ends as they are.

    Raises InputError where it cannot be read as text.
    """
    return SourceText(path=str(path), text=read_text(path))
