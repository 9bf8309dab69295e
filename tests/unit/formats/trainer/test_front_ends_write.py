"""What a repair changes in a front end's file stands in the program's own words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy, with_policy_on_all_layers

PLAN = Strategy(
    dp=8, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, zero_stage=0, micro_batch=2, num_micro_batches=4,
    sequence_parallel=False, offload="none", layers_per_stage=(4,),
    selective_layers_per_stage=(0,), recompute_layers_per_stage=(0,),
)  # fmt: skip
AXOLOTL = """\
base_model: a/b  # ours
sequence_len: 2048
micro_batch_size: 8
gradient_accumulation_steps: 1
bf16: true
"""


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(framework="accelerate")


def written(name: str, text: str, context: Context, strategy: Strategy, **file: Any) -> str:
    source = SourceText(path=file.get("path", "a.yaml"), text=text)
    return load_format(name).written_into(source, context, strategy).text


def test_changes_are_made_under_the_programs_keys(context: Context) -> None:
    text = written("axolotl", AXOLOTL, context, with_policy_on_all_layers(PLAN, "full"))
    assert "base_model: a/b  # ours\n" in text
    assert "micro_batch_size: 2\ngradient_accumulation_steps: 4\n" in text
    assert "gradient_checkpointing: true\n" in text


def test_a_word_for_the_opposite_is_turned_round(context: Context) -> None:
    text = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\nbf16: true\n"
    text += "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    made = written("llamafactory", text, context, PLAN)
    assert made == text + "disable_gradient_checkpointing: true\n"


@pytest.mark.parametrize(
    "changes",
    [{"zero_stage": 3}, {"tp": 2, "dp": 4}, {"pp": 2, "dp": 4, "layers_per_stage": (2, 2)}],
)
def test_what_no_key_carries_is_not_brought_in(context: Context, changes: dict[str, Any]) -> None:
    """A repair refuses it: the file, read again, does not state it."""
    plain = written("axolotl", AXOLOTL, context, PLAN)
    assert written("axolotl", AXOLOTL, context, replace(PLAN, **changes)) == plain


def test_a_command_is_not_edited(context: Context) -> None:
    with pytest.raises(ExpressError, match="options are for you to change"):
        written("ms-swift", "swift sft --model a/b --tuner_type full", context, PLAN, path="a.sh")


def test_no_new_file_is_written(context: Context) -> None:
    with pytest.raises(ExpressError, match=r"axolotl are read, .* not written"):
        load_format("axolotl").emit(context, PLAN)
