"""The object a JSON file holds, or one clear error: nothing huge, endless or ambiguous is read."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError

MAX_BYTES = 4 * 2**20
"""A hundred times the largest config.json with a label per class."""
MAX_DEPTH = 32
NAME = "config.json"


class _RepeatedKeyError(ValueError):
    """A key that stands twice in one object."""


def config_path(path: Path) -> Path:
    """Return the file meant: of a folder, the config.json in it."""
    try:
        return path / NAME if path.is_dir() else path
    except (OSError, ValueError):
        return path


def load_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; what cannot be read raises ``file::line N: ...``."""
    where = str(path)
    try:
        text = _read(path)
    except FileNotFoundError:
        raise InputError.single(where, "file", _missing(path)) from None
    except (OSError, ValueError) as error:
        raise InputError.single(where, "file", f"cannot be read as text: {error}") from None
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}, column {error.colno}"
        raise InputError.single(where, f"line {error.lineno}", message) from None
    except _RepeatedKeyError as error:
        raise InputError.single(where, "file", str(error)) from None
    except ValueError:
        raise InputError.single(where, "file", "holds a number of thousands of digits") from None
    except RecursionError:
        data = None
    if data is None or _depth(data) > MAX_DEPTH:
        message = f"must be an object of at most {MAX_DEPTH} levels"
        raise InputError.single(where, "file", message)
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise InputError.single(where, "line 1", f"must be an object of keys, is a {kind}")
    return data


def _missing(path: Path) -> str:
    if path.name == NAME and path.parent.is_dir():
        return f"no such file; the folder {path.parent} holds no {NAME}"
    return "no such file"


def _read(path: Path) -> str:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > MAX_BYTES:
        raise OSError(f"{status.st_size:,} bytes are too many, allowed are {MAX_BYTES:,}")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1).decode("utf-8-sig")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(f"key {key[:60]!r} is given twice in one object")
        found[key] = value
    return found


def _depth(data: object) -> int:
    """Levels of objects and lists, without recursion."""
    depth, level = 0, [data]
    while level and depth <= MAX_DEPTH:
        inner: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        depth, level = depth + bool(inner), inner
    return depth
