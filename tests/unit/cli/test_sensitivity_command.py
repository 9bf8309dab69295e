"""The sensitivity command: it agrees with planning again, and says so first."""

from pathlib import Path

import pytest
from in_process import json_of, planner

from planner.calibrate.fit import read_base

NARROW = (
    *("--tp", "1", "--pp", "1", "--cp", "1", "--micro-batch", "1", "--zero-stage", "1"),
    *("--schedule", "1f1b", "--forbid", "offload,recompute", "--global-batch", "64"),
)


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        (
            ("gpt3-xl", "2xdgx-a100-640", *NARROW),
            "planner calibrate --measure 2xdgx-a100-640 all_reduce_perf.txt --out mine.yaml",
        ),
        (
            ("gpt3-small", "1xa100-sxm-80", "--global-batch", "8"),
            "planner calibrate --measure 1xdgx-a100-640 --out mine.yaml",
        ),
    ],
)
def test_what_is_worth_measuring_is_measured_by_the_next_command(
    question: tuple[str, ...], wanted: str
) -> None:
    run = planner("sensitivity", *question, "--framework", "megatron")
    start = "torchrun --no-python --nproc-per-node 8 " if "dgx" in question[1] else ""
    assert f"\nNext: {start}{wanted}\n" in run.out
    place = wanted.split("--measure ")[1].split()[0]
    assert read_base(place).cluster.num_nodes == int(question[1][0])


def test_a_saved_plan_stands_beside_the_best_one(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    question = ("gpt3-small", "1xa100-sxm-80", "--global-batch", "8", "--micro-batch", "1")
    assert planner("plan", *question, "--save", str(path)).code == 0
    document = json_of("sensitivity", str(path))
    assert document["given"]["strategy"]["micro_batch"] == 1
    assert document["best"]["iter_time_s"] < document["given"]["iter_time_s"]
    peak = document["figures"][0]
    doubled = peak["points"][-1]
    assert doubled["best_iter_time_s"] < doubled["plan_iter_time_s"]
