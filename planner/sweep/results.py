"""The result of a sweep: a table in Parquet, a row per cell in the order of the file.

Polars is optional (``pip install 'parallel-planner[sweep]'``) and is loaded only here.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.sweep.cells import Axis, Row, Sweep, Value

COUNTS = ("status", "reason", "command", "key")
"""Columns that every result has."""
ASKED = "asked_"
"""In front of an option whose name a column of plans has."""
MARK = "planner.sweep"
"""Key of the file's own metadata that holds the axes."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A result that was read."""

    path: str
    axes: Mapping[str, tuple[Value, ...]]
    """Values by column, in the order of the file."""
    frame: Any
    """The table, a DataFrame of polars."""

    @property
    def varying(self) -> list[str]:
        """Columns of the options with several values."""
        return [name for name, values in self.axes.items() if len(values) > 1]


def polars(option: str) -> Any:  # noqa: ANN401 - a module that need not be there
    """The library; InputError says what needs it, and how to install it."""
    try:
        return import_module("polars")
    except ImportError as error:
        message = "polars is not installed; pip install 'parallel-planner[sweep]'"
        raise InputError.single("command line", option, message) from error


def columns_of(axes: Sequence[Axis], taken: Sequence[str]) -> list[str]:
    """The column of every axis."""
    names = [axis.name.replace("-", "_") for axis in axes]
    return [f"{ASKED}{name}" if name in taken else name for name in names]


def parquet(sweep: Sweep, keys: Sequence[str], found: Mapping[str, Row], columns: Row) -> bytes:
    """The table as a file: the same cells and answers are the same bytes.

    ``columns`` are those of plans with a value of the type of each.
    """
    library = polars("sweep")
    asked = columns_of(sweep.axes, [*columns, *COUNTS])
    kinds = {type(each): kind for each, kind in _kinds(library).items()}
    rows = [
        {
            **dict(zip(asked, cell.values, strict=True)),
            **{name: found[key].get(name) for name in columns},
            "status": found[key]["status"],
            "reason": found[key]["reason"],
            "command": cell.command,
            "key": key,
        }
        for cell, key in zip(sweep.cells(), keys, strict=True)
    ]
    schema = {
        **dict.fromkeys(COUNTS[:2], library.String),
        **{name: kinds[_kind(axis.values)] for name, axis in zip(asked, sweep.axes, strict=True)},
        **{name: kinds[type(example)] for name, example in columns.items()},
        **dict.fromkeys(COUNTS[2:], library.String),
    }
    axes = {name: axis.values for name, axis in zip(asked, sweep.axes, strict=True)}
    made = io.BytesIO()
    library.DataFrame(rows, schema=schema).write_parquet(made, metadata={MARK: json.dumps(axes)})
    return made.getvalue()


def _kinds(library: Any) -> dict[Any, Any]:  # noqa: ANN401
    return {"": library.String, 0: library.Int64, 0.5: library.Float64, True: library.Boolean}


def _kind(values: Sequence[Value]) -> type:
    """What the values of an axis have in common."""
    kinds = {type(each) for each in values if each is not None}
    return kinds.pop() if len(kinds) == 1 else str


def read_results(path: Path, option: str = "RESULTS") -> Results:
    """The result in a file; raises InputError where it is none."""
    library = polars("sweep")
    if not path.is_file():
        raise InputError.single(str(path), option, "no such file; planner sweep FILE makes one")
    try:
        axes = json.loads(library.read_parquet_metadata(path)[MARK])
        frame = library.read_parquet(path)
    except (library.exceptions.PolarsError, OSError, ValueError, KeyError) as error:
        reason = "was not made by planner sweep" if isinstance(error, KeyError) else "no Parquet"
        message = f"is no result of a sweep: {reason}"
        raise InputError.single(str(path), option, message) from None
    return Results(
        path=str(path), axes={name: tuple(values) for name, values in axes.items()}, frame=frame
    )
