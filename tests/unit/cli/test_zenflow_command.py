"""ZenFlow on the command line: searched where allowed, saved, emitted, checked and explained."""

import json
from pathlib import Path
from typing import Any

import pytest

QUESTION = (
    *("plan", "llama2-7b", "1xdgx-a100", "--framework", "deepspeed"),
    *("--global-batch", "16", "--seq-len", "512"),
)
ZENFLOW = "zenflow:topk_ratio=0.05:update_interval=8"
OFFLOADED = ("--fix", "offload=optimizer:host")


def answer(planner: Any, *options: str) -> dict[str, Any]:
    run = planner(*QUESTION, "--format", "json", *options)
    assert run.code == 0, run.err
    return dict(json.loads(run.out))


def test_nothing_is_stepped_late_that_nobody_allows(planner: Any) -> None:
    plans = answer(planner, *OFFLOADED)["plans"]
    assert plans
    assert not [plan for plan in plans if "zenflow" in plan]


def test_a_plan_is_saved_emitted_checked_and_explained_as_it_was_found(
    planner: Any, tmp_path: Path
) -> None:
    folder, saved = tmp_path / "out", tmp_path / "plan.yaml"
    asked = (*OFFLOADED, "--allow", ZENFLOW)
    written = ("--emit", "deepspeed", "--out", str(folder), "--save", str(saved))
    run = planner(*QUESTION, *asked, *written)
    assert run.code == 0, run.err
    assert f"training ({ZENFLOW})" in " ".join(run.out.split())
    best = answer(planner, *asked)["plans"][0]
    assert best["zenflow"] == ZENFLOW
    config = json.loads((folder / "ds_config.json").read_text(encoding="utf-8"))
    assert config["zero_optimization"]["zenflow"]["update_interval"] == 8
    checked = planner("check", str(folder), "--format", "json")
    assert checked.code == 0, checked.out
    explained = planner("explain", str(saved), "time.selected_columns")
    assert explained.code == 0, explained.err
    assert "27 ·" in explained.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--allow", "zenflow:topk_ratio=2"), "above 0 and below 1"),
        (("--allow", "zenflow", "--optimizer", "lion"), "zenflow steps with adam"),
        (("--allow", "zenflow,powersgd"), "offers no powersgd, but zenflow"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    options: tuple[str, ...], said: str, planner: Any
) -> None:
    run = planner(*QUESTION, *options)
    assert run.code == 2
    assert said in " ".join(run.err.split())


def test_frameworks_without_it_say_who_has_it(planner: Any) -> None:
    run = planner(
        "plan", "llama2-7b", "1xdgx-a100", "--framework", "megatron", "--allow", "zenflow"
    )
    assert run.code == 2
    assert "--framework deepspeed --profile current" in " ".join(run.err.split())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"zenflow": "zenflow:topk_ratio=9"}, "inputs.zenflow"),
        ({"zenflow": "zenflow", "profile": "megatron"}, "inputs.zenflow"),
    ],
)
def test_a_plan_file_that_says_it_wrong_is_refused(
    change: dict[str, str], said: str, planner: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.yaml"
    assert planner(*QUESTION, *OFFLOADED, "--save", str(saved)).code == 0
    text = saved.read_text(encoding="utf-8")
    for key, value in change.items():
        line = next((each for each in text.splitlines() if each.startswith(f"  {key}:")), "inputs:")
        new = f"  {key}: '{value}'"
        text = text.replace(line, new if line != "inputs:" else f"inputs:\n{new}", 1)
    saved.write_text(text, encoding="utf-8")
    run = planner("explain", str(saved))
    assert run.code == 2
    assert said in run.err


def section(**zenflow: object) -> dict[str, Any]:
    return {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            **zenflow,
        },
    }


def seconds_of(planner: Any, path: Path, content: dict[str, Any]) -> float:
    path.write_text(json.dumps(content), encoding="utf-8")
    job = ("--model", "llama2-7b", "--cluster", "1xdgx-a100", "--seq-len", "512")
    run = planner("check", str(path), *job, "--format", "json")
    (found,) = json.loads(run.out)["files"]
    return float(found["figures"]["iter_time_s"])


def test_check_prices_a_file_as_its_section_says(planner: Any, tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    plain = seconds_of(planner, path, section())
    every_4 = seconds_of(planner, path, section(zenflow={"overlap_step": True}))
    every_16 = seconds_of(
        planner, path, section(zenflow={"overlap_step": True, "update_interval": 16})
    )
    assert every_16 < every_4 < plain
