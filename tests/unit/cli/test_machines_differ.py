"""Machines that differ: what a plan says of them, and that a cluster file settles it."""

import json
from pathlib import Path
from typing import Any

from in_process import planner

QUESTION = ("--global-batch", "64", "--seq-len", "8192", "--top", "1", "--format", "json")


def answered(cluster: str) -> tuple[dict[str, Any], list[str]]:
    run = planner("plan", "llama3-8b", cluster, *QUESTION)
    assert run.code == 0
    found = json.loads(run.out)
    return found["plans"][0], found["inputs"]["assumed"]


def low_percent(plan: dict[str, Any]) -> float:
    return float(100.0 * (plan["iter_time_s_lower"] / plan["iter_time_s"] - 1.0))


def test_a_plan_says_that_machines_differ_until_a_cluster_file_states_ones_own(
    tmp_path: Path,
) -> None:
    plan, notes = answered("1xdgx-b200")
    note = next(note for note in notes if "published machines differ" in note)
    assert "b200-sxm sustain 62% of peak" in note
    assert "from 48% to 74%" in note
    assert "gemm_sustained_fraction in a cluster file" in note
    own = tmp_path / "mine.yaml"
    own.write_text("node: dgx-b200\ncount: 1\noverrides: {gemm_sustained_fraction: 0.62}\n")
    settled, notes = answered(str(own))
    assert "given: gemm_sustained_fraction 0.62" in notes
    assert not any("published machines differ" in note for note in notes)
    assert settled["iter_time_s"] == plan["iter_time_s"]
    assert low_percent(plan) < low_percent(settled) - 10.0
    assert settled["iter_time_s_upper"] < plan["iter_time_s_upper"]
