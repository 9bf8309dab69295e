"""Documents about configuration files."""

from typing import Annotated, Any

from planner.check.result import FileResult
from planner.formats.finding import Finding
from planner.formats.format import Decided, OutputFile
from planner.report.rows.base import FieldsOf, Row


class EmitOpenKey(Row):
    """Keys to add."""

    file: str
    key: str
    what: str


class EmitDocument(Row):
    """A plan as files of a framework.

    Without --out nothing is written, and files are the configuration alone.
    """

    format: str
    framework: str
    versions: str
    """Releases of the framework that the format was checked against; empty where unknown."""
    model: str
    cluster: str
    gpus: int
    folder: str | None
    """That they were written into."""
    files: list[OutputFile]
    command: list[str]
    """What every process runs behind the launcher's words."""
    environment: dict[str, str]
    """Variables that every process needs."""
    variables: dict[str, str]
    """Variables to set first, with what each is."""
    open_keys: list[EmitOpenKey]
    decided: list[Decided]
    left_open: dict[str, str]
    """What is left to the user, with the keys that say it."""
    notes: list[str]


CheckFile = Annotated[
    dict[str, Any],
    FieldsOf(
        "CheckFile",
        FileResult,
        without=("findings",),
        more={
            "findings": list[Finding],
            "readable": bool,
            "fails": bool,
        },
    ),
]
"""One entry of ``files``."""


class CheckDocument(Row):
    """What is wrong with configuration files."""

    exit_code: int
    """0, 1 or 2, as the command ends."""
    counts: dict[str, int]
    """Findings by severity."""
    files: list[CheckFile]
