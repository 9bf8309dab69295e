"""Documents about configuration files."""

from typing import Annotated, Any

from planner.check.result import FileResult
from planner.formats.format import Finding
from planner.report.rows.base import FieldsOf, Row

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
