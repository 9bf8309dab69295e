"""Scripts in the forms people write them, run before and after their repair with a stub launcher.

Whatever the environment, what is no decision of a plan reaches the launcher unchanged, and the
words that do reach it are sound.
"""

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from in_process import planner

from planner.formats.format import SourceText
from planner.formats.megatron.format import options_in
from planner.formats.megatron.mapping import OWNED

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

SCRIPTS = {
    "plain words": f"{LAUNCH} {SHAPE} {BATCH} {LAYOUT} --data-path 'my data'\n",
    "continued lines": f"{LAUNCH} \\\n  {SHAPE} \\\n  {BATCH} \\\n  {LAYOUT} \\\n  --lr 1e-4\n",
    "a layout in variables": (
        f"tp=1\npp=1\nMBS=4\n{LAUNCH} {SHAPE} --micro-batch-size $MBS --global-batch-size 512 "
        "--tensor-model-parallel-size $tp --pipeline-model-parallel-size ${pp} --lr 1e-4\n"
    ),
    "variables with defaults": (
        f"TP=${{TP:-1}}\n{LAUNCH} {SHAPE} {BATCH} --tensor-model-parallel-size $TP --lr 1e-4\n"
    ),
    "a quoted string": f'ARGS="{SHAPE} {BATCH}"\nOPTS="{LAYOUT}"\n{LAUNCH} $ARGS $OPTS\n',
    "an array": (
        f"ARGS=(\n    {SHAPE}\n    {BATCH}\n    {LAYOUT}\n"
        f'    --data-path "my data"\n)\n{LAUNCH} "${{ARGS[@]}}"\n'
    ),
    "an array that grows under a condition": (
        f"ARGS=({SHAPE} {BATCH} {LAYOUT})\n"
        'LOG=(--log-interval 1 --tensorboard-dir "${HOME}/board")\n'
        'if [ -n "${WANDB_API_KEY}" ]; then\n'
        "    LOG+=(--wandb-project p --wandb-exp-name e)\nfi\n"
        f"{LAUNCH} ${{ARGS[@]}} ${{LOG[@]}}\n"
    ),
    "words behind &&": (
        f'LOG=(--log-interval 1)\n[ -n "$WANDB_API_KEY" ] && LOG+=(--wandb-project p)\n'
        f'{LAUNCH} {SHAPE} {BATCH} {LAYOUT} "${{LOG[@]}}"\n'
    ),
    "a value in quotes": (
        f'{LAUNCH} {SHAPE} {BATCH} --tensor-model-parallel-size "1" --data-path "my data"\n'
    ),
    "a variable that another option shares": (
        f"N=1\n{LAUNCH} {SHAPE} {BATCH} --tensor-model-parallel-size $N --log-interval $N\n"
    ),
    "a variable that a branch sets": (
        'tp=1\nif [ -n "$WANDB_API_KEY" ]; then log=2; else log=3; fi\n'
        f"{LAUNCH} {SHAPE} {BATCH} --tensor-model-parallel-size $tp --log-interval $log\n"
    ),
}
ENVIRONMENTS: tuple[dict[str, str], ...] = ({}, {"WANDB_API_KEY": "x"}, {"HOME": "/a"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, without settings above it, with a stub launcher."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planner.toml").write_text("")
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "torchrun"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done > words\n')
    stub.chmod(0o755)
    return tmp_path


def words_of(script: Path, environment: dict[str, str]) -> list[str]:
    """What the launcher gets."""
    kept = {"PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}", "HOME": "/home"}
    Path("words").unlink(missing_ok=True)
    subprocess.run(["bash", str(script)], env=kept | environment, check=True, timeout=20)
    return Path("words").read_text().splitlines()


def others_of(words: list[str]) -> list[tuple[str, list[str]]]:
    """Options that are no decision of a plan, with their values, in order."""
    text = "\n".join(map(shlex.quote, words[5:]))
    (_, entries), _ = options_in(SourceText(path="words.args", text=text))
    found = [(entry.name, entry.texts) for entry in entries]
    return [
        (name, values) for name, values in found if name not in OWNED and values != ["fsdp_dtensor"]
    ]


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_repaired_script_hands_on_the_repair_and_all_else_unchanged(text: str) -> None:
    script = Path("train.sh")
    script.write_text(f"#!/bin/bash\n{text}")
    before = [words_of(script, environment) for environment in ENVIRONMENTS]
    run = planner("check", str(script), "--fix", "--cluster", CLUSTER, "--model", MODEL, "--apply")
    assert run.code == 0, run.out + run.err
    for environment, own in zip(ENVIRONMENTS, before, strict=True):
        after = words_of(script, environment)
        assert others_of(after) == others_of(own)
        Path("after.args").write_text("\n".join(map(shlex.quote, after[5:])))
        job = ("--model", MODEL, "--cluster", CLUSTER, "--gpus", "8", "--no-advice")
        checked = planner("check", "after.args", *job)
        assert checked.code == 0, checked.out


def test_a_read_only_file_is_not_replaced() -> None:
    script = Path("train.sh")
    script.write_text(SCRIPTS["plain words"])
    script.chmod(stat.S_IRUSR)
    run = planner("check", str(script), "--fix", "--cluster", CLUSTER, "--model", MODEL, "--apply")
    assert run.code == 2
    assert "is read-only" in run.err
    assert script.read_text() == SCRIPTS["plain words"]


def test_a_file_of_two_names_keeps_them() -> None:
    script = Path("train.sh")
    script.write_text(SCRIPTS["plain words"])
    Path("other.sh").hardlink_to(script)
    run = planner("check", str(script), "--fix", "--cluster", CLUSTER, "--model", MODEL, "--apply")
    assert run.code == 2
    assert "2 names (hard links)" in run.err


def test_line_ends_of_windows_stay() -> None:
    args = Path("train.args")
    words = f"{SHAPE} {BATCH} {LAYOUT}".replace(" --", "\n--")
    args.write_bytes(words.replace("\n", "\r\n").encode() + b"\r\n")
    run = planner(
        "check",
        str(args),
        "--fix",
        "--cluster",
        CLUSTER,
        "--model",
        MODEL,
        "--gpus",
        "8",
        "--apply",
    )
    assert run.code == 0, run.err
    data = args.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 0


def test_overrides_that_quotes_cannot_hold_are_said_not_written() -> None:
    script = Path("train.sh")
    text = (
        'CLI="model.tensor_model_parallel_size=1 train.global_batch_size=2048 '
        'train.micro_batch_size=4"\nCMD="python run_recipe.py --recipe r $CLI"\n'
        'srun --nodes=4 --ntasks-per-node=8 bash -c "$CMD"\n'
    )
    script.write_text(text)
    job = ("--model", "llama3.1-70b", "--gpus", "32")
    run = planner("check", str(script), "--fix", "--cluster", "4xdgx-h100", *job, "--apply")
    if run.code == 0:
        assert "|" not in script.read_text()
        assert "'" not in script.read_text()
    else:
        assert script.read_text() == text
