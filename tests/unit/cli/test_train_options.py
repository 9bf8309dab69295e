"""``--train``, ``--lora-rank``, ``--lora-targets``: plans, files and refusals."""

import json
import re
from pathlib import Path

import pytest
import yaml
from in_process import planner

SMALL = ("llama3.2-1b", "1xrtx4090", "--seq-len", "1024", "--global-batch", "8")
PEFT = ("--framework", "accelerate", "--train", "qlora", "--lora-rank", "8")


def test_a_saved_plan_is_read_back_as_it_was_made(tmp_path: Path) -> None:
    saved = tmp_path / "plan.yaml"
    targets = ("--lora-targets", "q_proj,v")
    made = planner("plan", *SMALL, *PEFT, *targets, "--format", "json", "--save", str(saved))
    assert made.code == 0, made.err
    stated = {"train": "qlora", "lora_rank": 8, "lora_targets": ["q", "v"]}
    inputs = json.loads(made.out)["inputs"]
    assert {name: inputs[name] for name in stated} == stated
    inputs = yaml.safe_load(saved.read_text(encoding="utf-8"))["inputs"]
    assert {name: inputs[name] for name in stated} == stated
    again = planner("explain", str(saved), "memory.frozen_weights")
    assert again.code == 0, again.err
    assert "traits.training.mode" in again.out


def test_a_plan_file_with_a_rank_that_no_matrix_has_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "plan.yaml"
    assert planner("plan", *SMALL, *PEFT, "--save", str(saved)).code == 0
    saved.write_text(saved.read_text(encoding="utf-8").replace("lora_rank: 8", "lora_rank: 0"))
    run = planner("explain", str(saved))
    assert run.code == 2
    assert "plan.yaml::inputs.lora_rank: must be at least 1; given 0" in run.err


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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"r": 16', '"r": true', "lora.r: must be a whole number from 1 to 65,536; given True"),
        ('"all-linear"', '["w1"]', "lora.target_modules: unknown target 'w1'"),
        (
            '"bias"',
            '"modules_to_save": ["o_proj"], "bias"',
            "allowed are modules of embedding, head",
        ),
        ('"bias"', '"use_dora": true, "bias"', "lora.use_dora: not modelled; given True"),
        (
            '"nf4"',
            '"fp4"',
            "quantization: plans price load_in_4bit true, bnb_4bit_quant_type nf4",
        ),
    ],
)
def test_an_unsound_adapter_file_is_said_at_its_key(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    out = tmp_path / "run"
    emit = ("--emit", "trainer", "--out", str(out))
    assert planner("plan", *SMALL, "--train", "qlora", *emit).code == 0
    file = out / "adapter.json"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    run = planner("check", str(out))
    assert run.code == 2
    assert re.search(rf"adapter\.json::.*{re.escape(said)}", " ".join(run.out.split()))


def test_a_repair_keeps_the_adapters_in_mind(tmp_path: Path) -> None:
    out = tmp_path / "run"
    emit = ("--emit", "trainer", "--out", str(out))
    job = ("--seq-len", "2048", "--global-batch", "16")
    made = planner("plan", "llama3.1-8b", "1xrtx4090", *job, "--train", "qlora", *emit)
    assert made.code == 0, made.err
    file = out / "training_arguments.json"
    text = file.read_text(encoding="utf-8")
    assert '"gradient_accumulation_steps": 8' in text
    file.write_text(text.replace('steps": 8', 'steps": 4'), encoding="utf-8")
    run = planner(
        "check", str(file), "--fix", "--cluster", "1xrtx4090", "--model", "llama3.1-8b", *job
    )
    assert run.code == 0, run.out + run.err
    assert "cpu_offload" not in run.out
    assert '+  "gradient_accumulation_steps": 8' in run.out


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
