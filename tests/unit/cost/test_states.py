"""Bytes of weights, gradients and optimizer against the numbers of the ZeRO papers."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of

from planner.cost.states import shard_degree, state_bytes
from planner.frameworks.registry import load_traits
from planner.spec.strategy import OFFLOAD_CODES, StrategyColumns
from planner.spec.traits import StateTraits

GB = 1e9
ZERO_PAPER = StateTraits(
    weight_bytes=2,
    gradient_bytes=2,
    fp32_shard_bytes=4,
    replica_bucket_bytes=0,
    step_temporary_bytes=0,
    optimizer_state_fraction=1,
    master_weight_bytes=4,
    unsharded_gradient_copy_bytes=0,
    shards_replica_states=False,
    host_staging_bytes=0,
    offload_staging_bytes=0,
    host_load_bytes=0,
    zero3_secondary_weight_bytes=0,
    gradients_made_in_backward=False,
    gathers_in_own_stream=False,
    whole_tensor_gradient_bytes=0,
    splits_experts_by_number=False,
    keeps_stage_outputs="no",
    gathers_embedding_with_head=False,
    embedding_gradient_is_whole=False,
    loss_inside_model=False,
    collected_head_gradient_bytes=0,
    accumulated_gradient_bytes=0,
    receives_into_own_buffers=False,
    largest_gradient_copy_bytes=0,
    sharded_gradient_bytes=0,
    zero3_weight_bytes=2,
    gradient_reduce_bytes=2,
    zero2_gradient_bytes=0,
    scatters_gradients=True,
    broadcasts_weights=False,
    fp8_gathered_weight_bytes=2,
    weight_shards=1,
    expert_weight_shards=1,
    reduces_every_micro_batch=True,
    zero3_reshards_under_pp=True,
    zero3_gathered_layers=2,
    shards_frozen_below_stage_3=False,
    frozen_shard_width=1,
    zero3_live_elements=1e18,
    zero3_step_elements=0,
    sharded_copies="gradients",
    zero3_keeps_ends_gathered=False,
    whole_gradient_units=1,
    whole_gradient_elements=0,
)
"""fp16 weights and gradients, fp32 weights, momentum and variance (arXiv 1910.02054, 3.1)."""


def total_per_param(traits: StateTraits, columns: StrategyColumns) -> np.ndarray:
    return state_bytes(columns, traits, shard_degree(columns)).device


def test_zero_stages_of_7_5_billion_parameters_on_64_gpus() -> None:
    # arXiv 1910.02054, figure 1. Psi = 7.5 B, N = 64:
    #   none  (2 + 2 + 12) Psi               = 16      * 7.5 = 120   GB
    #   1     (2 + 2 + 12/64) Psi            =  4.1875 * 7.5 =  31.4 GB
    #   2     (2 + (2 + 12)/64) Psi          =  2.21875 * 7.5 = 16.6 GB
    #   3     (2 + 2 + 12)/64 Psi            =  0.25   * 7.5 =   1.9 GB
    columns = columns_of(dp=64, zero_stage=[0, 1, 2, 3])
    gigabytes = 7.5e9 * total_per_param(ZERO_PAPER, columns) / GB
    assert gigabytes.round(1).tolist() == [120.0, 31.4, 16.6, 1.9]


def test_adam_in_mixed_precision_for_175_billion_parameters() -> None:
    # 175 B * 4 bytes = 700 GB each for fp32 weights, momentum, variance; * 2 bytes = 350 GB each
    # for fp16 weights and gradients; together 2,800 GB.
    state = state_bytes(columns_of(), ZERO_PAPER, np.ones(1))
    assert (175e9 * state.optimizer / GB).tolist() == [3 * 700.0]
    assert (175e9 * state.weights / GB).tolist() == [350.0]
    assert (175e9 * state.gradients / GB).tolist() == [350.0]
    assert (175e9 * state.device / GB).tolist() == [2800.0]
    assert state.host.tolist() == [0.0]


def test_megatron_distributed_optimizer_takes_6_plus_12_over_d() -> None:
    # Megatron-LM's page: 18 bytes without it, 6 + 12/d with it; d = 8 gives 7.5.
    traits = load_traits("megatron").states
    columns = columns_of(dp=8, zero_stage=[0, 1])
    assert total_per_param(traits, columns).tolist() == [18.0, 7.5]


def test_cut_weights_and_gradients_are_a_part_each_and_states_as_without() -> None:
    # Over 4 of 8 ranks: 2/4, 4/4, states over those 4 or all 8: 12/4, 12/8.
    columns = columns_of(dp=8, zero_stage=[0, 1])
    traits, shards = load_traits("megatron").states, shard_degree(columns)
    state = state_bytes(columns, traits, shards, weight_shards=4.0)
    assert state.weights.tolist() == [0.5, 0.5]
    assert state.gradients.tolist() == [1.0, 1.0]
    assert state.optimizer.tolist() == [3.0, 1.5]


def test_deepspeed_stage_1_takes_4_plus_16_over_d() -> None:
    # fp32 gradient partition beside the 12 bytes: 4 + (12 + 4)/8 = 6.
    assert total_per_param(load_traits("deepspeed").states, columns_of(dp=8, zero_stage=1)) == 6.0


def test_fsdp_shards_everything_over_dp_times_cp() -> None:
    # torchtitan: the fp32 shard serves as the weight: (0 + 4 + 12) / (dp 4 * cp 2) = 2.
    traits = load_traits("torchtitan").states
    columns = columns_of(dp=4, cp=2, zero_stage=3)
    assert shard_degree(columns) == 8.0
    assert total_per_param(traits, columns) == 2.0


def test_under_pipelining_fsdp_keeps_weights_and_gradients_whole() -> None:
    # pp 2: 2 + 4 + 12/8 = 7.5; pp 1: weights whole at stage 2 (2), gradients 4/8, 12/8 -> 4.
    traits = load_traits("torchtitan").states
    columns = columns_of(dp=8, zero_stage=2, pp=[2, 1])
    assert total_per_param(traits, columns).tolist() == [7.5, 4.0]
    whole = state_bytes(columns_of(dp=8, zero_stage=3, pp=2), traits, np.array([8.0]))
    assert whole.weights == 2.0


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
    # 16 without ZeRO; with N = 4: 2 + 2 + (12 + 4)/4 = 8.
    traits = replace(ZERO_PAPER, sharded_gradient_bytes=4)
    columns = columns_of(dp=4, zero_stage=[0, 1])
    assert total_per_param(traits, columns).tolist() == [16.0, 8.0]


def test_copies_made_group_by_group_are_not_kept_per_parameter_under_stage_3() -> None:
    # N = 4: 2 + (2 + 12 + 4)/4 = 6.5 under stage 2, (2 + 2 + 12)/4 = 4 under stage 3.
    # On a host all groups have their copy: (12 + 4 + 2)/4 = 4.5.
    traits = replace(ZERO_PAPER, sharded_gradient_bytes=4, zero3_step_elements=1e9)
    columns = columns_of(dp=4, zero_stage=[2, 3])
    assert total_per_param(traits, columns).tolist() == [6.5, 4.0]
    away = columns_of(dp=4, zero_stage=3, offload=OFFLOAD_CODES.index("optimizer:host"))
    assert state_bytes(away, traits, np.array([4.0])).host.tolist() == [4.5]
