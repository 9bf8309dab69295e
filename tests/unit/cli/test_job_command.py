"""The job command: plan files, folders and questions; options; what is refused."""

from pathlib import Path
from typing import Any

import pytest
from in_process import json_of, planner

QUESTION = ("llama3-8b", "1xdgx-h100", "--tokens", "1T", "--tp", "1", "--pp", "1")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A plan saved without tokens, and its folder."""
    path = tmp_path / "plan.yaml"
    narrow = ("--tp", "1", "--pp", "1", "--global-batch", "64")
    assert planner("plan", "llama3-8b", "1xdgx-h100", *narrow, "--save", str(path)).code == 0
    return path


def test_a_plan_file_its_folder_and_its_question_say_the_same(saved: Path) -> None:
    first = json_of("job", str(saved), "--tokens", "1T")
    second = json_of("job", str(saved.parent), "--tokens", "1T")
    third = json_of("job", *QUESTION, "--global-batch", "64")
    assert first == second
    assert first["elapsed_s"] == third["elapsed_s"]


def test_options_change_what_they_say(saved: Path) -> None:
    def asked(*options: str) -> dict[str, Any]:
        return json_of("job", str(saved), "--tokens", "1T", *options)

    usual = asked()
    assert asked("--storage-gbps", "1")["write_s"] == pytest.approx(usual["checkpoint_bytes"] / 1e9)
    assert asked("--node-mtbf", "1d")["goodput"] < usual["goodput"]
    assert asked("--async-checkpoints")["stop_s"] < usual["stop_s"]
    assert asked("--restart", "2h")["lost_s"] > 7200
    hourly = asked("--checkpoint-interval", "1h")
    assert hourly["interval_s"] == pytest.approx(3600, rel=0.01)
