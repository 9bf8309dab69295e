"""Forms of findings: well-formed, nothing unescaped, nothing lost."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from planner.check.result import UNREADABLE, FileResult
from planner.formats.format import SEVERITIES, Finding, Format
from planner.report.document import serialise
from planner.report.findings import (
    check_document,
    render_github,
    render_junit,
    render_sarif,
    render_text,
    summary,
)

SARIF = Draft7Validator(
    json.loads((Path(__file__).parent / "sarif-2.1.0.json").read_text(encoding="utf-8"))
)
COMMAND = re.compile(r"::(error|warning|notice) file=[^,:]*(,line=\d+)?,title=[^,:]*::[^\r\n]*")
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
FINDINGS = st.builds(
    Finding,
    rule=st.sampled_from(["memory.fits", "demo.unknown_key", UNREADABLE]),
    severity=st.sampled_from(SEVERITIES),
    message=TEXTS,
    path=st.just("a/b.json"),
    key=TEXTS,
    line=st.integers(0, 10**6),
)
RESULTS = st.lists(
    st.builds(
        FileResult,
        path=TEXTS.filter(bool),
        findings=st.lists(FINDINGS, max_size=4).map(tuple),
        fail_on=st.sampled_from(SEVERITIES),
    ),
    max_size=3,
)


@given(RESULTS)
def test_sarif_has_the_structure_of_the_standard(results: list[FileResult]) -> None:
    assert [each.message for each in SARIF.iter_errors(json.loads(render_sarif(results)))] == []


def test_the_structure_refuses_what_is_no_sarif() -> None:
    document = json.loads(render_sarif([]))
    assert not any(SARIF.is_valid(document | own) for own in ({"version": "2.0.0"}, {"runs": [{}]}))


@given(RESULTS)
def test_sarif_names_every_rule_once_and_refers_to_it(results: list[FileResult]) -> None:
    (run,) = json.loads(render_sarif(results))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for made in run["results"]:
        assert rules[made["ruleIndex"]] == made["ruleId"]
    assert len(run["results"]) == sum(len(result.findings) for result in results)


def finding(rule: str = "a.b", message: str = "m", path: str = "f", **more: Any) -> Finding:
    return Finding(**{"rule": rule, "severity": "error", "message": message, "path": path, **more})


def test_sarif_says_where_a_formats_rule_is_from(demo_format: Format) -> None:
    broken = finding("demo.tp_lies_in_a_node")
    log = json.loads(render_sarif([FileResult(path="f", findings=(broken,))]))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert rule["fullDescription"]["text"] == "Tp lies in a node. Source: demo/tp.py"


def test_sarif_places_are_references_that_tools_resolve() -> None:
    results = [FileResult(path=path) for path in ("a b/ü:1.json", "./c.json", "/d e.json")]
    artifacts = json.loads(render_sarif(results))["runs"][0]["artifacts"]
    uris = [artifact["location"]["uri"] for artifact in artifacts]
    assert uris == ["a%20b/%C3%BC%3A1.json", "c.json", "file:///d%20e.json"]


@given(RESULTS)
def test_github_has_one_unbroken_line_per_finding(results: list[FileResult]) -> None:
    text = render_github(results)
    lines = text.split("\n") if text else []
    assert len(lines) == sum(len(result.findings) for result in results)
    assert all(COMMAND.fullmatch(line) for line in lines)


def test_github_escapes_what_would_end_a_value() -> None:
    noted = finding(severity="note", message="1% ::\r\n", path="a,b:c", key="k")
    text = render_github([FileResult(path="f", findings=(noted,))])
    assert text == "::notice file=a%2Cb%3Ac,title=a.b::k: 1%25 ::%0D%0A"


@given(RESULTS)
def test_junit_is_xml_that_counts_right(results: list[FileResult]) -> None:
    root = ElementTree.fromstring(render_junit(results).encode())
    suites = root.findall("testsuite")
    assert len(suites) == len(results)
    for suite, result in zip(suites, results, strict=True):
        failing = [one for one in result.findings if result.fails_for(one)]
        unreadable = [one for one in failing if one.rule == UNREADABLE]
        assert int(suite.attrib["tests"]) == max(len(result.findings), 1)
        assert int(suite.attrib["errors"]) == len(unreadable)
        assert int(suite.attrib["failures"]) == len(failing) - len(unreadable)
    assert root.attrib["tests"] == str(len(root.findall("testsuite/testcase")))


def test_junit_replaces_what_xml_cannot_hold() -> None:
    text = render_junit([FileResult(path="f", findings=(finding(message="a\x00b\x1b\ufffe"),))])
    assert 'message="a\ufffdb\ufffd\ufffd"' in text


@given(RESULTS)
def test_json_holds_every_finding(results: list[FileResult]) -> None:
    document = json.loads(serialise("check", check_document(results)))
    found = [one["findings"] for one in document["files"]]
    assert [len(one) for one in found] == [len(result.findings) for result in results]
    assert sum(document["counts"].values()) == sum(map(len, found))


@given(RESULTS)
def test_text_ends_with_the_summary(results: list[FileResult]) -> None:
    assert render_text(results).endswith(summary(results))


def test_text_takes_brackets_for_what_they_are() -> None:
    red = finding(message="[red]x[/red]", path="[f]", key="[k]")
    text = render_text([FileResult(path="[f]", findings=(red,))])
    assert "[f] error a.b [k]" in text
    assert "[red]x[/red]" in text


def test_wrapped_lines_end_without_blanks() -> None:
    long = finding(message="some words " * 40)
    lines = render_text([FileResult(path="f", findings=(long,))]).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_summary_counts_files_findings_and_what_was_ignored() -> None:
    found = FileResult(path="f", findings=(finding(severity="warning"),) * 2, num_ignored=1)
    text = summary([found, FileResult(path="g")])
    assert text == "2 findings in 2 files: 2 warnings; 1 ignored"
    assert summary([FileResult(path="g")]) == "nothing found in 1 file"
