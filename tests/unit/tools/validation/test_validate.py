"""The program around the comparison: one document, or one line that says what is wrong."""

import json
import sys
from pathlib import Path

import pytest

from tools.validate import main

RUNS = Path(__file__).parents[3] / "validation" / "published_runs.jsonl"


def said(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["validate", *words])
    return main()


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    lines = RUNS.read_text("utf-8").splitlines()
    path = tmp_path / "dense.jsonl"
    path.write_text("\n".join([*lines[22:24], '{"id": 3}']))
    return path


def test_json_has_every_run_and_every_line_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dense: Path
) -> None:
    assert said(monkeypatch, str(dense), "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found)[:3] == ["schema", "schema_version", "planner_version"]
    assert [len(found[name]) for name in ("runs", "unread")] == [2, 1]
    assert found["summary"]["time"]["n"] == found["summary"]["time_range"]["n"] == 2


def test_cross_validation_scores_halves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dense: Path
) -> None:
    assert said(monkeypatch, str(dense), "--cross-validate", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["halves"]


@pytest.mark.parametrize("text", [None, "a: " + "[" * 200_000, "a: " + "9" * 5000, " " * 10**8])
def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str | None,
) -> None:
    path = tmp_path / "runs.jsonl"
    if text is not None:
        path.write_text(text)
    assert said(monkeypatch, str(path)) == 2
    assert "runs.jsonl" in capsys.readouterr().err
