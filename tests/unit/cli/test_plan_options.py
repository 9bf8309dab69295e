"""Options of the plan command that narrow, aim and stop a search."""

import itertools
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import planner

from planner.answers.plan_file import load_plan
from planner.cost.estimate import estimate

SMALL = ("plan", "llama3-8b", "1xdgx-h100", "--global-batch", "32", "--seq-len", "4096")
JOB = (*SMALL, "--tokens", "10B")


@pytest.mark.parametrize(
    "options",
    [
        ("--fix", "sp=off", "--fix", "tp=4"),
        ("--fix", "micro_batch=2,vpp=2", "--forbid", "recompute"),
        ("--fix", "offload=optimizer:host", "--fix", "offload_percent=50"),
        ("--fix", "dp_replicate=2"),
        ("--fix", "recompute=full"),
        ("--fix", "placement=tp-cp-ep-pp-dp", "--allow", "cross-domain-tp"),
        ("--objective", "headroom"),
    ],
)
def test_a_saved_plan_reads_back_whatever_was_fixed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "plan.yaml"
    run = planner(*SMALL, *options, "--save", str(path), "--format", "json")
    assert run.code == 0, run.err
    best = json.loads(run.out)["plans"][0]
    context, strategy, _ = load_plan(path)
    again = estimate(context, strategy)
    assert again.iter_time_s == pytest.approx(best["iter_time_s"])
    assert again.memory.peak_bytes == pytest.approx(best["memory"]["peak_bytes"])
    assert again.memory.usable_bytes == pytest.approx(best["memory"]["usable_bytes"])


def test_a_time_limit_reports_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() if next(looks) < 5 else math.inf)
    monkeypatch.setattr("planner.search.ranking.exploration.time", clock)
    run = planner("plan", "gpt3-175b", "64xdgx-h100", "--time-limit", "60", "--frontier")
    assert run.code == 0
    text = " ".join(run.out.split())
    assert "optimality NOT proved: a plan up to " in text
    assert "% faster may exist" in text
    assert "as far as the search got" in text


def test_limits_that_cannot_be_kept_exit_3_with_everything_known() -> None:
    run = planner(*JOB, "--deadline", "1h", "--frontier")
    assert run.code == 3
    assert "No plan keeps the limits: 10B tokens in " in run.out
    assert "misses" in run.out
    lines = run.err.splitlines()
    assert lines[0].startswith("no size will do: llama3-8b on up to 8 GPUs of dgx-h100")
    assert lines[1].startswith("limit: deadline; the fastest, 8 GPUs")
    assert lines[2].startswith("nearest changes: --deadline ")
    changed = lines[2].split("--deadline ")[1].split(" ")[0]
    assert planner(*JOB, "--deadline", changed).code == 0
