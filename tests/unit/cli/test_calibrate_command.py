"""``planner calibrate``: what it writes, what it refuses, and that nothing is replaced unasked."""

import sys
from pathlib import Path

import pytest
from in_process import json_of, planner
from tables import synthetic

from planner.calibrate.rows import table_text
from planner.catalog.clusters import load_cluster
from planner.cli import measure as command

TABLE = "m,n,k,dtype,tflops\n8192,8192,8192,bf16,600\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gemm.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_measured", lambda *_, **__: synthetic())
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("folder", "measures")
def test_what_was_measured_is_a_machine_that_plans_take_and_a_table_to_fit_again() -> None:
    run = planner("calibrate", "--measure", "--out", "own.yaml")
    assert run.code == 0
    assert "own: 9 figures from 58 points" in run.out
    assert "wrote own.csv" in run.err
    again = planner("calibrate", "own.csv", "--out", "again.yaml")
    assert again.code == 0
    one, other = (load_cluster(Path(name)) for name in ("own.yaml", "again.yaml"))
    assert one.accelerator.gemm.launch_s == pytest.approx(other.accelerator.gemm.launch_s, rel=0.01)
    fitted = planner("calibrate", "own.yaml", "own.csv", "--dry-run")
    assert fitted.code == 0
    job = ("--framework", "deepspeed", "--global-batch", "8", "--seq-len", "64", "--top", "1")
    plan = planner("plan", "gpt2-small", "own.yaml", *job)
    assert plan.code == 0, plan.err
    assert "fp32" in plan.out


@pytest.mark.usefixtures("folder", "measures")
def test_measuring_writes_nothing_dry_and_asks_before_it_measures() -> None:
    dry = planner("calibrate", "--measure", "--dry-run", "--out", "own.yaml")
    assert dry.code == 0
    assert not Path("own.yaml").exists()
    assert not Path("own.csv").exists()
    Path("own.csv").write_text("mine")
    kept = planner("calibrate", "--measure", "--out", "own.yaml")
    assert (kept.code, Path("own.csv").read_text()) == (2, "mine")
    assert "--table: exists already" in kept.err
    assert planner("calibrate", "--measure", "nosuch").code == 2


@pytest.mark.usefixtures("folder")
def test_another_machine_is_refused_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = pytest.importorskip("planner.calibrate.measure")
    alone = {"rank": 0, "size": 1, "device": None, "machine": synthetic().machine}
    monkeypatch.setattr(measure, "join", lambda: measure.World(**alone))
    monkeypatch.setattr(measure, "all_tasks", lambda *_: pytest.fail("measured"))
    refused = planner("calibrate", "--measure", "1xdgx-h100", "--dry-run")
    assert refused.code == 2
    assert "::# device: measured on A Processor, cpu; 1xdgx-h100 has h100-sxm" in refused.err


@pytest.mark.usefixtures("folder", "measures")
def test_processes_but_the_first_say_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    run = planner("calibrate", "--measure", "--out", "own.yaml")
    assert (run.code, run.out, run.err) == (0, "", "")
    assert not Path("own.yaml").exists()
    wrong = planner("calibrate", "--measure", "--out", "own.txt")
    assert (wrong.code, wrong.err) == (2, "")


@pytest.mark.usefixtures("folder")
def test_without_torch_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "planner.calibrate.measure", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    run = planner("calibrate", "--measure")
    assert run.code == 2
    assert "torch is not installed; pip install 'parallel-planner[measure]'" in run.err


@pytest.mark.usefixtures("folder")
def test_a_machine_stated_whole_is_a_document_too() -> None:
    Path("own.csv").write_text(table_text(synthetic()))
    body = json_of("calibrate", "own.csv")
    assert body["accelerator"] == "a-2-threads"
    assert "assumed" in {figure["basis"] for figure in body["figures"]}
    assert "hbm_gb_per_s" in body["cluster_file"]
