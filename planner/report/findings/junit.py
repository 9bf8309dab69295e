"""Findings as JUnit XML: a suite per file, a case per finding, one that passes where none is.

Source: the XML that Jenkins' JUnit plugin and GitLab read (testsuites, testsuite, testcase with
failure, error or system-out).
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from planner.check.result import UNREADABLE, FileResult
from planner.formats.finding import Finding

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, escaped or not."""


def render_junit(results: Sequence[FileResult]) -> str:
    """Findings severe enough to fail the check are failures; unreadable files are errors."""
    root = ElementTree.Element("testsuites", name="planner check")
    for result in results:
        _add_suite(root, result)
    _count(root, root.findall("testsuite/testcase"))
    ElementTree.indent(root)
    text: str = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _add_suite(root: ElementTree.Element, result: FileResult) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_legal(result.path))
    if not result.findings:
        ElementTree.SubElement(suite, "testcase", name="check", classname=_legal(result.path))
    for finding in result.findings:
        _add_case(suite, result, finding)
    _count(suite, suite.findall("testcase"))


def _add_case(suite: ElementTree.Element, result: FileResult, finding: Finding) -> None:
    name = _legal(f"{finding.rule} {finding.key}".strip())
    case = ElementTree.SubElement(suite, "testcase", name=name, classname=_legal(result.path))
    if finding.line:
        case.set("line", str(finding.line))
    text = _legal(str(finding))
    if not result.fails_for(finding):
        ElementTree.SubElement(case, "system-out").text = f"{finding.severity}: {text}"
        return
    kind = "error" if finding.rule == UNREADABLE else "failure"
    detail = ElementTree.SubElement(
        case, kind, type=finding.severity, message=_legal(finding.message)
    )
    detail.text = text


def _count(element: ElementTree.Element, cases: Sequence[ElementTree.Element]) -> None:
    element.set("tests", str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error")):
        element.set(name, str(sum(case.find(kind) is not None for case in cases)))


def _legal(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
