"""Real jobs, planned for the processes of a CPU and started by the script that was emitted.

Ten steps of a tiny model over gloo under DeepSpeed and under Accelerate's FSDP2, with the files
that ``planner plan --emit`` wrote and nothing else but a training script.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starts import of_ranks, run_worker

from planner.answers.plan_file import load_plan
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).with_name("training")
SEQ_LEN, GLOBAL_BATCH, MICRO_BATCH = 64, 16, 2
TIMEOUT_S = 240
LEARNING_RATE = "0.003"
JOBS = (
    ("deepspeed", "zero=1", 2),
    ("deepspeed", "zero=2", 4),
    ("deepspeed", "zero=3", 2),
    ("accelerate", "zero=3", 2),
)


def emitted(framework: str, stage: str, num_ranks: int, folder: Path) -> Strategy:
    """Plan for so many processes, write the folder, and return the strategy it is to run."""
    fix = f"{stage},dp={num_ranks},gpus={num_ranks},dp_replicate=1,micro_batch={MICRO_BATCH}"
    words = [
        "plan", str(FOLDER / "tiny-gpt.yaml"), str(FOLDER / "cpu-cluster.yaml"),
        "--framework", framework, "--global-batch", str(GLOBAL_BATCH), "--fix", fix,
        "--forbid", "offload,recompute", "--emit", framework, "--out", str(folder),
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "planner.cli.app", *words], check=True, text=True)
    return load_plan(folder / "plan.yaml")[1]


def fill_in(folder: Path) -> None:
    """Add the learning rate, without which the launch of DeepSpeed's file stops."""
    path = folder / "ds_config.json"
    if path.is_file():
        config = json.loads(path.read_text())
        config["optimizer"].setdefault("params", {})["lr"] = float(LEARNING_RATE)
        path.write_text(json.dumps(config))


def trained(folder: Path, script: str, num_ranks: int) -> list[dict[str, Any]]:
    """Run the emitted launch script and return what every rank reports."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(FOLDER),
        "TRAIN_SCRIPT": str(FOLDER / script),
        "LEARNING_RATE": LEARNING_RATE,
        "SEQ_LEN": str(SEQ_LEN),
        "MICRO_BATCH": str(MICRO_BATCH),
        "OUT": str(folder),
    }
    run_worker(["bash", str(folder / "launch.sh")], folder, environment, TIMEOUT_S)
    return of_ranks(folder, num_ranks)


@pytest.mark.parametrize(("framework", "stage", "num_ranks"), JOBS)
def test_an_emitted_job_trains_as_it_was_planned(
    framework: str, stage: str, num_ranks: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    strategy = emitted(framework, stage, num_ranks, folder)
    fill_in(folder)
    ranks = trained(folder, f"train_{framework}.py", num_ranks)
    for made in ranks:
        assert made["world_size"] == num_ranks == strategy.num_gpus
        assert made["num_micro_batches"] == strategy.num_micro_batches
        assert made["steps"] == 10
        assert made["losses"][-1] < 0.9 * made["losses"][0]
    owned = sum(made["shard_elements"] for made in ranks)
    num_params = ranks[0]["num_params"]
    assert num_params <= owned < 1.01 * num_params
    assert max(made["shard_elements"] for made in ranks) < 1.01 * num_params / num_ranks
    if framework == "deepspeed":
        assert {made["zero_stage"] for made in ranks} == {strategy.zero_stage}
        assert {made["micro_batch"] for made in ranks} == {strategy.micro_batch}
        assert {made["global_batch"] for made in ranks} == {GLOBAL_BATCH}
    else:
        assert {made["reshards"] for made in ranks} == {strategy.zero_stage == 3}
        assert {made["mesh"]["dp_shard"] for made in ranks} == {num_ranks}
