"""Launches counted by hand, and what waiting for the host adds to a layer's passes."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import changed_traits, columns_of, context_of, small_model, with_traits

from planner.catalog.clusters import load_cluster
from planner.cost.context import Context
from planner.cost.launches import (
    host_waits,
    launch_floors_s,
    launch_waits_s,
    layer_waits_s,
    module_hooks_s,
    on_hosts_of,
    op_floors_s,
    paired_launch_pace,
    router_launches_s,
    segmented_waits_s,
    segments,
)
from planner.cost.layer import layer_costs, layer_shape
from planner.frameworks.registry import load_traits
from planner.layers.block import LayerGroup, layer_groups
from planner.spec.job import Precision
from planner.spec.strategy import StrategyColumns
from planner.spec.training import TARGETS, Training

LAUNCH_S = 10e-6
MOVING = 3.0  # Kernels of an op that moves data


def launching(context: Context, **changes: float) -> Context:
    return with_traits(
        context, kernels={"launch_s": LAUNCH_S, "memory_bound_kernels": MOVING, **changes}
    )


def group_of(context: Context, columns: StrategyColumns) -> LayerGroup:
    (group,) = layer_groups(context.model, layer_shape(columns, context.job), context.traits)
    return group


def floors(context: Context, columns: StrategyColumns) -> tuple[np.ndarray, np.ndarray]:
    group = group_of(context, columns)
    forward, backward, _ = launch_floors_s(group, context.traits.kernels, columns)
    return forward / LAUNCH_S, backward / LAUNCH_S


@pytest.fixture
def mixture() -> Context:
    return context_of(model="qwen3-235b-a22b", cluster="8xdgx-h100", seq_len=4096)


def test_a_layers_launches_are_its_products_attention_and_moves() -> None:
    # Forward: 4 products, attention; two norms, rotary embedding and activation move data.
    # Backward: two products each.
    forward, backward = floors(launching(context_of()), columns_of(dp=8))
    assert forward == pytest.approx(4 + 1 + 4 * MOVING)
    assert backward == pytest.approx(8 + 1 + 4 * MOVING)
    # A graph of the whole iteration launches nothing.
    graph = launching(context_of(), cuda_graph_fraction=1.0)
    assert floors(graph, columns_of(dp=8)) == (0.0, 0.0)


def test_hooks_of_stage_3_show_where_the_host_is_the_slower_one() -> None:
    context, columns = context_of(framework="deepspeed"), columns_of(dp=8, zero_stage=[2, 3])
    kernels, group = context.traits.kernels, group_of(context, columns)
    hooks = module_hooks_s(group, kernels, columns)
    # Four products, two norms.
    assert hooks == pytest.approx([0.0, 6 * kernels.gathered_module_s])
    assert kernels.gathered_module_s > 0
    nothing = (np.zeros(2),) * 3
    waits = layer_waits_s(group, nothing, [np.ones(2)] * len(group.ops), context.traits, columns)
    floors = launch_floors_s(group, kernels, columns)
    assert waits[0] == pytest.approx(floors[0] + hooks)
    assert waits[1] == pytest.approx(floors[1] + hooks)


def test_experts_are_modules_of_stage_3_each_where_a_loop_calls_them() -> None:
    context = context_of(model="qwen3-30b-a3b", framework="deepspeed")
    kernels, columns = context.traits.kernels, columns_of(dp=8, zero_stage=3)
    group, looped = group_of(context, columns), replace(kernels, grouped_launch_s=LAUNCH_S)
    more_s = module_hooks_s(group, looped, columns) - module_hooks_s(group, kernels, columns)
    # Up and down of 128 experts, and of one.
    assert more_s == pytest.approx(2 * (2.3 * 128 - 1) * kernels.gathered_module_s)


def test_adapters_and_rebuilt_matrices_launch_their_own_kernels() -> None:
    # Six adapters (no gate) of two products and six more, eight backward; backward two of each
    # product. Frozen products have one backward. Six matrices of three kernels each way.
    context = launching(context_of())
    plain = floors(context, columns_of(dp=8))
    for mode, rebuilt in (("lora", 0), ("qlora", 3 * 6)):
        training = Training(mode=mode, rank=8, targets=TARGETS)
        traits = replace(context.traits, training=training)
        forward, backward = floors(replace(context, traits=traits), columns_of(dp=8))
        assert forward - plain[0] == pytest.approx(6 * (2 + 6) + rebuilt)
        assert backward - plain[1] == pytest.approx(6 * (4 + 8) - 4 + rebuilt)


def test_tensor_parallelism_adds_the_collectives_that_send_something() -> None:
    context = launching(context_of())
    columns = columns_of(dp=[8, 4, 4], tp=[1, 2, 2], sequence_parallel=[0, 0, 1])
    (alone, summed, split), _ = floors(context, columns)
    assert (summed - alone, split - alone) == pytest.approx((2, 4))


@pytest.mark.parametrize(("graphs", "left"), [(0.0, 1.0), (0.3, 1.0), (1.0, 0.0)])
def test_experts_are_launched_one_by_one_unless_a_graph_replays_the_whole_iteration(
    mixture: Context, graphs: float, left: float
) -> None:
    # Two products forward and four backward, each for 128 / ep experts of the rank.
    columns = columns_of(dp=64, ep=[1, 8])
    calls, none = (
        floors(launching(mixture, grouped_launch_s=each, cuda_graph_fraction=graphs), columns)
        for each in (LAUNCH_S, 0.0)
    )
    assert calls[0] - none[0] == pytest.approx([256.0 * left, 32.0 * left])
    assert calls[1] - none[1] == pytest.approx([512.0 * left, 64.0 * left])


@pytest.mark.parametrize(
    ("kernels", "launches", "each", "waits"),
    [
        ((1.0, 2.0), (0.5, 1.0), False, (0.0, 0.0, 0.0)),
        ((1.0, 2.0), (3.0, 4.0), False, (2.0, 2.0, 2.0)),
        # What forward lacks the host has run ahead in backward, all or half of it.
        ((1.0, 4.0), (3.0, 2.0), False, (0.0, 0.0, 2.0)),
        ((1.0, 4.0), (3.0, 3.0), False, (1.0, 0.0, 2.0)),
        # A repeated forward gives the host time that it lacked.
        ((4.0, 1.0), (2.0, 4.0), False, (0.0, 1.0, 0.0)),
        # A host that waits for every kernel adds all its launches.
        ((1.0, 4.0), (0.5, 3.0), True, (0.5, 3.0, 0.5)),
    ],
)
def test_a_micro_batch_takes_the_longer_of_kernels_and_launches(
    kernels: tuple[float, float],
    launches: tuple[float, float],
    each: bool,
    waits: tuple[float, ...],
) -> None:
    passes = [[np.array([both[place]]) for place in (0, 1, 0)] for both in (kernels, launches)]
    found = launch_waits_s(*passes, waits_for_kernels=each)
    assert np.ravel(found) == pytest.approx(waits)


def test_a_layer_too_small_for_its_launches_costs_the_same_whatever_its_width() -> None:
    context = launching(context_of(seq_len=128))
    for hidden_size in (128, 256):
        small = replace(context, model=small_model(hidden_size=hidden_size))
        costs = layer_costs(small, columns_of(dp=8))
        for items, launches in ((costs.forward, 17), (costs.backward, 21), (costs.repeated, 17)):
            assert costs.exposed_at(items) == pytest.approx(LAUNCH_S * launches)


def test_a_repeated_forward_launches_no_product_that_it_stops_before() -> None:
    launched = []
    for stops in (False, True):
        given = {"stops_recomputation": stops, "waits_for_kernels": True, "dropout": False}
        costs = layer_costs(launching(context_of(seq_len=128), **given), columns_of(dp=8))
        launched.append(float(costs.items_at(costs.repeated)["launch"].exposed_s[0]))
    assert launched[0] - launched[1] == pytest.approx(LAUNCH_S)


def test_a_wait_ends_a_segment_and_a_host_that_waited_has_launched_nothing_ahead() -> None:
    names = ("norm", "router", "dispatch", "experts", "combine", "shared")
    assert segments(names, ()) == ()
    assert segments(names, ("router",)) == ((2, 3, 4, 5, 0, 1),)
    assert segments(names, ("router", "combine")) == ((2, 3, 4), (5, 0, 1))
    # The first op of a segment waits for its launches; no segment's surplus helps another.
    op_s, floor_s = (np.array([[each] for each in row]) for row in ((1.0, 6.0), (2.0, 1.0)))
    backward = np.array([9.0]), np.array([11.0])
    found = segmented_waits_s(((0,), (1,)), op_s, floor_s, *backward)
    assert np.ravel(found).tolist() == [3.0, 2.0, 3.0]
    # One wait a layer leaves the host ahead inside the forward: 2 s, then 2 + 1 - 1.
    together = segmented_waits_s(((0, 1),), op_s, floor_s, *backward)
    assert np.ravel(together).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("precision", "in_8_bit", "factor"),
    [
        ("bf16", "experts", 1.0),
        ("fp8", "experts", 1.0),
        ("mxfp8", "experts", 1.6),
        ("fp4", "linears", 1.0),
    ],
)
def test_a_slow_host_and_scales_per_block_make_launches_longer(
    precision: Precision, in_8_bit: str, factor: float
) -> None:
    traits = changed_traits(load_traits("megatron"), kernels={"in_8_bit": (in_8_bit,)})
    slow = on_hosts_of(traits, precision, load_cluster("1xdgx-b300").node).kernels
    assert slow.grouped_launch_s == pytest.approx(1.3 * factor * traits.kernels.grouped_launch_s)
    assert slow.launch_s == pytest.approx(1.3 * traits.kernels.launch_s)


def test_ops_share_a_layers_launches_as_partial_graphs_do(mixture: Context) -> None:
    kernels, columns = mixture.traits.kernels, columns_of(dp=64, ep=8)
    group = group_of(mixture, columns)
    floor_s, _, _ = launch_floors_s(group, kernels, columns)
    names = [op.name for op in group.ops]
    found = op_floors_s(group.ops, kernels, columns, floor_s)
    shares = dict(zip(names, found, strict=True))
    assert sum(found) == pytest.approx(floor_s)
    # 16 experts of two products; 24 kernels of the router more than of a fused one.
    calls_s, eager_s = 16 * kernels.grouped_launch_s, 24 * kernels.eager_launch_s
    assert router_launches_s(kernels)[0] == pytest.approx(eager_s)
    assert floor_s == pytest.approx(kernels.moe_launch_s[0] + 2 * calls_s + eager_s)
    before = sum(found[: names.index("router")])
    assert before == pytest.approx(0.2 * kernels.moe_launch_s[0])
    assert shares["router"] - eager_s == pytest.approx(0.1 * kernels.moe_launch_s[0])
    # A product and an exchange with its sorting kernel.
    assert shares["expert_up"] - calls_s == pytest.approx(shares["dispatch"] / 2)
    # A fused router adds nothing to the floor that it was part of.
    assert router_launches_s(load_traits("megatron", "bridge").kernels) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("profile", "kernels", "waits"),
    [
        ("current", {}, ("router",)),
        ("current", {"pads_to_capacity": True}, ()),
        ("nemo", {"pads_to_capacity": True}, ("router", "combine")),
        ("current", {"cuda_graph_fraction": 1.0}, ()),
        ("current", {"waits_for_kernels": True}, ()),
    ],
)
def test_the_host_waits_where_a_framework_needs_counts_of_tokens(
    mixture: Context, profile: str, kernels: dict[str, bool | float], waits: tuple[str, ...]
) -> None:
    traits = changed_traits(load_traits("megatron", profile), kernels=kernels)
    group = group_of(replace(mixture, traits=traits), columns_of(dp=64, ep=8))
    assert host_waits(group, traits) == waits
    assert host_waits(replace(group, name="dense"), traits) == ()
    beside = changed_traits(traits, overlap={"expert_all_to_all_overlap": "batches"})
    assert host_waits(group, beside) == ()


def test_layers_beside_another_micro_batch_take_the_host_longer(mixture: Context) -> None:
    columns, waited = columns_of(dp=64, ep=8), []
    group = group_of(mixture, columns)
    for mode in ("none", "batches"):
        traits = changed_traits(
            mixture.traits, kernels={"host_waits": ()}, overlap={"expert_all_to_all_overlap": mode}
        )
        forward, backward, _ = layer_waits_s(group, (np.zeros(1),) * 3, [], traits, columns)
        waited.append(float(forward[0] + backward[0]))
        assert paired_launch_pace(replace(group, name="dense"), traits) == 1.0
    assert waited[1] / waited[0] == pytest.approx(1.08)
    assert mixture.traits.kernels.paired_launch_multiplier == 1.08
