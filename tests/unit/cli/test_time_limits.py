"""``--time-limit`` holds on every command that searches, and what it cut is said."""

import time
from pathlib import Path

import pytest
from in_process import planner

SPARE_S = 60.0
"""Beside the limit: start-up, the first search's enumeration, explanations, a slow machine."""
MODEL, CLUSTER = "deepseek-v3", "256xdgx-h100"
ARGS = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights "
    "--vocab-size 128256 --make-vocab-size-divisible-by 128 --seq-length 8192 "
    "--max-position-embeddings 8192 --bf16 --tensor-model-parallel-size 1 "
    "--pipeline-model-parallel-size 1 --micro-batch-size 8 --global-batch-size 16384"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("why", MODEL, CLUSTER, "--fix", "tp=4"), "limit"),
        (("size", MODEL, "dgx-h100", "--gpus", "2048,4096"), "limit"),
        (("size", MODEL, "dgx-h100", "--max-gpus", "4096"), "NOT proved"),
    ],
    ids=["why", "scaling", "size"],
)
def test_a_search_ends_in_time_and_says_that_it_was_cut(words: tuple[str, ...], said: str) -> None:
    start = time.monotonic()
    run = planner(*words, "--time-limit", "0.5")
    assert time.monotonic() - start < SPARE_S
    assert said in run.out or "--time-limit" in run.err
    assert run.code in (0, 3)


def test_a_repair_ends_in_time_and_says_that_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planner.toml").write_text("")
    (tmp_path / "train.args").write_text(ARGS)
    job = ("--model", "llama3.1-70b", "--gpus", "2048")
    run = planner(
        "check", "train.args", "--fix", "--cluster", CLUSTER, *job, "--time-limit", "0.01"
    )
    assert run.code == 3
    assert "No repair was found within the time limit" in run.out
    checked = planner(
        *("check", "train.args", "--cluster", CLUSTER, *job, "--no-advice"),
        *("--time-limit", "0.01"),
    )
    assert checked.code == 1
    assert "no change that makes it fit was found within the time limit" in checked.out
    whole = planner("check", "train.args", "--fix", "--cluster", CLUSTER, *job)
    assert whole.code == 0
    assert "time limit" not in whole.out
