"""Exchanges between replicas on the command line: searched where allowed, priced for plans."""

import json
from pathlib import Path
from typing import Any

import pytest

DDP = ("bert-large", "4xaws-p3dn.24xlarge", "--framework", "accelerate", "--profile", "ddp")
QUESTION = ("plan", *DDP, "--precision", "fp16", "--global-batch", "256")


def answer(planner: Any, *options: str) -> dict[str, Any]:
    run = planner(*QUESTION, "--format", "json", *options)
    assert run.code == 0, run.err
    return dict(json.loads(run.out))


def test_nothing_is_searched_that_nobody_allows(planner: Any) -> None:
    plans = answer(planner)["plans"]
    assert plans
    assert not [plan for plan in plans if "gradient_exchange" in plan]


def test_what_is_allowed_is_searched_beside_plain_all_reduces(planner: Any) -> None:
    allowed = ("--allow", "powersgd:rank=2,local:every=16")
    plans = answer(planner, *allowed)["plans"]
    found = {plan.get("gradient_exchange", "plain") for plan in plans}
    assert found == {"plain", "powersgd:rank=2", "local:every=16"}
    text = planner(*QUESTION, *allowed).out
    assert "changes training (powersgd:rank=2)" in " ".join(text.split())


def test_a_plan_is_saved_emitted_checked_and_priced_as_it_was_found(
    planner: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    asked = ("--allow", "powersgd:rank=2", "--emit", "accelerate", "--out", str(folder))
    run = planner(*QUESTION, *asked, "--forbid", "recompute")
    assert run.code == 0, run.err
    assert "gradient_exchange: powersgd:rank=2" in (folder / "plan.yaml").read_text()
    assert "comm_hook=DDPCommunicationHookType.POWER_SGD" in (folder / "README.md").read_text()
    job = ("--model", DDP[0], "--cluster", DDP[1], "--no-advice")
    checked = planner("check", str(folder / "accelerate.yaml"), *job)
    assert checked.code == 0, checked.out
    document = json.loads(planner("exchange", str(folder), "--format", "json").out)
    own, plain, *_ = document["ways"]
    assert own["gradient_exchange"] == "powersgd:rank=2"
    assert (plain["gradient_exchange"], plain["changes_training"]) == ("plain", "")
    assert own["iter_time_s"] < plain["iter_time_s"]
    explained = planner("explain", str(folder / "plan.yaml"), "time.gradient_exchange")
    assert "encoding" in explained.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--allow", "topk"), "no framework here starts the largest gradients"),
        (("--allow", "diloco"), "--framework torchtitan"),
        (("--allow", "powersgd:rank=0"), "whole numbers from 1 to 1024"),
        (("--forbid", "powersgd"), "unknown feature"),
        (("--allow", "onebit-adam"), "--framework deepspeed --profile trainer-2023"),
    ],
)
def test_what_cannot_be_allowed_is_refused_with_what_can(
    options: tuple[str, ...], said: str, planner: Any
) -> None:
    run = planner(*QUESTION, *options)
    assert run.code == 2
    assert said in run.err


def test_the_verdict_comes_before_the_tables(planner: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    assert planner(*QUESTION, "--save", str(path)).code == 0
    run = planner("exchange", str(path), "--way", "fp16,topk:density=0.01", "-v")
    assert run.code == 0, run.err
    text = " ".join(run.out.split())
    assert text.index("changes training") < text.index("topk:density=0.01")
    assert "by priority" in text
    assert "no framework here starts it for this layout: topk:density=0.01" in text


def test_why_a_layout_has_no_other_exchange_is_said_once(planner: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    words = ("plan", "gpt3-xl", "1xdgx-h100", "--zero-stage", "2", "--dp", "8", "--save", str(path))
    assert planner(*words).code == 0
    text = " ".join(planner("exchange", str(path), "--way", "fp16,bf16,int8").out.split())
    reason = "exchange_between_whole_replicas: under ZeRO 2 with dp 8"
    assert f"not here: fp16, bf16, int8: {reason}" in text
    assert text.count(reason) == 2  # the verdict's first
    assert "no framework here starts it" not in text
    assert "0 B" not in text
