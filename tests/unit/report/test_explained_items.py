"""Every item of an estimate, and every group of items, is explained."""

import re
from typing import Any

import pytest
from contexts import context_of
from rich.console import Console

from planner.answers.explain import ItemRow, formula_of, item_values, summary_of
from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.estimate import ITEMS, estimate, item_of
from planner.report.explain import print_item

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"tp": 2, "pp": 2, "recompute": "full", "recompute_layers": 1}),
    ({"model": "mixtral-8x7b"}, {"tp": 2, "ep": 4, "recompute": "selective"}),
    ({"framework": "torchtitan"}, {"zero_stage": 3, "cp": 2}),
    ({"framework": "deepspeed"}, {"zero_stage": 3, "offload": "optimizer+parameters:host"}),
    ({}, {"dp": 8, "offload": "optimizer:host", "offload_percent": 50, "offloaded_layers": 3}),
]


def groups(name: str) -> list[str]:
    """``time.compute.gemm`` and ``time.compute``: an item and the groups it is in."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(2, len(parts) + 1)]


@pytest.mark.parametrize(("question", "layout"), CASES)
def test_every_item_and_every_group_has_words_or_a_formula(
    question: dict[str, Any], layout: dict[str, Any]
) -> None:
    context, strategy = fill_in(context_of(**question), requested(**layout))
    for leaf in item_values(estimate(context, strategy)):
        for name in groups(leaf):
            item = item_of(name)
            assert item is not None, name
            assert item.text or item.functions, name
            assert item.title or name != leaf or not name.startswith("time."), name


def test_every_term_has_a_summary_in_one_line() -> None:
    for item in ITEMS:
        summary = summary_of(item)
        assert summary, item.address
        assert "\n" not in summary


def explained(name: str, context: Context, **layout: Any) -> str:
    context, strategy = fill_in(context, requested(**layout))
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        row = ItemRow.of(name, context, strategy, estimate(context, strategy))
        print_item(row, console)
    return capture.get()


def test_a_group_starts_with_its_sum() -> None:
    context, strategy = fill_in(context_of(), requested(pp=2))
    result = estimate(context, strategy)
    share = (
        sum(item.exposed_s for name, item in result.time.items() if name.startswith("compute."))
        / result.iter_time_s
    )
    first, *_ = explained("compute", context_of(), pp=2).splitlines()
    assert first.startswith("time.compute: ")
    assert first.endswith(f"({share:.1%})")


@pytest.mark.parametrize("name", ["pipeline", "bubble", "context_parallel", "tensor_parallel"])
def test_an_item_the_plan_spends_nothing_on_is_still_explained(name: str) -> None:
    text = explained(name, context_of())
    assert re.match(r"time\.[\w.]+: 0 s \(0\.0%\)\n", text)
    assert "traits." in text or "strategy." in text


def test_offloaded_activations_have_formulas_of_their_own() -> None:
    time, memory = (
        item_of(name) for name in ("time.offload.activations", "memory.transient.offload_buffers")
    )
    assert "offloaded" in formula_of(time.functions[0]).lower()
    assert "two layers' activations" in formula_of(memory.functions[0])
