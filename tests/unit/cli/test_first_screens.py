"""What the first screen says of a plan beside the plan: what it rests on, what is faster."""

import json
from typing import Any

import pytest

from planner.query.job import smooth_step

ADAPTERS = ("--framework", "accelerate", "--train", "lora", "--seq-len", "2k")
ON_HOST = ("plan", "llama3.1-70b", "2xrtx-a6000", *ADAPTERS, "--global-batch", "32")
DEEPSPEED = ("--framework", "deepspeed", "--zero-stage", "3", "--recompute", "full")


def test_host_memory_that_a_plan_needs_and_nobody_stated_is_said(planner: Any) -> None:
    assumed = "of 192 GiB of a node's host memory, which is assumed (see --host-memory)"
    assert assumed in planner(*ON_HOST).out
    stated = planner(*ON_HOST, "--host-memory", "192GiB").out
    assert "of 192 GiB of a node's host memory" in stated
    assert "which is assumed" not in stated
    inside = ("plan", "llama3-8b", "8xrtx-a6000", *ADAPTERS, "--forbid", "offload")
    assert "host memory" not in planner(*inside).out


def test_a_batch_given_in_tokens_is_not_called_assumed(planner: Any) -> None:
    plan = ("plan", "llama3-8b", "1xdgx-h100", "--tp", "1", "--pp", "1")
    run = planner(*plan, "--global-batch-tokens", "1M")
    assert "batch 128 x 8192" in run.out
    assert "read 1M tokens a batch as 1,048,576, as 8k of a length is 8,192" in run.out
    exactly = planner(*plan, "--global-batch-tokens", "1000000").out
    assert "batch 122 x 8192" in exactly
    assert "tokens a batch" not in exactly
    assert "batch 512 (assumed) x 8192" in planner(*plan).out


def test_mfu_names_its_peak_where_products_run_at_another(planner: Any) -> None:
    plan = ("plan", "llama3-8b", "1xdgx-h100", "--tp", "1", "--pp", "1", "--cp", "1")
    assert "of the 16-bit peak" in " ".join(planner(*plan, "--precision", "fp8").out.split())
    assert "of the 16-bit peak" not in " ".join(planner(*plan).out.split())


def test_a_first_row_that_is_not_the_fastest_is_explained(planner: Any) -> None:
    lines = planner("plan", "llama3.1-70b", "16xdgx-h100").out.splitlines()
    fastest = next(line for line in lines if line.startswith("Fastest under the model"))
    assert "Row 1 is the simplest within 3.3% of it" in fastest
    assert "Fastest under" not in planner("plan", "llama3.1-405b", "32xdgx-h100").out


def test_memory_says_what_the_host_lacks_beside_what_the_device_lacks(planner: Any) -> None:
    question = ("memory", "llama3.1-8b", "8xrtx3090", "--seq-len", "4k", "--host-memory", "128GB")
    layout = ("--framework", "deepspeed", "--zero-stage", "3", "--offload")
    run = planner(*question, *layout, "optimizer+parameters:host")
    assert run.code == 3
    assert "GiB: does not fit, " in run.out
    assert "72.20 GiB missing" in " ".join(run.out.split())


@pytest.mark.parametrize(("host_memory", "says"), [("128GB", "host too small"), ("512GiB", "fits")])
def test_a_saving_that_needs_the_host_is_held_against_it(
    planner: Any, host_memory: str, says: str
) -> None:
    question = ("memory", "llama3.1-8b", "8xrtx3090", "--seq-len", "4k", *DEEPSPEED)
    run = planner(*question, "--host-memory", host_memory)
    line = next(line for line in run.out.splitlines() if line.startswith("offload optimizer:host"))
    assert line.rstrip().endswith(says)
    document = json.loads(planner(*question, "--host-memory", host_memory, "--format", "json").out)
    change = next(one for one in document["savings"] if one["change"] == "offload optimizer:host")
    assert change["verdict"] == ("fits" if says == "fits" else "does not fit")


def test_a_host_shortage_does_not_blur_which_memory_a_way_out_takes(
    planner: Any, tmp_path: Any
) -> None:
    path = tmp_path / "ds.json"
    states = {"stage": 3} | {
        f"offload_{what}": {"device": "cpu", "pin_memory": True} for what in ("optimizer", "param")
    }
    path.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 8,
                "bf16": {"enabled": True},
                "zero_optimization": states,
            }
        )
    )
    place = ("--model", "llama3.1-8b", "--cluster", "8xrtx3090", "--host-memory", "128GB")
    said = " ".join(planner("check", str(path), *place, "--seq-len", "4k").out.split())
    assert "GiB of host memory, may hold" in said
    assert "GiB of HBM: offload optimizer+parameters:host to optimizer:host" in said
    assert "8xrtx3090@128GB, 8 GPUs" in said


def test_scale_takes_a_layout(planner: Any) -> None:
    scale = ("size", "llama3-8b", "dgx-h100", "--gpus", "8,16", "--global-batch", "64")
    document = json.loads(planner(*scale, "--tp", "4", "--pp", "1", "--format", "json").out)
    layouts = [size["plan"]["strategy"] for size in document["sizes"]]
    assert [(layout["tp"], layout["pp"]) for layout in layouts] == [(4, 1), (4, 1)]
    assert "given: --fix tp=4, --fix pp=1" in document["inputs"]["assumed"]


def test_gpus_are_known_by_name_and_memory(planner: Any) -> None:
    assert planner("size", "llama3-8b", "a100-80", "--max-gpus", "4").code == 0


def test_adapters_are_planned_where_no_framework_is_named(planner: Any) -> None:
    question = ("plan", "llama3.1-8b", "1xrtx4090", "--train", "qlora", "--seq-len", "2k")
    run = planner(*question)
    assert run.code == 0
    assert run.out.split("Run it")[0].strip().endswith("accelerate")
    assert planner(*question, "--framework", "megatron").code == 2


def test_one_size_that_holds_a_layout_is_compared_with_none(planner: Any) -> None:
    run = planner("size", "llama3-8b", "dgx-h100", "--gpus", "8,16", "--tp", "16")
    assert "Only 16 GPUs have such a plan" in run.out


def test_the_batch_that_is_proposed_divides_over_the_gpus() -> None:
    assert [smooth_step(gpus) for gpus in (1, 128, 96, 40, 67)] == [64, 64, 48, 40, 64]


def test_the_hint_proposes_such_a_batch(planner: Any) -> None:
    question = ("plan", "llama3-8b", "24xh100", "--tp", "1", "--pp", "1", "--cp", "1")
    run = planner(*question, "--global-batch-tokens", "4M", "--zero-stage", "2")
    assert "--global-batch 528 has more" in " ".join(run.out.split())


@pytest.mark.parametrize("words", [("shwo", "models"), ("paln", "llama3-8b", "8xh100")])
def test_a_misspelt_command_is_no_model(planner: Any, words: tuple[str, ...]) -> None:
    assert "No such command" in planner(*words).err
