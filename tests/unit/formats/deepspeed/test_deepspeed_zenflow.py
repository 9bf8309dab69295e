"""ZenFlow's section of a DeepSpeed file: what it decides, what is written, what is wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.context import Context
from planner.formats.deepspeed.format import FORMAT
from planner.formats.format import Reading, SourceText
from planner.formats.registry import load_format
from planner.frameworks.settings import with_change
from planner.spec.strategy import Strategy
from planner.spec.zenflow import read_zenflow

Contexts = Callable[..., Context]
Strategies = Callable[..., Strategy]


def reading(section: object, **zero: object) -> Reading:
    offload = {"device": "cpu", "pin_memory": True}
    content = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": offload, "zenflow": section, **zero},
    }
    return FORMAT.read(SourceText(path="ds.json", text=json.dumps(content)))


def decided(section: object) -> object:
    found = reading(section).decisions.get("zenflow")
    return found.value if found else None


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({}, "zenflow:topk_ratio=0.1:update_interval=4:overlap_step=false"),
        (
            {"topk_ratio": 0.05, "update_interval": 8, "overlap_step": True},
            "zenflow:topk_ratio=0.05:update_interval=8",
        ),
        (
            {"select_strategy": "step", "select_interval": 16, "overlap_step": True},
            "zenflow:topk_ratio=0.1:update_interval=4:select_interval=16",
        ),
        (
            {"select_strategy": "epoch", "select_interval": 2, "overlap_step": True},
            "zenflow:topk_ratio=0.1:update_interval=4",
        ),
        (
            {"update_interval": "auto", "overlap_step": True, "offload": True},
            "zenflow:topk_ratio=0.1:update_interval=4:offload=true",
        ),
        (None, None),
    ],
)
def test_a_section_decides_what_deepspeed_would_run(section: object, text: str | None) -> None:
    assert decided(section) == text


@pytest.mark.parametrize(
    "section", [{"topk_ratio": 1.5}, {"update_interval": 0}, {"pt_reserved_cores_perc": 2}]
)
def test_values_that_deepspeed_refuses_decide_nothing(section: dict[str, Any]) -> None:
    assert decided(section) is None


def test_its_auto_is_deepspeeds_own_and_no_trainers() -> None:
    found = reading({"select_interval": "auto", "update_interval": "auto"}).findings
    assert [finding.rule for finding in found] == []


def test_a_key_it_does_not_know_is_named() -> None:
    (finding,) = reading({"topk": 0.1}).findings
    assert finding.rule == "deepspeed.unknown_key"
    assert "topk" in finding.message


@pytest.fixture
def offloading(context_of: Contexts) -> Context:
    return context_of(framework="deepspeed", global_batch=16)


def test_a_plan_is_written_with_its_reason_and_taken_out_of_other_plans_files(
    offloading: Context, strategy_of: Strategies
) -> None:
    zenflow = read_zenflow("zenflow:select_interval=16")
    context = replace(offloading, traits=with_change(offloading.traits, zenflow))
    strategy = strategy_of(
        dp=8, zero_stage=2, micro_batch=2, num_micro_batches=1, offload="optimizer:host"
    )
    emitted = FORMAT.emitted(context, strategy)
    (row,) = [each for each in emitted.decided if each.key.endswith("zenflow")]
    assert row.why.startswith("changes training: ")
    text = emitted.files[0].text
    assert json.loads(text)["zero_optimization"]["zenflow"] == {
        "topk_ratio": 0.1,
        "select_strategy": "step",
        "select_interval": 16,
        "update_interval": 4,
        "overlap_step": True,
    }
    plain = FORMAT.written_into(SourceText(path="ds.json", text=text), offloading, strategy)
    assert "zenflow" not in json.loads(plain)["zero_optimization"]


@pytest.mark.parametrize("name", ["accelerate", "megatron"])
def test_other_formats_refuse_it_by_name(name: str, context_of: Contexts) -> None:
    context = context_of(framework=name)
    zenflow = read_zenflow("zenflow")
    asked = replace(context, traits=replace(context.traits, zenflow=zenflow))
    (why,) = [each for each in load_format(name).refused(asked) if "zenflow" in each]
    assert why.startswith("zenflow zenflow:topk_ratio=0.1")
