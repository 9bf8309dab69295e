"""Gradients of 2 or 4 bytes: said beside the name of a precision, and read back."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.bridge.mapping import FP32_GRADIENTS, PRECISIONS
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

BRIDGE = load_format("bridge")


@pytest.fixture
def overrides(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> Callable[..., str]:
    """What is written for a precision and gradients of so many bytes, reduced in so many."""

    def emitted(precision: str, held: float, reduced: float) -> str:
        context = context_of()
        states = replace(context.traits.states, gradient_bytes=held, gradient_reduce_bytes=reduced)
        context = replace(
            context,
            job=replace(context.job, precision=precision),
            traits=replace(context.traits, states=states),
        )
        return BRIDGE.emit(context, strategy_of(dp=4, tp=2, num_micro_batches=4)).files[0].text

    return emitted


def gradients_read(text: str) -> object:
    found = BRIDGE.read(SourceText(path="bridge.overrides", text=text)).decisions
    return found["gradient_bytes"].value if "gradient_bytes" in found else None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("held", [2, 4])
def test_gradients_are_read_back_as_written(
    overrides: Callable[..., str], precision: str, held: int
) -> None:
    text = overrides(precision, held, held)
    reading = BRIDGE.read(SourceText(path="bridge.overrides", text=text))
    assert not reading.findings
    assert reading.decisions["precision"].value == precision
    assert gradients_read(text) == held


def test_a_name_says_enough_where_its_gradients_are_the_planned_ones(
    overrides: Callable[..., str],
) -> None:
    assert f"{FP32_GRADIENTS}=" not in overrides("bf16", 4, 4) + overrides("fp16", 2, 2)
    assert f"\n++{FP32_GRADIENTS}=false\n" in overrides("bf16", 2, 2)
    assert f"\n++{FP32_GRADIENTS}=true\n" in overrides("fp16", 4, 4)


@pytest.mark.parametrize(("held", "reduced"), [(2, 4), (4, 2), (3, 3)])
def test_gradients_that_no_override_gives_are_refused_by_name(
    overrides: Callable[..., str], held: int, reduced: int
) -> None:
    with pytest.raises(
        ExpressError, match=f"gradient_bytes: {held}, reduced in {reduced}; .*--set"
    ):
        overrides("bf16", held, reduced)
