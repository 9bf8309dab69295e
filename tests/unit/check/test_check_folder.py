"""Folders are checked as a whole: what the launch script sets holds for the files beside it."""

from pathlib import Path

import yaml
from plan_document import plan_document

from planner.check.folder import check_folder
from planner.check.job import Request

ARGUMENTS = """{
  "per_device_train_batch_size": 1,
  "bf16": true,
  "activation_checkpointing": true,
  "fsdp": true
}"""
LAUNCH = """\
export PARALLELISM_CONFIG_TP_SIZE=2 PARALLELISM_CONFIG_DP_SHARD_SIZE=4
torchrun --nnodes=1 --nproc-per-node=8 train.py args.json
"""
REQUEST = Request(model="llama3-8b", cluster="2xdgx-h100", with_advice=False)


def folder(tmp_path: Path, **files: str) -> str:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return str(tmp_path)


def test_the_launch_script_says_gpus_and_mesh(tmp_path: Path) -> None:
    path = folder(tmp_path, args_json=ARGUMENTS, launch_sh=LAUNCH, README_md="# read me")
    (result,) = check_folder(path, REQUEST)
    assert result.num_gpus == 8
    assert not result.fails
    wrong = folder(tmp_path, launch_sh=LAUNCH.replace("TP_SIZE=2", "TP_SIZE=3"))
    (result,) = check_folder(wrong, REQUEST)
    assert result.fails


def test_a_plan_says_for_what_job_the_files_beside_it_are(tmp_path: Path) -> None:
    document = plan_document({"seq_len": 2048})
    path = folder(tmp_path, args_json=ARGUMENTS, plan_yaml=yaml.safe_dump(document))
    config, plan = check_folder(path, Request(num_gpus=16, with_advice=False))
    assert (config.model, config.cluster) == (plan.model, plan.cluster)
    assert config.assumed == ()
    assert config.figures is not None


def test_a_folder_without_configurations_is_unreadable(tmp_path: Path) -> None:
    (result,) = check_folder(folder(tmp_path, notes_txt="nothing"), REQUEST)
    assert not result.is_readable
    assert not result.is_recognised
