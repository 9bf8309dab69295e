"""Results: what fails, in which order findings come, and that they can be printed."""

import pytest

from planner.check.result import UNREADABLE, FileResult, exit_code, finding_of, in_order, is_ignored
from planner.errors import Problem
from planner.formats.format import SEVERITIES, Finding, Severity
from planner.limits import one_line


def finding(rule: str = "a.b", severity: Severity = "error", line: int = 0) -> Finding:
    return Finding(rule=rule, severity=severity, message="m", path="f", line=line)


@pytest.mark.parametrize("fail_on", SEVERITIES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_findings_as_severe_as_asked_fail(fail_on: Severity, severity: Severity) -> None:
    result = FileResult(path="f", findings=(finding(severity=severity),), fail_on=fail_on)
    worse = SEVERITIES.index(severity) <= SEVERITIES.index(fail_on)
    assert result.fails is worse
    assert exit_code([FileResult(path="g"), result]) == int(worse)


def test_one_unreadable_file_is_enough_for_two() -> None:
    unreadable = FileResult(path="f", findings=(finding(UNREADABLE),))
    failing = FileResult(path="g", findings=(finding(),))
    assert exit_code([failing, unreadable]) == 2
    assert exit_code([]) == 0


def test_a_problem_at_a_line_becomes_a_finding_there_and_of_another_file_names_it() -> None:
    made = finding_of(Problem(where="f", key="line 12", message="m"), "f")
    assert (made.rule, made.key, made.line, made.message) == (UNREADABLE, "", 12, "m")
    made = finding_of(Problem(where="g", key="line 3", message="m"), "f")
    assert (made.key, made.line, made.message) == ("", 0, "g::line 3: m")


def test_findings_come_by_line_then_the_worst_first_without_repeats() -> None:
    first, second, third = finding(line=1), finding(line=2), finding("z.z", "note", line=2)
    assert in_order([third, second, first, first]) == (first, second, third)


def test_rules_and_families_are_ignored_but_not_parts_of_names() -> None:
    assert is_ignored(finding("a.b"), ["a.b"])
    assert is_ignored(finding("a.b"), ["a"])
    assert not is_ignored(finding("a.bc"), ["a.b", "a.", "b"])


def test_what_cannot_be_printed_is_escaped_and_cut_short() -> None:
    assert one_line("a\nb\x1b[0m\ud800é") == "a\\nb\\x1b[0m\\ud800é"
    assert one_line("x" * 5000).endswith("...")
    assert len(one_line("x" * 5000)) == 1000
