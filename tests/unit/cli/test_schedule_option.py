import json
from pathlib import Path

import yaml
from in_process import json_of, planner

TORCHTITAN = ("plan", "llama3-8b", "1xdgx-h100", "--framework", "torchtitan", "--seq-len", "2048")
ZB_V = ("memory", "llama3.1-70b", "8xdgx-h100", "--tp", "8", "--pp", "8", "--schedule", "zb-v")


def test_all_schedules_are_those_of_the_framework() -> None:
    assert "sched" not in planner(*TORCHTITAN, "--global-batch", "8").out
    options = ("--global-batch", "8", "--schedule", "all", "--format", "json")
    plans = json.loads(planner(*TORCHTITAN, *options).out)["plans"]
    assert {plan["strategy"]["schedule"] for plan in plans} <= {"1f1b", "gpipe"}


def test_memory_of_a_given_schedule() -> None:
    answer = json_of(*ZB_V, "--profile", "zero-bubble")
    assert answer["strategy"]["schedule"] == "zb-v"
    assert answer["strategy"]["vpp"] == 2
    # Embedding and head share device 0.
    peaks = [stage["peak_bytes"] for stage in answer["stages"]]
    assert max(peaks) == peaks[0]


def test_explain_names_the_schedules_formula_and_simulates_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    planner(
        *("plan", "llama3.1-70b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "2048"),
        *("--where", "pp > 1", "--save", str(path)),
    )
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
