"""The sensitivity command: it agrees with planning again, and says so first."""

from pathlib import Path

import pytest
import yaml
from in_process import json_of, planner

from planner.answers.base import Deadline
from planner.answers.parameters import parameters
from planner.answers.whatif import Case, first_plan
from planner.calibrate.fit import read_base
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.units import GB, GBIT_PER_S

QUESTIONS = [
    ("llama3-8b", "dgx-h100", 2, "bf16_dense_tflops", 0.5),
    ("llama3-8b", "dgx-h100", 2, "bf16_dense_tflops", 2.0),
    ("llama3-8b", "dgx-h100", 2, "gemm_sustained_fraction", 0.9),
    ("llama3-8b", "dgx-h100", 2, "hbm_gb_per_s", 0.5),
    ("llama3-8b", "dgx-h100", 2, "hbm_gib", 0.5),
    ("llama3-8b", "dgx-h100", 2, "hbm_gib", 0.9),
    ("llama3-8b", "dgx-h100", 2, "hbm_gib", 2.0),
    ("llama3-8b", "dgx-h100", 2, "scale_up_gb_per_s_per_direction", 0.5),
    ("llama3-8b", "dgx-h100", 2, "nic_gbit_per_s", 0.1),
    ("llama3-8b", "dgx-h100", 2, "nic_gbit_per_s", 0.5),
    ("llama3-8b", "dgx-h100", 2, "host_link_gb_per_s_per_direction", 2.0),
    ("llama3-8b", "dgx-h100", 1, "hbm_gib", 0.5),
    ("llama3-8b", "dgx-h100", 1, "host_memory_gib", 0.5),
    ("gpt3-6.7b", "dgx-a100-320", 2, "hbm_gib", 0.9),
    ("gpt3-6.7b", "dgx-a100-320", 2, "hbm_gib", 1.1),
    ("gpt3-6.7b", "dgx-a100-320", 2, "nic_gbit_per_s", 0.5),
    ("gpt3-6.7b", "dgx-a100-320", 2, "scale_up_latency_us", 2.0),
    ("gpt3-6.7b", "dgx-a100-320", 2, "fabric_latency_us", 2.0),
    ("mixtral-8x7b", "dgx-h100", 2, "nic_gbit_per_s", 0.5),
    ("mixtral-8x7b", "dgx-h100", 2, "scale_up_gb_per_s_per_direction", 0.5),
]
PORTS_GBIT = {"dgx-h100": 400.0, "dgx-a100-320": 200.0}


@pytest.mark.parametrize(("model", "node", "count", "key", "factor"), QUESTIONS)
def test_the_winner_is_that_of_planning_again_with_an_override(
    tmp_path: Path, model: str, node: str, count: int, key: str, factor: float
) -> None:
    question = resolve(Query.of(model, f"{count}x{node}", framework="megatron", global_batch=64))
    figure = next(one for one in parameters(question.contexts[0]) if one.key == key)
    case = Case(contexts=question.contexts, narrowing=question.narrowing)
    winner = first_plan(case.with_each(lambda each: figure.scaled(each, factor)), Deadline())
    value = figure.value * factor
    if key == "nic_gbit_per_s":
        value = PORTS_GBIT[node] * factor
        assert figure.value * GB == pytest.approx(PORTS_GBIT[node] * GBIT_PER_S)
    path = tmp_path / "machine.yaml"
    path.write_text(f"node: {node}\ncount: {count}\noverrides: {{{key}: {value!r}}}\n")
    options = ("--framework", "megatron", "--global-batch", "64", "--top", "1", "--format", "csv")
    saved = tmp_path / "plan.yaml"
    run = planner("plan", model, str(path), *options, "--save", str(saved))
    assert run.code == 0, run.err
    first = yaml.safe_load(saved.read_text())
    assert winner is not None
    assert first["estimate"]["iter_time_s"] == pytest.approx(winner.estimate.iter_time_s, rel=1e-9)
    for name, stated in first["strategy"].items():
        own = getattr(winner.strategy, name)
        assert (list(own) if isinstance(own, tuple) else own) == stated


NARROW = (
    *("--tp", "1", "--pp", "1", "--cp", "1", "--micro-batch", "1", "--zero-stage", "1"),
    *("--schedule", "1f1b", "--forbid", "offload,recompute", "--global-batch", "64"),
)
SMALL = ("gpt3-xl", "1xdgx-a100-640", *NARROW)


def test_the_verdict_comes_first_and_the_table_has_what_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = planner("sensitivity", *SMALL)
    assert run.code == 0
    lines = run.out.splitlines()
    assert len(lines) <= 26
    assert max(len(line.rstrip()) for line in lines if not line.startswith("Next: ")) <= 80
    assert any("best layout" in line for line in lines[:3])
    assert "Worth measuring" in run.out
    assert "bf16 peak" in run.out
    assert "No effect:" in run.out


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


def test_crossings_of_the_job_are_named_and_agree_with_planning_again() -> None:
    question = ("llama3-8b", "1xdgx-h100", "--framework", "megatron", "--global-batch", "64")
    document = json_of("sensitivity", *question)
    of_job = [one for one in document["figures"] if not one["figure"]["is_hardware"]]
    turned = [(one["figure"]["key"], each) for one in of_job for each in one["crossings"]]
    assert turned
    for one in of_job:
        others = any(not point["same_layout"] for point in one["points"])
        assert others == bool(one["crossings"])
    crossing = next(each for name, each in turned if name == "seq_len")
    value = str(round(crossing["value"]))
    best = json_of("plan", *question, "--seq-len", value)
    own = (best["fastest"] or best["plans"][0])["strategy"]
    assert [own[axis] for axis in ("dp", "tp", "pp", "cp")] == [
        crossing["strategy"][axis] for axis in ("dp", "tp", "pp", "cp")
    ]


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
