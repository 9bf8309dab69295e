import json
from pathlib import Path
from typing import Any

import pytest
import yaml

TORCHTITAN = ("plan", "llama3-8b", "1xdgx-h100", "--framework", "torchtitan", "--seq-len", "2048")
ZB_V = ("memory", "llama3.1-70b", "8xdgx-h100", "--tp", "8", "--pp", "8", "--schedule", "zb-v")


@pytest.mark.parametrize("width", ["80", "160"])
def test_tables_show_schedules_where_one_differs(
    planner: Any, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    run = planner(*TORCHTITAN, "--global-batch", "8", "--schedule", "gpipe", "--schedule", "1f1b")
    assert run.code == 0
    assert "sched" not in planner(*TORCHTITAN, "--global-batch", "8").out
    plans = json.loads(
        planner(*TORCHTITAN, "--global-batch", "8", "--schedule", "all", "--format", "json").out
    )["plans"]
    assert {plan["strategy"]["schedule"] for plan in plans} <= {"1f1b", "gpipe"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zb-v", "torchtitan (current) does not offer zb-v; allowed are 1f1b, gpipe"),
        ("1f1b,zbv", "unknown schedule 'zbv'; allowed are 1f1b, gpipe, zb-h1, zb-h2"),
        ("dualpipe", "unknown schedule 'dualpipe'"),
    ],
)
def test_schedules_that_cannot_be_searched_are_named(planner: Any, text: str, message: str) -> None:
    run = planner(*TORCHTITAN, "--schedule", text)
    assert run.code == 2
    assert f"command line::--schedule: {message}" in run.err


def test_memory_of_a_given_schedule(planner: Any) -> None:
    run = planner(*ZB_V, "--profile", "zero-bubble", "--format", "json")
    assert run.code == 0
    answer = json.loads(run.out)
    assert answer["strategy"]["schedule"] == "zb-v"
    assert answer["strategy"]["vpp"] == 2
    # Embedding and head share device 0.
    peaks = [stage["peak_bytes"] for stage in answer["stages"]]
    assert max(peaks) == peaks[0]
    assert "schedule zb-v" in planner(*ZB_V, "--profile", "zero-bubble").out


def test_a_schedule_the_framework_lacks_is_refused(planner: Any) -> None:
    run = planner(*ZB_V)
    assert run.code == 2
    assert "command line::--schedule: schedule_offered" in run.err
    assert "schedule zb-v: megatron offers 1f1b" in run.err


def saved(planner: Any, folder: Path, **strategy: object) -> Path:
    """A pipelined plan, with some of its strategy changed."""
    path = folder / "plan.yaml"
    planner(
        *("plan", "llama3.1-70b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "2048"),
        *("--where", "pp > 1", "--save", str(path)),
    )
    content = yaml.safe_load(path.read_text())
    content["strategy"] |= strategy
    path.write_text(yaml.safe_dump(content))
    return path


def test_explain_names_the_schedules_formula_and_simulates_it(planner: Any, tmp_path: Path) -> None:
    path = saved(planner, tmp_path)
    content = yaml.safe_load(path.read_text())
    assert content["strategy"]["schedule"] == "1f1b"
    assert content["strategy"]["pp"] > 1
    assert "by event simulation" in planner("explain", str(path), "time").out
    bubble = planner("explain", str(path), "pipeline.bubble").out
    assert "one_f_one_b_makespan_s" in bubble
    assert "zero_bubble" not in bubble
    del content["strategy"]["schedule"]
    path.write_text(yaml.safe_dump(content))
    assert planner("explain", str(path)).code == 0


def test_plan_files_with_unknown_schedules_are_refused(planner: Any, tmp_path: Path) -> None:
    path = saved(planner, tmp_path, schedule="zb")
    run = planner("explain", str(path))
    assert run.code == 2
    assert f"{path}::strategy.schedule: unknown schedule 'zb'; allowed are 1f1b" in run.err
