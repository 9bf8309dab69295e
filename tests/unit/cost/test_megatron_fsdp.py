"""Megatron-FSDP: ZeRO 2 and 3 of Megatron-Core, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, with_traits

from planner.cost.buffers import dummy_gradient_bytes, transient_layer_bytes, unit_buffer_bytes
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import stage_parameters
from planner.search.space.legality import RULES

CONTEXT, COLUMNS = context_of(), columns_of(dp=4, zero_stage=[1, 2, 3])
PARTS = stage_parameters(CONTEXT, COLUMNS)
LAYER, HEAD = float(PARTS.params[0]), float(PARTS.last_params[0])
WAITING = max(LAYER, HEAD) + LAYER


def test_layers_are_sharded_and_ends_stay_gathered() -> None:
    # weights 2 | 2 | 2/4; gradients fp32 4 | bf16 2/4 | 2/4; master and moments 12/4
    assert PARTS.states.weights.tolist() == [2.0, 2.0, 0.5]
    assert PARTS.states.gradients.tolist() == [4.0, 0.5, 0.5]
    assert PARTS.states.optimizer.tolist() == [3.0, 3.0, 3.0]
    for ends in (PARTS.first_states, PARTS.last_states):
        assert ends.weights.tolist() == [2.0, 2.0, 2.5]
        assert ends.gradients.tolist() == [4.0, 0.5, 0.5]


def test_ends_are_gathered_once_an_iteration_layers_twice_a_micro_batch() -> None:
    assert (PARTS.dp.layer_forward == 0).all()
    assert (PARTS.dp.gather > 0).all()
    assert (PARTS.layer_dp.layer_forward > 0).tolist() == [False, False, True]
    assert (PARTS.layer_dp.gather > 0).tolist() == [True, True, False]
    assert (PARTS.dp.layer_backward > 0).tolist() == [False, True, True]
    assert (PARTS.dp.reduce > 0).tolist() == [True, False, False]


def test_two_units_of_weights_and_gradients_are_whole_at_a_time() -> None:
    everything = 4 * LAYER + float(PARTS.first_params[0]) + HEAD
    assert everything < CONTEXT.traits.states.whole_gradient_elements
    units = 2 * 2 * LAYER + 2 * WAITING
    assert unit_buffer_bytes(PARTS) == pytest.approx([0.0, 2 * everything, units])
    down = PARTS.costs.at(PARTS.costs.largest_weight_params)[0]
    assert transient_layer_bytes(PARTS)[2] == pytest.approx(units + 2 * down)


def test_a_long_queue_ends_where_the_trait_says() -> None:
    short = with_traits(CONTEXT, states={"whole_gradient_elements": 3 * LAYER})
    longer = max(WAITING, 3 * LAYER)
    assert unit_buffer_bytes(replace(PARTS, context=short))[1] == pytest.approx(2 * longer)


def test_less_is_held_and_more_is_sent_from_stage_to_stage() -> None:
    model = stage_model(CONTEXT, COLUMNS, PARTS)
    assert (np.diff(model.layer_static_bytes) < 0).all()
    assert (np.diff(model.layer_s) > 0).all()
    # Nothing is kept for fused accumulation that is off.
    assert dummy_gradient_bytes(CONTEXT, COLUMNS, np.full(3, 10.0)).tolist() == [20.0, 0.0, 0.0]


def test_stages_exclude_it() -> None:
    (rule,) = [each for each in RULES if each.name == "zero_stage_offered"]
    columns = columns_of(dp=4, pp=[1, 2, 1, 2], zero_stage=[3, 3, 1, 1])
    at = {name: getattr(columns, name) for name in rule.needs}
    legal = rule.is_legal(context_of(profile="bridge"), at)
    assert legal.tolist() == [True, False, True, True]
