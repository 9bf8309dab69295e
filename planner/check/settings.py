"""Settings of a project: ``planner.toml``, or ``[tool.planner]`` in ``pyproject.toml``."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from planner.catalog.clusters import split_host_memory
from planner.catalog.figures import Strict, validate
from planner.errors import InputError, Problem
from planner.formats.format import Severity, read_source

OWN_FILE = "planner.toml"
PROJECT_FILE = "pyproject.toml"
_PATHS = ("model", "cluster")
Whole = Annotated[int, Field(ge=1, le=10**9)]


class Settings(Strict):
    """What a project says of its job; None: not said."""

    model: str | None = None
    cluster: str | None = None
    framework: str | None = None
    profile: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    gpus: Whole | None = None
    seq_len: Whole | None = None
    global_batch: Whole | None = None
    fail_on: Severity | None = Field(default=None, alias="fail-on")
    ignore: tuple[str, ...] = Field(default=(), strict=False)


def settings_for(path: Path) -> Settings:
    """The settings nearest upwards from a file, or else from the present folder.

    Raises InputError with every problem of the settings' file.
    """
    for start in (path.absolute().parent, Path.cwd()):
        for folder in (start, *start.parents):
            found = _settings_in(folder)
            if found is not None:
                return found
    return Settings()


def _settings_in(folder: Path) -> Settings | None:
    """Those of a folder; its own file comes before the project's."""
    for name in (OWN_FILE, PROJECT_FILE):
        file = folder / name
        if _exists(file):
            table = _table(file)
            if table is not None:
                return _validated(table, file)
    return None


def _table(file: Path) -> dict[str, Any] | None:
    """The keys; None where a project's file has no section of ours."""
    where = str(file)
    try:
        data = tomllib.loads(read_source(file).text)
    except tomllib.TOMLDecodeError as error:
        raise InputError.single(where, "file", f"not TOML: {error}") from None
    except (RecursionError, ValueError):
        message = "not TOML: nested too deeply, or a number of thousands of digits"
        raise InputError.single(where, "file", message) from None
    if file.name == OWN_FILE:
        return data
    tools = data.get("tool")
    section = tools.get("planner") if isinstance(tools, dict) else None
    if section is None or isinstance(section, dict):
        return section
    raise InputError.single(where, "tool.planner", "must be a table; given a value")


def _validated(table: dict[str, Any], file: Path) -> Settings:
    prefix = "" if file.name == OWN_FILE else "tool.planner."
    try:
        settings = validate(Settings, table, str(file))
    except InputError as error:
        raise InputError(
            Problem(where=one.where, key=f"{prefix}{one.key}", message=one.message)
            for one in error.problems
        ) from None
    return settings.model_copy(update=dict(_beside(settings, file.parent)))


def _beside(settings: Settings, folder: Path) -> Iterator[tuple[str, str]]:
    """Models and clusters that are files lie relative to the settings."""
    for name in _PATHS:
        argument = getattr(settings, name)
        if argument is not None and _exists(folder / split_host_memory(argument)[0]):
            yield name, str(folder / argument)


def _exists(path: Path) -> bool:
    """Whether a file or folder is there; one that cannot be looked at, or be at all, is not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
