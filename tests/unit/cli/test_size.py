"""The size command: answers, formats, exit codes, and options that keep what they promise."""

import re
import shlex
from typing import Any

import pytest
from in_process import json_of, planner

JOB = ("size", "llama3-8b", "dgx-h100", "--tokens", "100B", "--max-gpus", "256")
QUESTION = (*JOB, "--global-batch", "96", "--seq-len", "4096")
DAY_S = 86400.0


def answer(*options: str) -> Any:
    return json_of(*QUESTION, *options)


def test_json_holds_every_size_in_base_units() -> None:
    data = answer("--deadline", "5d", "--budget", "$1M")
    chosen = data["chosen"]
    assert data["limits"]["deadline_s"] == 5 * DAY_S
    assert data["limits"]["budget_usd"] == 1e6
    assert chosen["total_s"] <= 5 * DAY_S
    assert chosen["gpus"] == 8 * chosen["nodes"]
    assert chosen["gpu_hours"] == pytest.approx(chosen["gpus"] * chosen["total_s"] / 3600)
    assert chosen["cost_usd"] == pytest.approx(3.2 * chosen["gpu_hours"])
    assert chosen["energy_kwh"] == pytest.approx(0.7 * chosen["gpu_hours"])
    for size in data["sizes"]:
        late = size["total_s"] > 5 * DAY_S
        assert ("deadline" in size["misses"]) == late
        assert late == (size["gpus"] < chosen["gpus"])
    assert data["nearest"] == []
    assert data["enough"] is None


def test_the_batch_does_not_depend_on_the_largest_cluster() -> None:
    sizes = []
    for most in ("64", "8192"):
        data = json_of(*JOB[:-1], most, "--deadline", "60d")
        assert data["inputs"]["global_batch"] == 512
        assert any("default at any number of GPUs" in note for note in data["inputs"]["assumed"])
        sizes.append((data["chosen"]["gpus"], data["chosen"]["iter_time_s"]))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "limits",
    [
        ("--deadline", "2d", "--budget", "7.8k"),
        ("--min-tokens-per-s", "100M"),
        ("--deadline", "1h", "--budget", "1k"),
    ],
)
def test_each_nearest_change_does_what_it_says(limits: tuple[str, ...]) -> None:
    run = planner(*QUESTION, *limits)
    assert run.code == 3
    changes = run.err.splitlines()[2].removeprefix("nearest changes: ").split("; ")
    assert changes
    for change in changes:
        options = shlex.split(re.sub(r" \(.*\)$", "", change).replace(" and ", " "))
        assert planner(*QUESTION, *limits, *options).code == 0


def test_a_larger_cluster_that_would_do_is_named() -> None:
    arguments = [*QUESTION, "--deadline", "5d"]
    arguments[arguments.index("256")] = "16"
    run = planner(*arguments)
    assert run.code == 3
    most = re.search(r"--max-gpus (\d+)", run.err)
    arguments[arguments.index("16")] = most[1]
    assert planner(*arguments).code == 0


def test_without_a_limit_the_fewest_gpus_that_hold_it() -> None:
    asked = ("--framework", "deepspeed", "--seq-len", "2048")
    text = " ".join(planner("size", "llama2-7b", "rtx4090", *asked).out.split())
    assert "misses by" not in text
    data = json_of("size", "llama2-7b", "rtx4090", *asked)
    fewest = data["chosen"]["gpus"]
    assert f"{fewest} GPUs (of a pcie-8x-rtx4090) are the fewest that hold it." in text
    assert data["sizes"][0]["gpus"] == fewest < data["sizes"][-1]["gpus"]
    assert data["resident"]["gpus"] >= fewest
    assert data["resident"]["strategy"]["offload"] == "none"
    options = (*asked, "--global-batch", "2048", "--top", "1", "--time-limit", "5")
    assert planner("plan", "llama2-7b", f"{fewest - 1}xrtx4090", *options).code == 3
