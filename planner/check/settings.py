"""Settings of a project: ``planner.toml``, or ``[tool.planner]`` in ``pyproject.toml``."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from planner.catalog.figures import Strict, validate
from planner.documents.file import is_file, is_folder
from planner.errors import InputError
from planner.formats.format import Severity, read_source
from planner.limits import MAX_BATCH
from planner.query.options import OPTIONS

OWN_FILE = "planner.toml"


def _as_option(name: str) -> BeforeValidator:
    """A value as the option of this name takes it: ``8k`` tokens, in its range."""
    option = OPTIONS[name]

    def read(given: object) -> object:
        value = option.read(given)
        option.check(value)
        return value

    return BeforeValidator(read)


class Settings(Strict):
    """Settings of a project for its job; None: not set."""

    model: str | None = None
    cluster: str | None = None
    framework: str | None = None
    profile: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    gpus: Annotated[int | None, Field(ge=1, le=MAX_BATCH)] = None
    seq_len: Annotated[int | None, _as_option("seq_len")] = None
    global_batch: Annotated[int | None, _as_option("global_batch")] = None
    fail_on: Severity | None = Field(default=None, alias="fail-on")
    ignore: tuple[str, ...] = Field(default=(), strict=False)


class _Tool(Strict):
    planner: Settings


class _Project(Strict):
    """Part of a project's file that belongs to the planner: problems name its keys in full."""

    tool: _Tool


def settings_for(path: Path) -> Settings:
    """The settings nearest upwards from a file, else from the present folder; raises InputError."""
    for start in (path.absolute().parent, Path.cwd()):
        for folder in (start, *start.parents):
            for name in (OWN_FILE, "pyproject.toml"):
                settings = _read(folder / name) if is_file(folder / name) else None
                if settings is not None:
                    return settings.model_copy(update=dict(_beside(settings, folder)))
    return Settings()


def _read(file: Path) -> Settings | None:
    """The settings of a file; None where a project's has no section of ours."""
    where = str(file)
    try:
        data = tomllib.loads(read_source(file).text)
    except tomllib.TOMLDecodeError as error:
        raise InputError.single(where, "file", f"not TOML: {error}") from None
    except (RecursionError, ValueError):
        raise InputError.single(
            where, "file", "not TOML: nested too deeply, or a number of thousands of digits"
        ) from None
    if file.name == OWN_FILE:
        return validate(Settings, data, where)
    tool = data.get("tool")
    if not isinstance(tool, dict) or "planner" not in tool:
        return None
    return validate(_Project, {"tool": {"planner": tool["planner"]}}, where).tool.planner


def _beside(settings: Settings, folder: Path) -> Iterator[tuple[str, str]]:
    """Models and clusters that are files lie relative to the settings."""
    from planner.catalog.clusters import split_host_memory

    for name in ("model", "cluster"):
        argument = getattr(settings, name)
        path = folder / split_host_memory(argument or "")[0]
        if argument is not None and (is_file(path) or is_folder(path)):
            yield name, str(folder / argument)
