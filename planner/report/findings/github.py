"""Findings as workflow commands of GitHub Actions, which become annotations of a change.

Source: actions/toolkit, packages/core/src/command.ts (which characters are escaped).
"""

from collections.abc import Mapping, Sequence

from planner.check.result import FileResult
from planner.formats.finding import Finding, Severity
from planner.report.findings.summary import all_findings

COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def render_github(results: Sequence[FileResult]) -> str:
    """A command per finding, one a line."""
    return "\n".join(map(_command, all_findings(results)))


def _command(finding: Finding) -> str:
    properties = {"file": finding.path, "line": str(finding.line or ""), "title": finding.rule}
    given = ",".join(f"{k}={_escaped(v, _PROPERTY)}" for k, v in properties.items() if v)
    text = f"{finding.key}: {finding.message}" if finding.key else finding.message
    return f"::{COMMANDS[finding.severity]} {given}::{_escaped(text, _DATA)}"


def _escaped(text: str, table: Mapping[int, str]) -> str:
    return text.translate(table)
