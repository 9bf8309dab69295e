"""Findings as SARIF 2.1.0, which code scanning tools read.

Source: OASIS Static Analysis Results Interchange Format (SARIF) Version 2.1.0, sections 3.13
(log file), 3.19 (tool component), 3.27 (result), 3.29 (physical location), 3.49 (rule).
"""

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from planner import __version__
from planner.check.result import UNREADABLE, FileResult
from planner.check.rules import RuleInfo, describe
from planner.formats.finding import Finding
from planner.report.findings.summary import all_findings

VERSION = "2.1.0"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def render_sarif(results: Sequence[FileResult]) -> str:
    """One run with the rules that were broken, and a result per finding."""
    findings = all_findings(results)
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    files = dict.fromkeys(_uri(result.path) for result in results)
    run = {
        "tool": {
            "driver": {
                "name": "planner",
                "version": __version__,
                "rules": [_rule(describe(name)) for name in rules],
            }
        },
        "invocations": [
            {"executionSuccessful": not any(one.rule == UNREADABLE for one in findings)}
        ],
        "artifacts": [{"location": {"uri": uri}} for uri in files],
        "results": [_result(finding, rules.index(finding.rule)) for finding in findings],
        "columnKind": "unicodeCodePoints",
    }
    return json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [run]}, indent=2)


def _rule(info: RuleInfo) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": info.name,
        "shortDescription": {"text": info.description},
        "defaultConfiguration": {"level": info.severity},
    }
    if info.source:
        rule["fullDescription"] = {"text": f"{info.description}. Source: {info.source}"}
    return rule


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = f"{finding.key}: {finding.message}" if finding.key else finding.message
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    if finding.line:
        place["region"] = {"startLine": finding.line}
    location: dict[str, Any] = {"physicalLocation": place}
    if finding.key:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.key, "kind": "member"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [location],
    }


def _uri(path: str) -> str:
    """A reference relative to the present folder, or a file URI."""
    if PurePath(path).is_absolute():
        return Path(path).as_uri()
    return quote(PurePath(path).as_posix())
