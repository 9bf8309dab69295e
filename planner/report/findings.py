"""Findings of a check as text, JSON, SARIF, GitHub annotations and JUnit XML.

Sources: OASIS Static Analysis Results Interchange Format (SARIF) Version 2.1.0, sections 3.13
(log file), 3.19 (tool component), 3.27 (result), 3.29 (physical location), 3.49 (rule); GitHub's
actions/toolkit, packages/core/src/command.ts (which characters are escaped); the XML that Jenkins'
JUnit plugin and GitLab read (testsuites, testsuite, testcase with failure, error or system-out).
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, field, make_dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from planner import __version__
from planner.check.result import UNREADABLE, FileResult, exit_code
from planner.formats.format import SEVERITIES, Finding
from planner.report.document import rendered
from planner.units import format_bytes, format_seconds, format_stage, plural

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
GITHUB_TEXT = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})

# The document's types: a file's result with what its properties say, and the results together.
_CheckedFile: Any = make_dataclass(
    "CheckedFile",
    [("readable", bool), ("fails", bool, field())],
    bases=(FileResult,),
    kw_only=True,
    frozen=True,
)
CheckDocument: Any = make_dataclass(
    "CheckDocument",
    [("exit_code", int), ("counts", dict[str, int]), ("files", list[_CheckedFile])],
)


def counts(results: Sequence[FileResult]) -> dict[str, int]:
    """Findings by severity, worst first."""
    found = Counter(finding.severity for result in results for finding in result.findings)
    return {severity: found[severity] for severity in SEVERITIES}


def summary(results: Sequence[FileResult]) -> str:
    """``3 findings in 2 files: 2 errors, 1 note``."""
    files = plural(len(results), "file")
    numbers = counts(results)
    ignored = sum(result.num_ignored for result in results)
    left = f"; {ignored} ignored" if ignored else ""
    if not any(numbers.values()):
        return f"nothing found in {files}{left}"
    total = plural(sum(numbers.values()), "finding")
    return f"{total} in {files}: {_by_severity(numbers)}{left}"


def _by_severity(numbers: dict[str, int]) -> str:
    return ", ".join(plural(number, severity) for severity, number in numbers.items() if number)


def _style(numbers: dict[str, int]) -> str:
    return next((STYLES[severity] for severity, number in numbers.items() if number), "bold green")


def print_findings(results: Sequence[FileResult], console: "Console") -> None:
    """Print every file's findings with its figures, and how many there are in all."""
    from rich.padding import Padding
    from rich.text import Text

    from planner.report.table import show, whole

    for result in results:
        gpus = plural(result.num_gpus, "GPU") if result.num_gpus else ""
        known = ", ".join(filter(None, (result.format, result.model, result.cluster, gpus)))
        numbers = counts([result])
        found = (_by_severity(numbers) or "nothing found", _style(numbers))
        what = (f"  {known}" if known else "", "dim")
        show(console, Text.assemble((result.path, "bold"), what, ": ", found))
        for finding in result.findings:
            place = f"{finding.path}:{finding.line}" if finding.line else finding.path
            severity, key = finding.severity, f" {finding.key}" if finding.key else ""
            show(
                console,
                whole(f"  {place} ")
                .append(severity, style=STYLES[severity])
                .append(f" {finding.rule}", style="bold")
                .append(key),
                Padding(Text(finding.message), (0, 0, 0, 4), expand=False),
            )
        if made := result.figures:
            figures = (
                f"{format_seconds(made.iter_time_s)} per iteration, {made.tokens_per_s:,.0f} "
                f"tokens/s, {format_bytes(made.peak_bytes)} of {format_bytes(made.usable_bytes)} "
                f"on {format_stage(made.peak_stage, made.num_stages)}"
            )
            assumed = f"assumed: {', '.join(result.assumed)}" if result.assumed else ""
            for said in filter(None, (assumed, figures)):
                show(console, Padding(Text(said, "dim"), (0, 0, 0, 2)))
    show(console, Text(summary(results), _style(counts(results))))


def render_text(results: Sequence[FileResult]) -> str:
    """Findings as text without colours, for a file."""
    from planner.report.table import drawn

    text = drawn(partial(print_findings, results), 100)
    return "\n".join(map(str.rstrip, text.splitlines()))


def check_document(results: Sequence[FileResult]) -> dict[str, Any]:
    """Every file with its findings and figures, base units throughout."""
    return {
        "exit_code": exit_code(results),
        "counts": counts(results),
        "files": [
            asdict(result) | {"readable": result.is_readable, "fails": result.fails}
            for result in results
        ],
    }


def render_github(results: Sequence[FileResult]) -> str:
    """A workflow command of GitHub Actions per finding, which annotates the change."""
    lines, of_property = [], GITHUB_TEXT | str.maketrans({":": "%3A", ",": "%2C"})
    for finding in (each for result in results for each in result.findings):
        given = {"file": finding.path, "line": str(finding.line or ""), "title": finding.rule}
        properties = ",".join(
            f"{name}={value.translate(of_property)}" for name, value in given.items() if value
        )
        command = "notice" if finding.severity == "note" else finding.severity
        text = _with_key(finding).translate(GITHUB_TEXT)
        lines.append(f"::{command} {properties}::{text}")
    return "\n".join(lines)


def _with_key(finding: Finding) -> str:
    return f"{finding.key}: {finding.message}" if finding.key else finding.message


def render_sarif(results: Sequence[FileResult]) -> str:
    """One SARIF run with the rules that were broken, and a result per finding."""
    from planner.query.values import describe

    findings = [finding for result in results for finding in result.findings]
    names = list(dict.fromkeys(finding.rule for finding in findings))
    rules = []
    for info in map(describe, names):
        text = f"{info.description}. Source: {info.source}"
        rule = {
            "id": info.name,
            "shortDescription": {"text": info.description},
            "defaultConfiguration": {"level": info.severity},
        }
        rules.append(rule | ({"fullDescription": {"text": text}} if info.source else {}))
    found = []
    for finding in findings:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
        place |= {"region": {"startLine": finding.line}} if finding.line else {}
        member = [{"fullyQualifiedName": finding.key, "kind": "member"}] if finding.key else []
        location = {"physicalLocation": place, **({"logicalLocations": member} if member else {})}
        result = {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": finding.severity,
            "message": {"text": _with_key(finding)},
            "locations": [location],
        }
        found.append(result)
    files = dict.fromkeys(_uri(result.path) for result in results)
    run = {
        "tool": {"driver": {"name": "planner", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": UNREADABLE not in names}],
        "artifacts": [{"location": {"uri": uri}} for uri in files],
        "results": found,
        "columnKind": "unicodeCodePoints",
    }
    schemas = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas"
    document = {
        "$schema": f"{schemas}/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2)


def _uri(path: str) -> str:
    """A reference relative to the present folder, or a file URI."""
    if PurePath(path).is_absolute():
        return Path(path).as_uri()
    return quote(PurePath(path).as_posix())


def render_junit(results: Sequence[FileResult]) -> str:
    """A suite per file, a case per finding: failures fail a check, unreadable files are errors."""
    suites: list[tuple[str, list[Any]]] = [
        (result.path, [(one, _kind(result, one)) for one in result.findings] or [(None, "")])
        for result in results
    ]
    return rendered("junit.xml.j2", _in_xml, suites=suites).rstrip("\n")


def _kind(result: FileResult, finding: Finding) -> str:
    if not result.fails_for(finding):
        return "system-out"
    return "error" if finding.rule == UNREADABLE else "failure"


def _in_xml(text: str) -> str:
    # What XML 1.0 cannot hold, escaped or not.
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


RENDERERS = {
    "text": render_text,
    "sarif": render_sarif,
    "github": render_github,
    "junit": render_junit,
}
