"""Files that a file names: beside it or where it is run from, never outside, never fetched."""

from pathlib import Path

from planner.documents.file import is_file
from planner.errors import InputError
from planner.formats.format import SourceText, Value, read_source

MAX_LENGTH = 1000
ABOVE = 6
"""Folders above a file from which its program may have been started."""
MARKS = (".git", "pyproject.toml", "setup.py")
"""The folder that has one of them is the outermost one."""


class OutsideError(InputError):
    """A file that is not to be read: it lies outside."""


def folders_of(path: str) -> list[Path]:
    """Where a name in a file may start: in its folder and above, up to the project's or present."""
    own, here = Path(path).absolute().parent, Path.cwd()
    above = [own, *own.parents][:ABOVE]
    for number, folder in enumerate(above, 1):
        if folder == here or any((folder / mark).exists() for mark in MARKS):
            return above[:number]
    return above[:1]


def source_named(path: str, name: Value) -> SourceText:
    """The file that a value names; InputError with its line where there is none.

    OutsideError where the name leads out of the folders that belong to the file.
    """
    where, text = f"line {name.line}" if name.line else name.key, str(name.value)
    if len(text) > MAX_LENGTH or "\0" in text or "\n" in text:
        raise InputError.single(path, where, "a name of a file is needed")
    folders = folders_of(path)
    for folder in folders:
        found = folder / text
        if not is_file(found):
            continue
        outermost = folders[-1].resolve()
        if Path(text).is_absolute() or not found.resolve().is_relative_to(outermost):
            break
        if found.resolve() == Path(path).resolve():
            raise InputError.single(path, where, f"{name.key} names the file itself")
        return read_source(_shown(found))
    if Path(text).is_absolute() or ".." in Path(text).parts:
        message = f"{name.key} names {text[:80]}, which lies outside {folders[-1].name or '/'}"
        raise OutsideError.single(path, where, f"{message} and is not read")
    looked = f"looked in {_shown(folders[0])}" + " and above" * (len(folders) > 1)
    message = f"{name.key} names {text[:80]}, which is not there; {looked}"
    raise InputError.single(path, where, message)


def _shown(path: Path) -> str:
    """From the present folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
