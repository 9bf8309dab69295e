"""Findings as JSON."""

from collections.abc import Sequence
from dataclasses import asdict

from planner.check.result import FileResult, exit_code
from planner.report.document import serialise
from planner.report.findings.summary import counts


def render_json(results: Sequence[FileResult]) -> str:
    """Every file with its findings and figures, base units throughout."""
    body = {
        "exit_code": exit_code(results),
        "counts": counts(results),
        "files": [
            asdict(result) | {"readable": result.is_readable, "fails": result.fails}
            for result in results
        ],
    }
    return serialise("check", body)
