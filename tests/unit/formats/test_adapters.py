"""Formats that can say nothing of adapters refuse them by name."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.formats.deepspeed import decisions as deepspeed
from planner.formats.torchtitan import emit as torchtitan
from planner.spec.training import TARGETS, Training

Contexts = Callable[..., Context]


@pytest.mark.parametrize("problems", [deepspeed.problems, torchtitan.problems])
def test_adapters_are_refused_with_what_is_allowed(
    problems: Callable[[Context], Iterator[str]], context_of: Contexts
) -> None:
    context = context_of()
    plain = list(problems(context))
    training = Training(mode="lora", rank=8, targets=TARGETS)
    frozen = replace(context, traits=replace(context.traits, training=training))
    added = [said for said in problems(frozen) if said not in plain]
    assert len(added) == 1
    assert added[0].startswith("--train lora:")
    assert added[0].endswith("allowed is full")
