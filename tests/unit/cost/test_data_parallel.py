"""What gradient reduction and weight gathering move, by the framework's traits."""

import numpy as np
import pytest
from contexts import columns_of, context_of, with_traits

from planner.cost.buffers import gathered_bytes
from planner.cost.context import Context
from planner.cost.data_parallel import (
    gather_elements,
    gathered_weight_bytes,
    gradient_copy_bytes,
    weight_bytes,
)
from planner.cost.kernels import memory_bound_s
from planner.cost.network import collective_s
from planner.cost.policies import layer_times
from planner.cost.stage_parts import stage_parameters
from planner.cost.topology import Group, group_of
from planner.frameworks.registry import load_traits, profile_names
from planner.spec.job import Precision
from planner.spec.traits import ShardedBy


def with_states(context: Context, **changes: object) -> Context:
    return with_traits(context, states=changes)


def test_where_gradients_are_not_scattered_stage_1_pays_an_all_reduce_and_the_gather() -> None:
    for scatters in (True, False):
        context = with_states(context_of(cluster="8xdgx-h100"), scatters_gradients=scatters)
        costs = stage_parameters(context, columns_of(dp=64, zero_stage=[0, 1])).dp
        none, one = costs.reduce
        assert one < 0.6 * none if scatters else one == none
        assert (costs.gather > 0.0).tolist() == [False, True]


def test_stage_2_then_all_reduces_behind_every_micro_batch_and_stage_3_scatters_all_the_same() -> (
    None
):
    plain = context_of(framework="deepspeed", cluster="8xdgx-h100", model="llama3-70b")
    columns = columns_of(dp=64, zero_stage=[2, 3])
    scattered, reduced = (
        stage_parameters(with_states(plain, scatters_gradients=scatters), columns).dp
        for scatters in (True, False)
    )
    assert scattered.reduce.tolist() == reduced.reduce.tolist() == [0.0, 0.0]
    assert 1.4 * scattered.layer_backward[0] < reduced.layer_backward[0]
    assert scattered.layer_backward[1] == reduced.layer_backward[1]


def test_deepspeed_all_reduces_buckets_since_its_release_0_12_4() -> None:
    every = {name: load_traits("deepspeed", name).states for name in profile_names("deepspeed")}
    older = {"trainer-2023", "peft-2023", "trainer-2022", "megatron", "neox"}
    assert {name for name, states in every.items() if states.scatters_gradients} == older


@pytest.mark.parametrize(
    ("precision", "shards", "width"),
    [
        # Only fp8 training gathers in the traits' bytes.
        *((precision, 1.0, 2.0) for precision in ("bf16", "fp16", "fp4")),
        *((precision, 1.0, 1.25) for precision in ("fp8", "fp8_block", "mxfp8")),
        # Megatron-LM's page on generalised tensor parallelism, table of section 1.3.
        ("bf16", 4.0, 2.0),
        ("mxfp8", 4.0, 1.03125),
        ("fp4", 4.0, 0.5625),
    ],
)
def test_weights_are_gathered_in_the_traits_bytes_or_as_cut_ones_are_kept(
    precision: Precision, shards: float, width: float
) -> None:
    assert weight_bytes(context_of(precision="fp32")) == 4.0
    assert weight_bytes(context_of(precision=precision)) == 2.0
    changes = {"fp8_gathered_weight_bytes": 1.25, "weight_shards": shards}
    assert gathered_weight_bytes(with_states(context_of(precision=precision), **changes)) == width


def test_weights_gathered_in_fp8_take_half_the_time_under_stage_3_and_gradients_as_long() -> None:
    context = context_of(
        model="llama3-8b", framework="torchtitan", cluster="8xdgx-h100", precision="fp8"
    )
    one, two = (
        stage_parameters(
            with_states(context, fp8_gathered_weight_bytes=num_bytes),
            columns_of(dp=64, zero_stage=[3, 2]),
        ).dp
        for num_bytes in (1.0, 2.0)
    )
    saved = two.layer_forward - one.layer_forward
    assert saved == pytest.approx([0.5 * two.layer_forward[0], 0.0], rel=0.2)
    assert two.layer_backward - one.layer_backward == pytest.approx(saved)
    assert one.reduce.tolist() == two.reduce.tolist()
    # Weights updated under stage 2 are gathered in 16 bits.
    assert one.gather[1] == two.gather[1] > 0.0


def test_under_deepspeed_stage_3_gathers_as_many_weights_at_a_time_as_it_prefetches() -> None:
    context = context_of(model="llama3-8b", framework="deepspeed")  # 7 matrices, 2 norms a layer
    layer, chunk = np.array([218112000.0]), np.array([32 * 218112000.0])

    def elements(wanted: float) -> float:
        given = with_traits(context, overlap={"weight_gather_elements": wanted})
        return float(gather_elements(given, layer, chunk)[0])

    assert context.traits.overlap.weight_gather_elements == 5e7
    assert [elements(each) for each in (0, 1, 5e7, 1e12)] == [layer, layer / 9, 5e7, chunk]


def test_cut_weights_travel_among_neighbours_and_what_a_rank_keeps_of_them_between_others() -> None:
    plain = context_of(framework="megatron", cluster="8xdgx-h100")
    context, machines = with_states(plain, weight_shards=4.0), plain.cluster
    parts = stage_parameters(context, columns_of(dp=64, zero_stage=1))
    # Nodes of 8: the neighbours of a rank are in its node, of every fourth rank 2 are.
    near = Group(members=(np.array([4]), np.array([4])))
    far = Group(members=(np.array([2]), np.array([16])))
    weight, held = parts.params / 4.0, parts.params * context.model.num_layers / 4.0
    gather = collective_s("all_gather", 2.0 * weight, near, machines)
    scatter = collective_s("reduce_scatter", 4.0 * weight, near, machines)
    assert parts.layer_dp.layer_forward == pytest.approx(gather / weight)
    assert parts.layer_dp.layer_backward == pytest.approx((gather + scatter) / weight)
    bucket = np.minimum(64e6, held)
    once = collective_s("reduce_scatter", 4.0 * bucket, far, machines) / bucket
    assert parts.layer_dp.reduce == pytest.approx(once / 4.0)
    # A weight of every shape arrives, 2, is made as a gradient, 4, and scattered, 4/4; of experts
    # two layers' arrive and are scattered.
    assert (gathered_bytes(context, 4.0), gathered_bytes(context, 4.0, 2.0)) == (7.0, 10.0)


@pytest.mark.parametrize("wanted", [0.0, 1.0])
def test_each_message_of_stage_3_waits_for_its_latency(wanted: float) -> None:
    plain = context_of(model="llama3-8b", framework="deepspeed", cluster="8xdgx-h100")
    context = with_traits(plain, overlap={"weight_gather_elements": wanted})
    columns = columns_of(dp=64, zero_stage=3)
    parts = stage_parameters(context, columns)
    group = group_of("dp_shard", columns, context.cluster)
    messages = 9.0 if wanted else 1.0
    one = collective_s("all_gather", 2.0 * parts.params / messages, group, context.cluster)
    assert parts.dp.layer_forward * parts.params == pytest.approx(messages * one)


@pytest.mark.parametrize(
    ("copies", "wire", "moved"),
    [
        ("megatron", 4.0, 0.0),
        ("fsdp2", 2.0, 2.0 + 2.0),
        ("fsdp2", 4.0, 2.0 + 4.0),
        ("fsdp1", 2.0, (2.0 + 2.0) + (2.0 + 2.0)),
        ("fsdp1", 4.0, (2.0 + 2.0) + (2.0 + 4.0) + (4.0 + 4.0)),
    ],
)
def test_a_unit_s_gradients_are_joined_widened_and_divided_or_copied(
    copies: ShardedBy, wire: float, moved: float
) -> None:
    assert gradient_copy_bytes(2.0, wire, copies) == moved


def with_copies(context: Context, copies: ShardedBy, accumulated_bytes: float) -> Context:
    return with_traits(
        context, states={"sharded_by": copies}, kernels={"weight_gradient_bytes": accumulated_bytes}
    )


@pytest.mark.parametrize(
    ("copies", "wire", "gathered", "handed"),
    [("megatron", 4.0, 0.0, 0.0), ("fsdp1", 4.0, 0.0, 18.0 - 6.0), ("fsdp2", 4.0, 4.0, 0.0)],
)
def test_only_sharded_units_are_copied_beyond_what_backward_moves(
    copies: ShardedBy, wire: float, gathered: float, handed: float
) -> None:
    context = context_of(framework="torchtitan", cluster="8xdgx-h100")
    context = with_copies(with_states(context, gradient_reduce_bytes=wire), copies, 6.0)
    costs = stage_parameters(context, columns_of(dp=64, zero_stage=[1, 2, 3])).dp
    seconds = memory_bound_s(np.array([gathered, handed]), context.cluster.accelerator)
    assert costs.copy_gather == pytest.approx([0.0, 0.0, seconds[0]])
    assert costs.copy_reduce == pytest.approx([0.0, seconds[1], seconds[1]])


def test_gradients_that_stay_whole_are_added_up_in_the_reduction_s_width() -> None:
    context = with_copies(context_of(framework="accelerate", cluster="8xdgx-h100"), "fsdp1", 0.0)
    assert not context.traits.states.reduces_every_micro_batch
    costs = stage_parameters(context, columns_of(dp=64, zero_stage=2)).dp
    moved = (2.0 + 2.0) + (2.0 + 2.0 * 2.0)
    copied = memory_bound_s(np.array([moved]), context.cluster.accelerator)
    assert costs.copy_reduce == pytest.approx(copied)


def test_copies_take_a_pass_longer_by_what_they_move() -> None:
    plain = context_of(model="llama3-8b", framework="torchtitan", cluster="1xdgx-h100")
    columns = columns_of(dp=8, zero_stage=3, micro_batch=8)
    none, split = (
        stage_parameters(with_copies(plain, copies, 6.0), columns)
        for copies in ("megatron", "fsdp2")
    )
    copied = memory_bound_s(4.0 * none.params, plain.cluster.accelerator)
    none, split = layer_times(none), layer_times(split)
    for own, bare in ((split.forward, none.forward), (split.backward, none.backward)):
        longer = own.sharding.exposed_s - bare.sharding.exposed_s
        assert own.sharding.busy_s - bare.sharding.busy_s == pytest.approx(copied)
        assert longer == pytest.approx(copied, rel=0.2)
