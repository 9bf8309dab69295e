"""``planner compare``: the verdict first, and one bad log loses nothing of the others."""

import json
from pathlib import Path
from typing import Any

import pytest

LOGS = Path(__file__).resolve().parents[2] / "examples" / "logs"
MACHINE = ("--cluster", "16xjean-zay-v100")


@pytest.fixture
def log() -> str:
    return str(LOGS / "megatron-v100-n8.log")


def test_the_verdict_comes_first(log: str, planner: Any) -> None:
    run = planner("compare", log, *MACHINE)
    assert run.code == 0
    assert run.out.startswith(f"{log}: Slower than priced: +1")


def test_a_bad_log_is_said_behind_the_good_ones(log: str, tmp_path: Path, planner: Any) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text("hello\n")
    run = planner("compare", str(bad), log, *MACHINE)
    assert run.code == 2
    assert "Slower than priced" in run.out
    assert f"{bad}::file: is of no known form" in run.err
    data = planner("compare", str(bad), log, *MACHINE, "--format", "json")
    assert data.code == 2
    assert [one["path"] for one in json.loads(data.out)["logs"]] == [log]
    none = planner("compare", str(bad), "--format", "json")
    assert (none.code, none.out) == (2, "")


def test_without_a_cluster_the_steps_alone_are_said(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planner: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run = planner("compare", log)
    assert run.code == 0
    assert "Not priced" in run.out
    assert "1.617 s an iteration" in run.out
    assert "--cluster needed" in run.out


def test_a_file_gives_the_layout_that_a_log_lacks(tmp_path: Path, planner: Any) -> None:
    config = tmp_path / "ds.json"
    config.write_text(
        '{"train_batch_size": 128, "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 0}}'
    )
    name = str(LOGS / "deepspeed-chat-sft-1.3b.log")
    job = ("--model", "opt-1.3b", "--cluster", "2xdgx-a100-640", "--seq-len", "512")
    run = planner("compare", name, *job, "--config", str(config))
    assert run.code == 0
    assert "0.7452 s an iteration" in run.out
    assert "opt-1.3b, 16 a100-sxm-80: dp=16" in run.out
