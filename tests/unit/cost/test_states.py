"""Bytes of weights, gradients and optimizer: the ZeRO papers, frameworks, fp32 and replicas."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, strategy_of

from planner.cost.buffers import dummy_gradient_bytes, transient_layer_bytes, unit_buffer_bytes
from planner.cost.data_parallel import bucket_elements
from planner.cost.ledger import RESERVED, StageLedger, stage_ledgers
from planner.cost.stage_model import price, stage_model
from planner.cost.stage_parts import stage_parameters
from planner.cost.states import shard_degree, state_bytes
from planner.frameworks.registry import load_traits
from planner.layers.parameters import count_parameters
from planner.search.space.legality import RULES
from planner.spec.job import Precision
from planner.spec.strategy import OFFLOAD_CODES, StrategyColumns
from planner.spec.traits import StateTraits, traits_at_precision

# fp16 weights and gradients, fp32 weights, momentum and variance (arXiv 1910.02054, 3.1).
ZERO_PAPER = replace(
    load_traits("megatron", "classic").states,
    weight_bytes=2,
    zero3_weight_bytes=2,
    gradient_bytes=2,
    zero2_gradient_bytes=0,
    master_weight_bytes=4,
    sharded_gradient_bytes=0,
    sharded_by="fsdp2",
)
HOST = OFFLOAD_CODES.index("optimizer:host")


def total_per_param(traits: StateTraits, columns: StrategyColumns) -> np.ndarray:
    return state_bytes(columns, traits, shard_degree(columns)).device


def test_zero_stages_of_7_5_billion_parameters_on_64_gpus() -> None:
    # arXiv 1910.02054, figure 1. Psi = 7.5 B, N = 64:
    #   none  (2 + 2 + 12) Psi               = 16      * 7.5 = 120   GB
    #   1     (2 + 2 + 12/64) Psi            =  4.1875 * 7.5 =  31.4 GB
    #   2     (2 + (2 + 12)/64) Psi          =  2.21875 * 7.5 = 16.6 GB
    #   3     (2 + 2 + 12)/64 Psi            =  0.25   * 7.5 =   1.9 GB
    columns = columns_of(dp=64, zero_stage=[0, 1, 2, 3])
    gigabytes = 7.5 * total_per_param(ZERO_PAPER, columns)
    assert gigabytes.round(1).tolist() == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(
    ("framework", "precision", "degrees", "num_bytes"),
    [
        # Megatron-LM's page: 18 bytes without the distributed optimizer, 6 + 12/d with it.
        ("megatron", "bf16", {"dp": 8, "zero_stage": 0}, 18.0),
        ("megatron", "bf16", {"dp": 8, "zero_stage": 1}, 7.5),
        # DeepSpeed's fp32 gradient partition is beside the 12 bytes.
        ("deepspeed", "bf16", {"dp": 8, "zero_stage": 1}, 4 + (12 + 4) / 8),
        # torchtitan: the fp32 shard serves as the weight, over dp and cp.
        ("torchtitan", "bf16", {"dp": 4, "cp": 2, "zero_stage": 3}, (0 + 4 + 12) / 8),
        # Weights whole at stage 2, and under pipelining gradients too.
        ("torchtitan", "bf16", {"dp": 8, "zero_stage": 2}, 2 + (4 + 12) / 8),
        ("torchtitan", "bf16", {"dp": 8, "zero_stage": 2, "pp": 2}, 2 + 4 + 12 / 8),
        ("torchtitan", "bf16", {"dp": 8, "zero_stage": 3, "pp": 2}, 2 + 4 + 12 / 8),
        # fp32: four bytes each, no master copy beside the weights.
        ("deepspeed", "fp32", {"dp": 2, "zero_stage": 0}, 4 + 4 + 8),
        ("deepspeed", "fp32", {"dp": 2, "zero_stage": 1}, 4 + 4 + (4 + 8) / 2),
        ("deepspeed", "fp32", {"dp": 2, "zero_stage": 3}, (4 + 4 + 4 + 8) / 2),
        ("accelerate", "fp32", {"dp": 2, "zero_stage": 3}, (4 + 4 + 8) / 2),
        ("megatron", "fp32", {"dp": 2, "zero_stage": 1}, 4 + 4 + 8 / 2),
        # Replicas keep fp32 weights, and buckets beside gradients.
        ("accelerate ddp", "bf16", {"dp": 1, "zero_stage": 0}, 2 + 4 + 4 + 8),
        ("accelerate ddp", "bf16", {"dp": 2, "zero_stage": 0}, 2 + 4 + 4 + 8 + 4),
        ("accelerate ddp", "fp32", {"dp": 2, "zero_stage": 0}, 4 + 4 + 8 + 4),
    ],
)
def test_bytes_of_a_parameter_under_a_framework(
    framework: str, precision: Precision, degrees: dict[str, int], num_bytes: float
) -> None:
    traits = traits_at_precision(load_traits(*framework.split()), precision)
    assert traits_at_precision(traits, precision) == traits
    assert total_per_param(traits.states, columns_of(**degrees)) == num_bytes


def test_cut_weights_and_gradients_are_a_part_each_and_states_as_without() -> None:
    # Over 4 of 8 ranks: 2/4, 4/4, states over those 4 or all 8: 12/4, 12/8.
    columns = columns_of(dp=8, zero_stage=[0, 1])
    traits, shards = load_traits("megatron").states, shard_degree(columns)
    state = state_bytes(columns, traits, shards, weight_shards=4.0)
    assert state.weights.tolist() == [0.5, 0.5]
    assert state.gradients.tolist() == [1.0, 1.0]
    assert state.optimizer.tolist() == [3.0, 1.5]


@pytest.mark.parametrize(
    ("code", "stage", "device", "host"),
    [
        # dp 8: weights 2, gradients 2, optimizer 12/8 = 1.5.
        ("none", 1, 5.5, 0.0),
        ("optimizer:host", 1, 4.0, 1.5),
        # Stage 2: the gradient shard 2/8 = 0.25 follows the optimizer.
        ("optimizer:host", 2, 2.0, 1.75),
        # Stage 3: weights 2/8 = 0.25 as well; nothing stays.
        ("optimizer+parameters:host", 3, 0.0, 2.0),
        ("optimizer+parameters:nvme", 3, 0.0, 2.0),
        ("optimizer:nvme", 3, 0.25, 1.75),
    ],
)
def test_offload_moves_bytes_and_loses_none(
    code: str, stage: int, device: float, host: float
) -> None:
    columns = columns_of(dp=8, zero_stage=stage, offload=OFFLOAD_CODES.index(code))
    state = state_bytes(columns, ZERO_PAPER, np.array([8.0]))
    assert (float(state.device[0]), float(state.host[0])) == (device, host)


def test_a_sharded_gradient_copy_exists_only_from_stage_1_on() -> None:
    # 16 and 8 of flat gradients without ZeRO; with N = 4: 2 + 2 + (12 + 4)/4 = 8, under stage 2
    # 2 + (2 + 12 + 4)/4 = 6.5.
    # Made group by group it is not kept per parameter under stage 3: (2 + 2 + 12)/4 = 4.
    traits = replace(ZERO_PAPER, sharded_gradient_bytes=4, sharded_by="zero")
    columns = columns_of(dp=4, zero_stage=[0, 1, 2, 3])
    assert total_per_param(traits, columns).tolist() == [24.0, 8.0, 6.5, 4.0]
    # On a host all groups have their copy, and 4 of staging: (12 + 4 + 2 + 4)/4 = 5.5.
    away = columns_of(dp=4, zero_stage=3, offload=HOST)
    assert state_bytes(away, traits, np.array([4.0])).host.tolist() == [5.5]


def test_replicas_buckets_hold_25_mib_of_fp32() -> None:
    context = context_of(framework="accelerate", profile="ddp")
    found = bucket_elements(context, columns_of(dp=2), np.array([1e9]), np.array([6e7]))
    assert float(found[0]) * 4 == 25 * 2**20


def ledger_of(profile: str, micro_batches: int = 1) -> StageLedger:
    names = {"model": "llama3.2-1b", "cluster": "2xa100-sxm-80", "framework": "accelerate"}
    context = context_of(**names, profile=profile, seq_len=128, global_batch=2)
    degrees = {"dp": 2 // micro_batches, "num_micro_batches": micro_batches, "zero_stage": 0}
    layers = {"layers_per_stage": (16,), "recompute_layers_per_stage": (16,)}
    return stage_ledgers(price(context, strategy_of(**degrees, **layers)))[0]


def test_gradients_of_one_micro_batch_are_not_there_at_the_loss() -> None:
    for micro_batches, lifetime in ((1, RESERVED), (2, "whole run")):
        items = {item.name: item for item in ledger_of("ddp", micro_batches).items}
        assert items["gradients"].lifetime == lifetime


def test_an_optimizer_over_many_tensors_has_temporaries_of_its_own() -> None:
    # Weights, gradients, two moments and a square root in 2 bytes each: 10 of every parameter.
    ledger = ledger_of("pure-bf16", micro_batches=2)
    params = count_parameters(context_of(model="llama3.2-1b").model)
    assert ledger.allocated_bytes == pytest.approx(10.0 * params, rel=0.01)
    assert ledger.moment == "optimizer step"


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
    assert everything < 1e9
    units = 2 * 2 * LAYER + 2 * WAITING
    assert unit_buffer_bytes(PARTS) == pytest.approx([0.0, 2 * everything, units])
    down = PARTS.costs.at(PARTS.costs.largest_weight_params)[0]
    assert transient_layer_bytes(PARTS)[2] == pytest.approx(units + 2 * down)


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
