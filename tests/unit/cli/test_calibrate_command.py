"""``planner calibrate``: what it writes, what it refuses, and that nothing is replaced unasked."""

from pathlib import Path
from typing import Any

import pytest

from planner.catalog.clusters import load_cluster

TABLE = "m,n,k,dtype,tflops\n8192,8192,8192,bf16,600\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gemm.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_written_that_plans_take(folder: Path, planner: Any) -> None:
    run = planner("calibrate", "2xdgx-h100", "gemm.csv", "--out", "mine.yaml")
    assert run.code == 0
    own = load_cluster(folder / "mine.yaml")
    assert own.num_nodes == 2
    assert 0.6 < own.accelerator.gemm.sustained_fraction < 0.747


def test_nothing_is_written_dry_or_over_another_file(folder: Path, planner: Any) -> None:
    dry = planner("calibrate", "1xdgx-h100", "gemm.csv", "--out", "mine.yaml", "--dry-run")
    assert dry.code == 0
    assert not (folder / "mine.yaml").exists()
    (folder / "mine.yaml").write_text("mine")
    run = planner("calibrate", "1xdgx-h100", "gemm.csv", "--out", "mine.yaml")
    assert run.code == 2
    assert (folder / "mine.yaml").read_text() == "mine"
    forced = planner("calibrate", "1xdgx-h100", "gemm.csv", "--out", "mine.yaml", "--force")
    assert forced.code == 0


def test_problems_of_all_files_are_said_at_once(folder: Path, planner: Any) -> None:
    (folder / "fast.csv").write_text(TABLE.replace("600", "6000"))
    run = planner("calibrate", "1xdgx-h100", "fast.csv", "none.csv", "gemm.csv", "--out", "x.yaml")
    assert run.code == 2
    assert "fast.csv::line 2" in run.err
    assert "none.csv::file: no such file" in run.err
    assert not (folder / "x.yaml").exists()


@pytest.mark.parametrize("cluster", ["4xh100-sxm", "nosuch"])
def test_a_cluster_that_is_no_whole_nodes_is_refused(
    folder: Path, planner: Any, cluster: str
) -> None:
    assert planner("calibrate", cluster, "gemm.csv").code == 2
