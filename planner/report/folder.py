"""A folder of files that appear together or not at all, and never outside the folder."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from planner.errors import InputError, Problem
from planner.formats.format import OutputFile
from planner.report.files import WRITE_ERRORS

OPTION = "--out"


def check_folder(folder: Path) -> None:
    """Raise InputError when ``folder`` cannot be one to write into, before any long work."""
    try:
        folder.resolve()
    except WRITE_ERRORS as error:
        raise InputError.single(str(folder), OPTION, f"cannot be written: {error}") from None
    if folder.exists() and not folder.is_dir():
        raise InputError.single(str(folder), OPTION, "is no folder; a folder is needed")


def _check_name(name: str) -> None:
    """A defect of whoever made the name: it leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} does not lie inside the output folder")


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _problem(folder: Path, target: Path, *, force: bool) -> str | None:
    """Why a file cannot be written, or None."""
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        return f"lies outside {folder} because of a link; nothing is written there"
    for above in target.relative_to(folder).parents:
        if _exists(folder / above) and not (folder / above).is_dir():
            return f"{folder / above} is no folder"
    if not _exists(target):
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
        _check_name(name)
    if len(set(names)) != len(names):
        raise ValueError(f"two files have one name: {', '.join(sorted(names))}")
    found = [
        (target, _problem(folder, target, force=force)) for target in map(folder.joinpath, names)
    ]
    problems = [
        Problem(where=str(target), key=OPTION, message=message)
        for target, message in found
        if message
    ]
    if problems:
        raise InputError(problems)


def _others(folder: Path, pattern: str, files: Sequence[OutputFile]) -> list[str]:
    """Regular files of the pattern in the folder that are none of those to be written."""
    own = {file.name for file in files}
    found = folder.glob(pattern) if pattern and folder.is_dir() else ()
    return sorted(path.name for path in found if path.is_file() and path.name not in own)


def _move(
    staged: Path, kept: Path, folder: Path, files: Sequence[OutputFile], gone: Sequence[str]
) -> None:
    """Rename the staged files into place, and out of it what goes; on failure put all back."""
    done: list[str] = []
    try:
        for name in gone:
            kept.mkdir(parents=True, exist_ok=True)
            done.append(name)
            (folder / name).replace(kept / name)
        for name in (file.name for file in files):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if _exists(target):
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                target.replace(kept / name)
            done.append(name)
            (staged / name).replace(target)
    except OSError:
        for name in reversed(done):
            if name not in gone:
                (folder / name).unlink(missing_ok=True)
            if _exists(kept / name):
                (kept / name).replace(folder / name)
        raise


def _stage(staged: Path, files: Sequence[OutputFile]) -> None:
    for file in files:
        path = staged / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.is_executable else 0o644)


def _create(folder: Path) -> list[Path]:
    """Make the folder; return what had to be made, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def write_folder(
    folder: Path, files: Sequence[OutputFile], *, force: bool, replaces: str = ""
) -> None:
    """Write all files or none; raises InputError with every file that is in the way.

    Files of the pattern ``replaces`` belong to what was there before, and go with it.
    """
    gone = _others(folder, replaces, files)
    check_targets(folder, [*(file.name for file in files), *gone], force=force)
    made: list[Path] = []
    try:
        made = _create(folder)
        work = Path(tempfile.mkdtemp(dir=folder, prefix=".planner-"))
        try:
            _stage(work / "new", files)
            _move(work / "new", work / "old", folder, files, gone)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except WRITE_ERRORS as error:
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
        raise InputError.single(str(folder), OPTION, f"cannot be written: {error}") from error
