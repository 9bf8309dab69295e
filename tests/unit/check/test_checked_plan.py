"""Plan files under check: recognised, every key with its line, the job they were made for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_document import plan_document

from planner.check.check import check_file
from planner.check.plan import is_plan_file, key_lines
from planner.check.result import FileResult
from planner.errors import InputError
from planner.formats.format import SourceText
from planner.limits import MAX_DEPTH
from planner.query.from_file import Request

FOUND = yaml.safe_load(Path(__file__).with_name("checked_plan.yaml").read_text("utf-8"))


@pytest.fixture
def check_plan(tmp_path: Path) -> Callable[..., FileResult]:

    def check(request: dict[str, Any] | None = None, **strategy: object) -> FileResult:
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(plan_document(**strategy), sort_keys=False))
        return check_file(str(path), Request(with_advice=False, **(request or {})))

    return check


def source(text: str) -> SourceText:
    return SourceText(path="plan.yaml", text=text)


def said(result: FileResult) -> list[tuple[str, str, int]]:
    return [(one.rule, one.key, one.line) for one in result.findings]


def test_a_sound_plan_needs_no_model_and_no_cluster(check_plan: Callable[..., FileResult]) -> None:
    result = check_plan()
    assert said(result) == []
    assert (result.format, result.model, result.cluster) == ("plan", "llama3-8b", "2xdgx-h100")
    assert result.num_gpus == 16


@pytest.mark.parametrize(("job", "strategy", "found"), FOUND["alone"])
def test_the_only_finding_is_at_its_key(
    check_plan: Callable[..., FileResult],
    job: dict[str, Any],
    strategy: dict[str, Any],
    found: list[Any],
) -> None:
    result = check_plan(job, **strategy)
    assert said(result) == [tuple(found)]
    assert result.cluster in ("", job.get("cluster", "2xdgx-h100"))
    assert ("did you mean zero_stage?" in result.findings[0].message) is ("zero_stag" in strategy)


@pytest.mark.parametrize(("strategy", "found"), FOUND["among others"])
def test_errors_among_others_are_at_their_keys(
    check_plan: Callable[..., FileResult], strategy: dict[str, Any], found: list[Any]
) -> None:
    result = check_plan(**strategy)
    assert tuple(found) in said(result)
    assert all(finding.severity == "error" for finding in result.findings)


def test_a_plan_is_recognised_by_its_sections() -> None:
    assert is_plan_file(source("schema_version: 1\ninputs: {}\nstrategy: {}\n"))
    assert not is_plan_file(source("schema_version: 1\ninputs: {}\n"))
    assert not is_plan_file(source("a:\n  schema_version: 1\n  inputs: {}\n  strategy: {}\n"))


def test_every_key_has_its_line() -> None:
    text = "a: 1\nb:\n  c: [1, 2]\n  d: {e: 3,\n      f: {}}\ng:\n- h: 1\n"
    lines = {"a": 1, "b": 2, "b.c": 3, "b.d": 4, "b.d.e": 4, "b.d.f": 5, "g": 6, "g.h": 7}
    assert key_lines(source(text)) == lines


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: [1", "line 2"),
        ("a: " + "[" * (MAX_DEPTH + 1), "line 1"),
        ("a: " + "[" * 100_000, "line 1"),
        ("a: \x07", "line 1"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        key_lines(source(text))
    assert [problem.key for problem in caught.value.problems] == [where]


def test_aliases_that_multiply_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["schema_version: 1", "inputs: {}", "strategy:", "  a0: &a0 [x, x]"]
    lines += [f"  a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    result = check_file(str(path), Request())
    assert said(result) == [("file.unreadable", "", 4)]
    assert not result.is_readable
