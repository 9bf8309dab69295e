"""``--train``, ``--lora-rank``, ``--lora-targets``: plans, files and refusals."""

import json
from pathlib import Path

import pytest
from in_process import planner

SMALL = ("llama3.2-1b", "1xrtx4090", "--seq-len", "1024", "--global-batch", "8")


@pytest.mark.parametrize("format_name", ["trainer", "accelerate"])
def test_a_folder_with_adapters_is_checked_with_them(tmp_path: Path, format_name: str) -> None:
    out = tmp_path / "run"
    emit = ("--framework", "accelerate", "--emit", format_name, "--out", str(out))
    assert planner("plan", *SMALL, "--train", "qlora", *emit).code == 0
    run = planner("check", str(out), "--format", "json")
    assert run.code == 0, run.out
    plan, configuration = sorted(
        json.loads(run.out)["files"], key=lambda each: each["format"] != "plan"
    )
    assert configuration["figures"] == plan["figures"]
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "LoraConfig(**...)" in readme
    assert "| training | qlora of rank 16 on all-linear: 11.3M parameters |" in readme


@pytest.mark.parametrize("more", [(), ("--lora-targets", "q,k,v", "--fix", "tp=2")])
def test_overrides_of_adapters_are_checked_at_their_own_price(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    question = ("llama3-8b", "1xdgx-h100", "--framework", "megatron", "--profile", "bridge")
    batch = ("--train", "lora", "--seq-len", "4096", "--global-batch", "32")
    run = planner("plan", *question, *batch, *more, "--emit", "bridge", "--out", str(out))
    assert run.code == 0, run.err
    launch = (out / "launch.sh").read_text(encoding="utf-8")
    assert "--recipe llama3_8b_peft_config" in launch
    assert 'checkpoint.pretrained_checkpoint="${PRETRAINED_CHECKPOINT}"' in launch
    run = planner("check", str(out), "--format", "json")
    assert run.code == 0, run.out
    files = json.loads(run.out)["files"]
    assert len(files) == 2  # the launch script reads them
    assert all(each["figures"] == files[0]["figures"] for each in files)
