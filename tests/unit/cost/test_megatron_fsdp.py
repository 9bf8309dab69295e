"""Megatron-FSDP: ZeRO 2 and 3 of Megatron-Core, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, with_traits

from planner.cost.buffers import dummy_gradient_bytes, transient_layer_bytes, unit_buffer_bytes
from planner.cost.context import Context
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import StageParameters, stage_parameters
from planner.frameworks.registry import load_traits
from planner.search.space.legality import RULES
from planner.spec.strategy import StrategyColumns

DP = 4


@pytest.fixture
def priced() -> tuple[Context, StrategyColumns, StageParameters]:
    context = replace(context_of(), traits=load_traits("megatron", "current"))
    columns = columns_of(dp=DP, zero_stage=[1, 2, 3])
    return context, columns, stage_parameters(context, columns)


def test_layers_are_sharded_and_ends_stay_gathered(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    _, _, parts = priced
    # weights 2 | 2 | 2/4; gradients fp32 4 | bf16 2/4 | 2/4; master and moments 12/4
    assert parts.states.weights.tolist() == [2.0, 2.0, 0.5]
    assert parts.states.gradients.tolist() == [4.0, 0.5, 0.5]
    assert parts.states.optimizer.tolist() == [3.0, 3.0, 3.0]
    for ends in (parts.first_states, parts.last_states):
        assert ends.weights.tolist() == [2.0, 2.0, 2.5]
        assert ends.gradients.tolist() == [4.0, 0.5, 0.5]


def test_ends_are_gathered_once_an_iteration_layers_twice_a_micro_batch(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    _, _, parts = priced
    assert (parts.dp.layer_forward == 0).all()
    assert (parts.dp.gather > 0).all()
    assert (parts.layer_dp.layer_forward > 0).tolist() == [False, False, True]
    assert (parts.layer_dp.gather > 0).tolist() == [True, True, False]
    assert (parts.dp.layer_backward > 0).tolist() == [False, True, True]
    assert (parts.dp.reduce > 0).tolist() == [True, False, False]


def test_two_units_of_weights_and_gradients_are_whole_at_a_time(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    context, _, parts = priced
    layer, head = float(parts.params[0]), float(parts.last_params[0])
    everything = 4 * layer + float(parts.first_params[0]) + head
    assert everything < context.traits.states.whole_gradient_elements
    waiting = max(layer, head) + layer
    assert unit_buffer_bytes(parts).tolist() == pytest.approx(
        [0.0, 2 * everything, 2 * 2 * layer + 2 * waiting]
    )
    down = parts.costs.at(parts.costs.largest_weight_params)[0]
    assert transient_layer_bytes(parts)[2] == pytest.approx(2 * 2 * layer + 2 * waiting + 2 * down)


def test_a_long_queue_ends_where_the_trait_says(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    context, _, parts = priced
    short = with_traits(context, states={"whole_gradient_elements": 3 * float(parts.params[0])})
    units = max(float(parts.last_params[0]), float(parts.params[0])) + float(parts.params[0])
    longer = max(units, 3 * float(parts.params[0]))
    assert unit_buffer_bytes(replace(parts, context=short))[1] == pytest.approx(2 * longer)


def test_nothing_is_kept_for_fused_accumulation_that_is_off(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    context, columns, _ = priced
    assert dummy_gradient_bytes(context, columns, np.full(3, 10.0)).tolist() == [20.0, 0.0, 0.0]


def test_less_is_held_and_more_is_sent_from_stage_to_stage(
    priced: tuple[Context, StrategyColumns, StageParameters],
) -> None:
    context, columns, parts = priced
    model = stage_model(context, columns, parts)
    assert (np.diff(model.layer_static_bytes) < 0).all()
    assert (np.diff(model.layer_s) > 0).all()


def test_stages_exclude_it() -> None:
    context = replace(context_of(), traits=load_traits("megatron", "bridge"))
    (rule,) = [each for each in RULES if each.name == "zero_stage_offered"]
    columns = columns_of(dp=DP, pp=[1, 2, 1, 2], zero_stage=[3, 3, 1, 1])
    at = {name: getattr(columns, name) for name in rule.needs}
    assert rule.is_legal(context, at).tolist() == [True, False, True, True]
