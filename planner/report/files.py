"""Files and folders of them that appear whole or not at all, never outside their folder.

They replace others only where that was asked for.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from planner.documents.file import WRITE_ERRORS
from planner.errors import InputError, Problem

if TYPE_CHECKING:
    from planner.formats.format import OutputFile

OPTION = "--out"  # that names a folder


def _check_path(path: Path, option: str) -> None:
    try:
        path.resolve()
    except WRITE_ERRORS as error:
        raise InputError.single(str(path), option, f"cannot be written: {error}") from None


def check_writable(path: Path, *, force: bool, option: str = "--save") -> None:
    """Raise InputError when ``path`` cannot be written, before any long work starts."""
    _check_path(path, option)
    if path.exists() and not force:
        raise InputError.single(str(path), option, "exists already; use --force to replace it")
    if path.exists() and not path.is_file():
        message = "is no regular file (a folder or a device); a file name is needed"
        raise InputError.single(str(path), option, message)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError.single(
            str(path), option, f"cannot be written: {path.parent} is no writable folder"
        )


def check_yaml(path: Path | None, *, force: bool) -> None:
    """Raise InputError where a cluster file cannot be written, or is named as none."""
    if path is None:
        return
    if path.suffix not in (".yaml", ".yml") or not path.name.isprintable():
        message = f"must be a name that ends in .yaml; given {str(path)!r}"
        raise InputError.single("command line", OPTION, message)
    check_writable(path, force=force, option=OPTION)


def check_replaceable(path: Path, *, option: str) -> None:
    """Raise InputError for a file that is not to be edited, or that replacing would part."""
    check_writable(path, force=True, option=option)
    status = path.stat()
    if not status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise InputError.single(str(path), option, "is read-only; allowed are files to write to")
    if status.st_nlink > 1:
        message = f"has {status.st_nlink} names (hard links), of which replacing it changes one"
        raise InputError.single(str(path), option, f"{message}; write beside it with --out")


def check_folder(folder: Path) -> None:
    """Raise InputError when ``folder`` cannot be one to write into, before any long work."""
    _check_path(folder, OPTION)
    if folder.exists() and not folder.is_dir():
        raise InputError.single(str(folder), OPTION, "is no folder; a folder is needed")


def _problem(folder: Path, target: Path, *, force: bool) -> str | None:
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        return f"lies outside {folder} because of a link; nothing is written there"
    for above in target.relative_to(folder).parents:
        if os.path.lexists(folder / above) and not (folder / above).is_dir():
            return f"{folder / above} is no folder"
    if not os.path.lexists(target):
        return None
    if not force:
        return "exists already; use --force to replace it"
    if not target.is_symlink() and not target.is_file():
        return "is no regular file (a folder or a device) and is not replaced"
    return None


def check_targets(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """Raise one InputError for all files that cannot be written."""
    check_folder(folder)
    for name in names:
        path = PurePosixPath(name)
        is_inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        if not is_inside or "\\" in name or "\0" in name:
            raise ValueError(f"{name!r} does not lie inside the output folder")
    if len(set(names)) != len(names):
        raise ValueError(f"two files have one name: {', '.join(sorted(names))}")
    InputError.check(
        Problem(where=str(target), key=OPTION, message=message)
        for target in map(folder.joinpath, names)
        if (message := _problem(folder, target, force=force))
    )


def _move(moves: Iterable[tuple[Path, Path]]) -> None:
    """Rename all files, or none: on failure put back what was renamed."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            target.replace(source)
        raise


def write_folder(
    folder: Path, files: "Sequence[OutputFile]", *, force: bool, replaces: str = ""
) -> None:
    """Write all or none, in place of what matches ``replaces``; InputError with all in the way."""
    names = [file.name for file in files]
    found = folder.glob(replaces) if replaces and folder.is_dir() else ()
    gone = sorted({path.name for path in found if path.is_file()} - set(names))
    check_targets(folder, [*names, *gone], force=force)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    work = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder, prefix=".planner-"))
        for file in files:
            staged = work / "new" / file.name
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(file.content)
            staged.chmod(0o755 if file.is_executable else 0o644)
        old = [name for name in (*names, *gone) if os.path.lexists(folder / name)]
        away = [(folder / name, work / "old" / name) for name in old]
        new = ((work / "new" / name, folder / name) for name in names)
        _move([*away, *new])
    except WRITE_ERRORS as error:
        # Innermost first: a folder that was there already stays.
        for path in missing:
            shutil.rmtree(path, ignore_errors=True)
        raise InputError.single(str(folder), OPTION, f"cannot be written: {error}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
