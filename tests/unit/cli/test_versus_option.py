"""`planner plan --versus`: one question beside the same asked otherwise."""

import json
from typing import Any

import pytest
from in_process import planner

SMALL = ("plan", "gpt3-xl", "1xdgx-a100-640", "--global-batch", "64", "--tp", "1", "--pp", "1")


def test_the_verdict_comes_first_and_both_stand_side_by_side() -> None:
    run = planner(*SMALL, "--versus", "tp=8")
    assert run.code == 0
    first, *_ = run.out.splitlines()
    assert first.startswith("tp=8 takes ")
    assert first.endswith(" times as long.")
    for title in ("iteration", "vs first", "MFU"):
        assert title in run.out
    assert "framework" not in run.out
    assert "tp=8: TP 8, " in run.out


@pytest.mark.parametrize(
    "word", ["cluster=1xdgx-h100", "framework=torchtitan", "seq-len=1k", "global_batch=32"]
)
def test_every_side_is_a_row(word: str) -> None:
    run = planner(*SMALL, "--versus", word)
    assert run.code == 0
    lines = run.out.splitlines()
    for label in ("as asked ", f"{word} "):
        assert any(line.startswith(label) for line in lines)


def test_several_changes_at_once_and_several_alternatives() -> None:
    versus = ("--versus", "tp=2,zero=1", "--versus", "forbid=recompute,micro-batch=2")
    found = json.loads(planner(*SMALL, *versus, "--format", "json").out)
    assert found["asked"]["plan"]["strategy"]["tp"] == 1
    first, second = (each["plan"]["strategy"] for each in found["others"])
    assert (first["tp"], first["zero_stage"], first["pp"]) == (2, 1, 1)
    assert (second["tp"], second["micro_batch"], second["recompute"]) == (1, 2, "none")
    speed = found["others"][0]["speed"]
    assert speed["lower"] < speed["value"] < speed["upper"]


def test_a_comparison_writes_no_files(tmp_path: Any) -> None:
    run = planner(*SMALL, "--versus", "tp=2", "--save", str(tmp_path / "plan.yaml"))
    assert run.code == 2
    assert "--versus" in run.err
    assert not list(tmp_path.iterdir())
