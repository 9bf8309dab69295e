"""What of a layout ZenFlow can step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.context import Context
from planner.search.space.legality import violations
from planner.spec.strategy import Strategy
from planner.spec.zenflow import ZenFlow

Contexts = Callable[..., Context]
Strategies = Callable[..., Strategy]
LEGAL: dict[str, Any] = {
    "dp": 8,
    "zero_stage": 2,
    "micro_batch": 2,
    "num_micro_batches": 1,
    "offload": "optimizer:host",
}


def broken(context: Context, strategy: Strategy) -> dict[str, str]:
    found = violations(context, strategy)
    return {each.rule: each.message for each in found if each.rule.startswith("zenflow")}


@pytest.fixture
def asked(context_of: Contexts) -> Context:
    context = context_of(framework="deepspeed", global_batch=16)
    return replace(context, traits=replace(context.traits, zenflow=ZenFlow()))


def test_states_on_the_host_and_one_micro_batch_are_legal(
    asked: Context, strategy_of: Strategies
) -> None:
    assert broken(asked, strategy_of(**LEGAL)) == {}
    assert broken(asked, strategy_of(**LEGAL | {"zero_stage": 3})) == {}


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        ({"offload": "none"}, "zenflow_steps_offloaded_states", "offload none at 100 %"),
        ({"offload": "optimizer:nvme"}, "zenflow_steps_offloaded_states", "are on the host"),
        (
            {"zero_stage": 3, "offload_percent": 50},
            "zenflow_steps_offloaded_states",
            "at 50 %",
        ),
        (
            {"micro_batch": 1, "num_micro_batches": 2},
            "zenflow_steps_every_micro_batch",
            "2 micro-batches an iteration",
        ),
        (
            {"dp": 4, "pp": 2, "micro_batch": 4, "layers_per_stage": (2, 2)},
            "zenflow_shards_matrices",
            "pp 2, tp 1, ep 1, dp_replicate 1",
        ),
    ],
)
def test_what_it_cannot_step_is_named_with_what_is_allowed(
    change: dict[str, Any], rule: str, said: str, asked: Context, strategy_of: Strategies
) -> None:
    found = broken(asked, strategy_of(**LEGAL | change))
    assert list(found) == [rule]
    assert said in found[rule]
    assert "allowed" in found[rule]


def test_mixtures_are_not_stepped_so(context_of: Contexts, strategy_of: Strategies) -> None:
    context = context_of(framework="deepspeed", model="mixtral-8x7b", global_batch=16)
    asked = replace(context, traits=replace(context.traits, zenflow=ZenFlow()))
    layers = {"layers_per_stage": (32,)}
    assert (
        "experts are stacks"
        in broken(asked, strategy_of(**LEGAL | layers))["zenflow_shards_matrices"]
    )
