"""The comment that says what Accelerate's file has no key for."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.formats.accelerate.format import COMMENT, emit, read, said_in, write_into
from planner.formats.format import SourceText
from planner.spec.strategy import Strategy

Contexts = Callable[..., Context]
Strategies = Callable[..., Strategy]
FULL = {"zero_stage": 3, "dp": 8, "micro_batch": 2, "recompute_layers_per_stage": (4,)}


def text_of(context: Context, strategy: Strategy) -> str:
    return emit(context, strategy).files[0].text


def decided(text: str) -> dict[str, object]:
    found = read(SourceText(path="accelerate.yaml", text=text)).decisions
    return {name: value.value for name, value in found.items()}


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
def test_what_is_written_is_read(
    framework: str, context_of: Contexts, strategy_of: Strategies
) -> None:
    found = decided(text_of(context_of(framework=framework), strategy_of(**FULL)))
    assert found["micro_batch"] == 2
    assert found["num_micro_batches"] == 1
    assert found["seq_len"] == 1024
    assert found["optimizer"] == "adam"
    assert found["recompute_layers_per_stage"] == "all"


def test_a_repair_changes_the_comment_that_is_there(
    context_of: Contexts, strategy_of: Strategies
) -> None:
    context = context_of(framework="accelerate")
    text = text_of(context, strategy_of(**FULL))
    other = strategy_of(**{**FULL, "micro_batch": 1, "num_micro_batches": 2})
    source = SourceText(path="accelerate.yaml", text=text)
    assert write_into(source, context, other) == text_of(context, other)
    bare = SourceText(path="accelerate.yaml", text=text.replace(COMMENT, "# my "))
    assert COMMENT not in write_into(bare, context, other)


def test_other_comments_and_keys_decide_nothing() -> None:
    assert said_in("# micro_batch=2\n") == {}
    found = said_in("a: 1\n# training script: micro_batch=x colour=red tp=2\n")
    assert {name: (value.value, value.line) for name, value in found.items()} == {
        "micro_batch": ("x", 2)
    }
    assert said_in("# training script: gradient_checkpointing=false\n") == {}
