"""Folders are checked as a whole: what the launch script sets holds for the files beside it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from plan_document import plan_document

from planner.check.folder import check_folder, configuration_in
from planner.errors import InputError
from planner.query.from_file import Request

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


OVERRIDES = """\
model.tensor_model_parallel_size=2
train.micro_batch_size=1
mixed_precision.grad_reduce_in_fp32=false
"""


def peaks(path: str, request: Request) -> list[float]:
    return [each.figures.peak_bytes for each in check_folder(path, request) if each.figures]


def test_a_plan_says_of_the_framework_what_the_files_beside_it_do_not(tmp_path: Path) -> None:
    written = folder(tmp_path, bridge_overrides=OVERRIDES)
    alone = peaks(written, REQUEST)
    document = plan_document(
        {"profile": "no-overlap", "traits": {"overheads": {"fragmentation_fraction": 0.5}}}
    )
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(document))
    beside = check_folder(written, replace(REQUEST, num_gpus=16))[0].figures
    said = replace(
        REQUEST, profile="no-overlap", settings=(("overheads.fragmentation_fraction", 0.5),)
    )
    assert [beside.peak_bytes] == peaks(written, replace(said, num_gpus=16))[:1]
    assert beside.peak_bytes > alone[0]


def test_what_a_file_says_comes_before_a_profile(tmp_path: Path) -> None:
    narrow = folder(tmp_path, bridge_overrides=OVERRIDES)
    bridge = replace(REQUEST, profile="bridge")
    as_said = peaks(narrow, bridge)
    folder(tmp_path, bridge_overrides=OVERRIDES.replace("false", "true"))
    assert peaks(narrow, bridge) > as_said
    folder(tmp_path, bridge_overrides=OVERRIDES.rpartition("mixed")[0])
    assert peaks(narrow, bridge) == as_said


def test_a_profile_of_another_framework_is_none_of_the_file_s(tmp_path: Path) -> None:
    path = folder(tmp_path, bridge_overrides=OVERRIDES)
    other = replace(REQUEST, of_framework="torchtitan", profile="eager")
    assert peaks(path, other) == peaks(path, REQUEST)
    (result,) = check_folder(path, replace(REQUEST, profile="eager"))
    assert not result.is_readable
    assert "unknown profile of megatron" in result.findings[0].message


def test_the_one_configuration_of_a_folder_is_repaired(tmp_path: Path) -> None:
    script = 'eval "a=($(< bridge.overrides))"; torchrun --nproc-per-node=8 run_recipe.py "${a[@]}"'
    path = folder(tmp_path, bridge_overrides=OVERRIDES, launch_sh=script)
    name, request = configuration_in(path, REQUEST)
    assert (Path(name).name, request.num_gpus) == ("bridge.overrides", 8)
    folder(tmp_path, args_json=ARGUMENTS)
    with pytest.raises(InputError, match=r"the folder holds args.json, bridge.overrides"):
        configuration_in(path, REQUEST)
