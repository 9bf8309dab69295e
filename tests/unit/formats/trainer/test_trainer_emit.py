"""Writing a plan into TrainingArguments that are there."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.context import Context
from planner.formats.adapters import LIGER
from planner.formats.format import SourceText
from planner.formats.trainer.format import FORMAT
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer
from planner.spec.strategy import Strategy

PLAN = Strategy(
    dp=8, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, zero_stage=3, micro_batch=1, num_micro_batches=2,
    sequence_parallel=False, offload="none", layers_per_stage=(4,),
    selective_layers_per_stage=(0,), recompute_layers_per_stage=(0,),
)  # fmt: skip


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(framework="accelerate")


def written(context: Context, **arguments: Any) -> dict[str, Any]:
    source = SourceText(path="t.json", text=json.dumps(arguments, indent=1))
    content: dict[str, Any] = json.loads(FORMAT.written_into(source, context, PLAN).text)
    return content


@pytest.mark.parametrize(
    "own",
    [
        {"optim": "adamw_torch", "optim_args": "eps=1e-6"},
        {"optim": "paged_adamw_32bit"},
        {"optim": "lomo", "optim_args": "x=1"},
        {},
    ],
)
def test_the_plan_s_own_optimizer_and_those_without_a_plan_stay(
    context: Context, own: dict[str, str]
) -> None:
    content = written(context, per_device_train_batch_size=4, bf16=True, **own)
    assert {key: content[key] for key in content if key.startswith("optim")} == own


def test_another_optimizer_is_changed(context: Context) -> None:
    lion = replace(context, traits=with_optimizer(context.traits, "lion"))
    content = written(lion, bf16=True, optim="sgd", optim_args="momentum=0.9")
    assert content["optim"] == "lion_32bit"
    assert "optim_args" not in content


def test_a_precision_that_is_off_is_not_brought_in(context: Context) -> None:
    assert "fp16" not in written(context, bf16=True, per_device_train_batch_size=1)
    assert written(context, fp16=True)["fp16"] is False


def test_a_loss_in_chunks_is_asked_for_read_back_and_left_as_it_is(context: Context) -> None:
    traits = load_traits("accelerate", settings=LIGER)
    content = written(replace(context, traits=traits), per_device_train_batch_size=4, bf16=True)
    assert content["use_liger_kernel"] is True
    again = FORMAT.read(SourceText(path="t.json", text=json.dumps(content)))
    assert again.traits == LIGER
    own = written(context, per_device_train_batch_size=4, use_liger_kernel=True)
    assert own["use_liger_kernel"] is True
