"""Which files of scripts and words a repair replaces, and how it leaves their bytes."""

import stat
from pathlib import Path

import pytest
from in_process import Run, planner

MODEL, CLUSTER = "llama3-8b", "1xdgx-h100"
SHAPE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --rotary-base 500000 --disable-bias-linear "
    "--untie-embeddings-and-output-weights "
    "--seq-length 8192 --max-position-embeddings 8192 --bf16"
)
LAUNCH = "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py"
BATCH = "--micro-batch-size 4 --global-batch-size 512"
LAYOUT = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1"
PLAIN = f"{LAUNCH} {SHAPE} {BATCH} {LAYOUT} --data-path 'my data'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present folder, without settings above it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planner.toml").write_text("")


def fix(path: Path, *options: str) -> Run:
    job = ("--cluster", CLUSTER, "--model", MODEL, *options)
    return planner("check", str(path), "--fix", "--apply", *job)


def test_a_read_only_file_is_not_replaced() -> None:
    script = Path("train.sh")
    script.write_text(PLAIN)
    script.chmod(stat.S_IRUSR)
    run = fix(script)
    assert run.code == 2
    assert "is read-only" in run.err
    assert script.read_text() == PLAIN


def test_a_file_of_two_names_keeps_them() -> None:
    script = Path("train.sh")
    script.write_text(PLAIN)
    Path("other.sh").hardlink_to(script)
    run = fix(script)
    assert run.code == 2
    assert "2 names (hard links)" in run.err


def test_line_ends_of_windows_stay() -> None:
    args = Path("train.args")
    words = f"{SHAPE} {BATCH} {LAYOUT}".replace(" --", "\n--")
    args.write_bytes(words.replace("\n", "\r\n").encode() + b"\r\n")
    run = fix(args, "--gpus", "8")
    assert run.code == 0, run.err
    data = args.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 0
