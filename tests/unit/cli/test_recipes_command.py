"""``planner show recipes`` and ``planner plan --like``."""

import json
from typing import Any

import pytest

H100 = "llama3_8b_pretrain_8gpu_h100_bf16"


def test_the_list_starts_with_the_verdict(planner: Any) -> None:
    run = planner("show", "recipes", "llama3", "h100 bf16")
    assert run.code == 0
    assert run.out.startswith("4 recipes for llama3 h100 bf16: 4 of NVIDIA")
    assert H100 in run.out


def test_the_list_as_json(planner: Any) -> None:
    run = planner("show", "recipes", "deepseek-v3", "amd", "--format", "json")
    assert {row["accelerator"] for row in json.loads(run.out)["recipes"]} == {"mi300x", "mi355x"}


def test_an_unknown_word_is_named(planner: Any) -> None:
    run = planner("show", "recipes", "h1000")
    assert run.code == 2
    assert "WORDS: 'h1000' is the name of nothing" in run.err


def document(planner: Any, *options: str) -> dict[str, Any]:
    run = planner("plan", *options, "--like", H100, "--top", "1", "--format", "json")
    assert run.code == 0, run.err
    found: dict[str, Any] = json.loads(run.out)
    return found


def test_a_plan_starts_from_a_recipe(planner: Any) -> None:
    found = document(planner)
    assert found["inputs"]["model"] == "llama3-8b"
    assert found["inputs"]["cluster"] == "1xdgx-h100"
    assert found["inputs"]["global_batch"] == 128
    plan = found["plans"][0]
    assert (plan["framework"], plan["gpus"]) == ("megatron", 8)
    assert (plan["strategy"]["tp"], plan["strategy"]["cp"], plan["strategy"]["dp"]) == (1, 2, 4)


def test_what_the_command_line_says_replaces_the_recipe(planner: Any) -> None:
    found = document(
        planner,
        *("llama3.1-8b", "2xdgx-h100", "--global-batch", "64", "--fix", "cp=1", "--profile"),
        "current",
    )
    assert found["inputs"]["model"] == "llama3.1-8b"
    assert found["inputs"]["global_batch"] == 64
    plan = found["plans"][0]
    assert (plan["gpus"], plan["strategy"]["cp"], plan["strategy"]["micro_batch"]) == (16, 1, 1)


def test_a_setting_of_the_command_line_replaces_the_recipes(planner: Any) -> None:
    path = "traits.overlap.tensor_parallel_overlap"
    run = planner("plan", "--like", H100, "--top", "1", "--set", f"{path}=bulk")
    assert run.code == 0
    assert f"{path}=bulk" in "".join(run.out.split("\n"))
    assert f"{path}=none" not in "".join(run.out.split("\n"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama3_8b_pretrain_8gpu", "unknown recipe 'llama3_8b_pretrain_8gpu'; did you mean"),
    ],
)
def test_a_recipe_that_cannot_be_started_from(planner: Any, name: str, message: str) -> None:
    run = planner("plan", "--like", name)
    assert run.code == 2
    assert run.err.startswith("command line::--like: ")
    assert message in run.err


def test_a_recipe_of_adapters_trains_those(planner: Any) -> None:
    name = "llama3_70b_peft_8gpu_h100_bf16"
    run = planner("plan", "--like", name, "--top", "1", "--format", "json")
    assert run.code == 0, run.err
    inputs = json.loads(run.out)["inputs"]
    assert [inputs[key] for key in ("train", "lora_rank", "lora_targets")] == [
        "lora",
        16,
        ["q", "k", "v"],
    ]


def test_without_a_recipe_model_and_cluster_are_still_asked_for(planner: Any) -> None:
    assert planner("plan").code == 2
