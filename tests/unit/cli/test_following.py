"""The command below an answer can be pasted: it is the question again, with its files written."""

import shlex
from pathlib import Path

import pytest
from in_process import planner

SMALL = ("plan", "llama3-8b", "1xdgx-h100", "--global-batch", "16")


def following(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("Next: ")]
    return shlex.split(line.removeprefix("Next: "))


def test_it_has_every_option_that_was_given_and_writes_files() -> None:
    run = planner(*SMALL, "--tp", "2", "--where", "pp==1", "--where", "cp==1", "-v")
    assert following(run.out) == [
        *("planner", "plan", "llama3-8b", "1xdgx-h100", "--global-batch", "16", "--tp", "2"),
        *("--where", "pp==1", "--where", "cp==1", "--emit", "megatron", "--out", "run"),
    ]


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = following(planner(*SMALL, "--framework", "deepspeed", "--seq-len", "4k").out)
    assert planner(*command[1:]).code == 0
    assert (tmp_path / "run" / "ds_config.json").exists()


def test_written_files_are_checked_and_saved_plans_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = following(planner(*SMALL, "--save", "plan.yaml").out)
    assert command == [*["planner", "emit", "plan.yaml", "--to", "megatron", "--out", "run"]]
    checking = following(planner(*command[1:]).err)
    assert checking == ["planner", "check", "run"]
    assert planner(*checking[1:]).code == 0


def test_what_is_there_is_not_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert following(planner(*SMALL).out)[-1] == "run2"
