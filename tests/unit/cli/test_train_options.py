"""``--train``, ``--lora-rank``, ``--lora-targets``: plans, files and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

SMALL = ("llama3.2-1b", "1xrtx4090", "--seq-len", "1024", "--global-batch", "8")
PEFT = ("--framework", "accelerate", "--train", "qlora", "--lora-rank", "8")


def test_the_format_of_trainer_gives_a_plan_with_a_4_bit_base(planner: Any) -> None:
    question = ("plan", "llama3.1-8b", "1xrtx4090", "--train", "qlora", "--framework", "trainer")
    run = planner(*question, "-v")
    assert run.code == 0, run.err
    assert "qlora of rank 16 on all-linear, accelerate" in " ".join(run.out.split())
    assert "adapters of rank 16 (--lora-rank changes it)" in run.out


def test_a_saved_plan_is_read_back_as_it_was_made(planner: Any, tmp_path: Path) -> None:
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


def test_a_plan_file_with_a_rank_that_no_matrix_has_is_refused(
    planner: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.yaml"
    assert planner("plan", *SMALL, *PEFT, "--save", str(saved)).code == 0
    saved.write_text(saved.read_text(encoding="utf-8").replace("lora_rank: 8", "lora_rank: 0"))
    run = planner("explain", str(saved))
    assert run.code == 2
    assert "plan.yaml::inputs.lora_rank: must be at least 1; given 0" in run.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--train", "dora"),
            "--train: unknown way to train 'dora'; allowed are full, lora",
        ),
        (("--lora-rank", "8"), "--lora-rank: belongs to --train lora or qlora; given full"),
        (("--lora-targets", "q"), "--lora-targets: belongs to --train lora or qlora; given full"),
        (
            ("--train", "lora", "--lora-rank", "0"),
            "--lora-rank: must be from 1 to 65,536; given 0",
        ),
        (
            ("--train", "lora", "--lora-rank", "513"),
            "--lora-rank: a rank above the smallest side of a targeted matrix saves nothing: 513",
        ),
        (
            ("--train", "lora", "--lora-targets", "q,c_attn"),
            "--lora-targets: unknown target 'c_attn'; allowed are all-linear, attention, mlp, q",
        ),
        (
            ("--train", "lora", "--precision", "fp8"),
            "--precision: lora under accelerate computes in bf16, fp16 here; given fp8",
        ),
    ],
)
def test_what_cannot_be_trained_so_is_refused_by_name(
    planner: Any, options: tuple[str, ...], said: str
) -> None:
    run = planner("plan", *SMALL, "--framework", "accelerate", *options)
    assert run.code == 2
    assert f"command line::{said}" in run.err


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan"])
def test_frameworks_without_adapters_here_say_what_they_train(planner: Any, framework: str) -> None:
    run = planner("plan", *SMALL, "--framework", framework, "--train", "qlora")
    assert run.code == 2
    said = f"--train: {framework} (current) trains full here; given qlora; "
    assert said in " ".join(run.err.split())
    assert "--framework accelerate trains it" in " ".join(run.err.split())


def test_megatron_lm_has_no_adapters_and_its_bridge_has(planner: Any) -> None:
    run = planner("plan", *SMALL, "--framework", "megatron", "--train", "lora")
    assert run.code == 2
    said = "given lora; --profile bridge or --framework accelerate trains it"
    assert said in " ".join(run.err.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--train", "qlora"), "--train: megatron (bridge) trains full, lora here; given qlora"),
        (("--lora-targets", "q,v"), "--lora-targets: q,k,v have one adapter here; given q,v alone"),
        (("--lora-rank", "2049"), "2049 given, allowed for llama3.2-1b is 1 to 2048"),
    ],
)
def test_what_the_bridge_cannot_train_is_refused_by_name(
    planner: Any, options: tuple[str, ...], said: str
) -> None:
    bridge = ("--framework", "megatron", "--profile", "bridge", "--train", "lora")
    run = planner("plan", *SMALL, *bridge, *options)
    assert run.code == 2
    assert said in " ".join(run.err.split())


def test_the_bridge_trains_no_adapters_of_mixtures(planner: Any) -> None:
    bridge = ("--framework", "megatron", "--profile", "bridge", "--train", "lora")
    run = planner("plan", "qwen3-30b-a3b", "1xdgx-h100", "--global-batch", "8", *bridge)
    assert run.code == 2
    assert "lora of mixtures of experts is not modelled" in run.err


def test_tensor_parallelism_divides_the_rank_of_adapters(planner: Any) -> None:
    bridge = ("--framework", "megatron", "--profile", "bridge", "--train", "lora")
    degrees = ("--lora-rank", "6", "--tp", "4", "--dp", "2")
    run = planner("memory", "llama3.2-1b", "1xdgx-h100", *bridge, *degrees)
    assert run.code != 0
    assert "tp does not divide a rank of 6" in run.err


def test_any_framework_means_those_that_can(planner: Any) -> None:
    run = planner("plan", *SMALL, "--framework", "any", "--train", "lora")
    assert run.code == 0, run.err
    assert "left out for --train lora: megatron, deepspeed, torchtitan" in run.out


def test_memory_lists_frozen_weights_and_adapters(planner: Any) -> None:
    options = ("--micro-batch", "1", "--zero-stage", "0", "--format", "json")
    run = planner("memory", *SMALL, *PEFT, *options)
    assert run.code == 0, run.err
    (stage,) = json.loads(run.out)["stages"]
    names = {item["name"] for item in stage["ledger"]}
    assert {"frozen_weights", "activations.adapters.q.input"} <= names


def test_tensor_parallelism_of_frozen_weights_is_refused(planner: Any) -> None:
    run = planner("memory", "llama3.2-1b", "1xdgx-h100", *PEFT, "--tp", "2", "--dp", "4")
    assert run.code != 0
    assert "bitsandbytes' 4-bit matrices cannot be split" in run.err


@pytest.mark.parametrize("format_name", ["trainer", "accelerate"])
def test_a_folder_with_adapters_is_checked_with_them(
    planner: Any, tmp_path: Path, format_name: str
) -> None:
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
        (
            '"all-linear"',
            '["c_attn"]',
            "lora.target_modules: unknown target 'c_attn'",
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
    planner: Any, tmp_path: Path, old: str, new: str, said: str
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
    assert f"adapter.json::{said}" in " ".join(run.out.split())


def test_a_repair_keeps_the_adapters_in_mind(planner: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "question",
    [
        ("memory", "llama3-8b", "1xrtx-a6000", "--seq-len", "2k"),
        ("size", "llama3-8b", "rtx-a6000", "--seq-len", "2k", "--max-gpus", "2"),
        ("size", "llama3-8b", "rtx-a6000", "--seq-len", "2k", "--gpus", "1,2"),
        ("why", "llama3-8b", "2xrtx-a6000", "--seq-len", "2k", "--dp", "1"),
    ],
    ids=lambda question: str(question[0]),
)
def test_every_command_plans_adapters_for_the_same_framework(
    planner: Any, question: tuple[str, ...]
) -> None:
    run = planner(*question, "--train", "qlora", "--format", "json")
    assert run.code == 0
    assert "accelerate (default for adapters; --framework names another)" in run.out
    assert '"accelerate"' in run.out


@pytest.mark.parametrize("word", ["dpo", "GRPO", "rlhf"])
def test_what_trains_beside_a_reference_is_told_what_can_be_asked(planner: Any, word: str) -> None:
    run = planner("plan", *SMALL, "--train", word)
    assert run.code == 2
    assert "--margin PERCENT" in run.err
    assert "--margin" not in planner("plan", *SMALL, "--train", "nosuch").err


@pytest.mark.parametrize("more", [(), ("--lora-targets", "q,k,v", "--fix", "tp=2")])
def test_overrides_of_adapters_are_checked_at_their_own_price(
    planner: Any, tmp_path: Path, more: tuple[str, ...]
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
    assert len(files) == 3
    assert all(each["figures"] == files[0]["figures"] for each in files)


def test_plans_of_adapters_go_on_with_the_format_that_says_them(planner: Any) -> None:
    bridge = ("--framework", "megatron", "--profile", "bridge", "--train", "lora")
    run = planner("plan", *SMALL, *bridge)
    assert run.code == 0, run.err
    assert "--emit bridge" in " ".join(run.out.split())
    refused = planner("plan", *SMALL, *bridge, "--emit", "megatron", "--out", "nowhere")
    assert refused.code != 0
    assert "--train lora: megatron files say full" in refused.err
