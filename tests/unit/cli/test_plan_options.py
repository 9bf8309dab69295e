"""Options of the plan command that narrow, aim and stop a search."""

import csv
import io
import itertools
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import json_of, planner

from planner.answers.plan_file import load_plan
from planner.cost.estimate import estimate
from planner.search.ranking.penalties import TIE_FRACTION

SMALL = ("plan", "llama3-8b", "1xdgx-h100", "--global-batch", "32", "--seq-len", "4096")
JOB = (*SMALL, "--tokens", "10B")


def answer(*options: str, question: tuple[str, ...] = SMALL) -> Any:
    return json_of(*question, *options)


def test_every_plan_keeps_what_is_fixed_and_says_so() -> None:
    options = ("--fix", "tp=2|4,zero=1", "--limit", "pp<=2", "--forbid", "offload", "--frontier")
    data = answer(*options)
    assert data["inputs"]["narrowing"] == [
        "--fix tp=2|4", "--fix zero=1", "--limit pp<=2", "--forbid offload",
    ]  # fmt: skip
    tables = (data["plans"], data["ladder"], data["pareto"])
    assert all(tables)
    variants = (variant for plan in data["plans"] for variant in plan["variants"])
    for plan in itertools.chain(*tables, variants, filter(None, [data["fastest"]])):
        strategy = plan["strategy"]
        assert strategy["tp"] in (2, 4)
        assert strategy["zero_stage"] == 1
        assert strategy["pp"] <= 2
        assert strategy["offload"] == "none"


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


def test_frameworks_that_do_not_offer_a_fixed_value_drop_out_with_a_note() -> None:
    data = answer("--framework", "any", "--fix", "offload=optimizer:nvme")
    assert data["inputs"]["frameworks"] == ["deepspeed"]
    notes = [note for note in data["inputs"]["assumed"] if note.startswith("left out for --fix")]
    assert len(notes) == 3
    assert "megatron does not offer offload optimizer:nvme" in notes[0]
    nobody = planner(*SMALL, "--framework", "any", "--fix", "zero=3", "--fix", "schedule=zb-v")
    assert nobody.code == 2
    assert len(nobody.err.splitlines()) == 4


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


def test_cost_ranks_by_cost_over_all_numbers_of_gpus() -> None:
    data = answer("--objective", "cost", "--top", "8", "--pareto", "cost,time")
    costs = [plan["cost_usd"] for plan in data["plans"]]
    assert costs == sorted(costs)
    assert costs[0] == min(plan["cost_usd"] for plan in data["pareto"])
    assert data["aim"] == {
        "objective": "cost", "limits": None, "pareto": ["cost", "time"], "headroom_gib": None,
    }  # fmt: skip
    energy = answer("--objective", "energy")["plans"][0]
    assert energy["strategy"] == data["plans"][0]["strategy"]
    assert energy["energy_kwh"] == pytest.approx(0.7 * energy["gpu_hours"])


def test_fewest_gpus_within_the_limits() -> None:
    frontier = answer("--frontier", question=JOB)["pareto"]
    enough = [plan for plan in frontier if plan["days"] <= 5.0]
    data = answer("--objective", "gpus", "--deadline", "5d", question=JOB)
    assert data["plans"][0]["gpus"] == enough[0]["gpus"]
    slower = data["plans"][0]["iter_time_s"] / enough[0]["iter_time_s"] - 1.0
    assert 0.0 <= slower <= TIE_FRACTION
    gpus = [plan["gpus"] for plan in data["plans"]]
    assert gpus == sorted(gpus)
    assert all(plan["days"] <= 5.0 for plan in data["plans"])
    text = planner(*JOB, "--objective", "gpus", "--deadline", "5d", "--frontier").out
    assert "Plans on the fewest GPUs within the limits: 10B tokens in 5 days" in text
    assert "misses" in text


def test_headroom_says_what_is_left_and_every_plan_leaves_it() -> None:
    data = answer("--objective", "headroom", "--deadline", "5d", question=JOB)
    gib = data["aim"]["headroom_gib"]
    assert gib > 0
    for plan in data["plans"]:
        assert plan["memory"]["headroom_bytes"] >= gib * 2**30 * (1 - 1e-9)
        assert plan["days"] <= 5.0
    assert max(p["memory"]["headroom_bytes"] for p in data["plans"]) < (gib + 1) * 2**30


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


def test_pareto_with_energy_and_headroom() -> None:
    narrow = ("--fix", "tp=1,offload=none,vpp=1", "--forbid", "recompute", "--fix", "micro_batch=1")
    data = answer(*narrow, "--pareto", "energy,headroom,gpus")
    points = [
        (plan["gpus"], plan["energy_kwh"], -(plan["memory"]["headroom_bytes"] // 2**30))
        for plan in data["pareto"]
    ]
    assert len(points) > 1
    for one, other in itertools.permutations(points, 2):
        assert not all(a <= b for a, b in zip(one, other, strict=True))
    text = planner(*SMALL, *narrow, "--pareto", "energy,headroom,gpus").out
    assert "Plans that none beats in energy, headroom (whole GiB) and GPUs (complete" in text
    rows = planner(*SMALL, *narrow, "--pareto", "energy,headroom,gpus", "--format", "csv").out
    table = [row for row in csv.DictReader(io.StringIO(rows)) if row["table"] == "pareto"]
    assert len(table) == len(points)
    assert all(float(row["energy_kwh"]) > 0 for row in table)
