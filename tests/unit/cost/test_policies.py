"""What layers cost under each policy for their saved activations; parts of offloaded states."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, with_traits

from planner.answers.layout import fill_in, requested
from planner.cost.buffers import offload_buffer_bytes
from planner.cost.context import Context, with_modules
from planner.cost.estimate import estimate, estimates
from planner.cost.offload import host_transfer_s
from planner.cost.overlap import straggler_slowdown
from planner.cost.policies import layer_times, offers_activation_offload
from planner.cost.stage import OFFLOADED, StageModel, all_stages
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import stage_parameters
from planner.cost.step_terms import gradient_offload_s, optimizer_s_per_param
from planner.spec.strategy import OFFLOAD_CODES, StrategyColumns
from planner.units import Array

HOST = OFFLOAD_CODES.index("optimizer:host")
PERCENTS = [1, 25, 50, 75, 100]


def with_node(context: Context, **changes: float | None) -> Context:
    node = replace(context.cluster.node, **changes)
    return replace(context, cluster=replace(context.cluster, node=node))


def offloaded_counts(layers: Array) -> Array:
    counts = np.zeros((3, *layers.shape))
    counts[OFFLOADED] = layers
    return counts


@pytest.mark.parametrize("bytes_per_s", [1e9, 2e10, 5e10, 1e12])
@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3"])
def test_an_offloaded_pass_takes_the_longer_of_computing_and_moving(
    model: str, bytes_per_s: float
) -> None:
    # pp 1, n layers: n max(compute, transfer) in both passes, and what the first layer's way
    # cannot hide, min(compute, transfer); the rest of the stage as ever.
    context = with_node(context_of(model=model), host_link_bytes_per_s=bytes_per_s)
    columns = columns_of(tp=8, num_micro_batches=16)
    stage, parts = stage_model(context, columns), stage_parameters(context, columns)
    layers = np.array([[float(context.model.num_layers)]])
    saved = parts.costs.at(parts.costs.body.saved_bytes)
    transfer = float(saved[0]) / bytes_per_s
    expected = 0.0
    for items in (parts.costs.forward, parts.costs.backward):
        compute = float(parts.costs.exposed_at(items)[0])
        expected += layers[0, 0] * max(compute, transfer) + min(compute, transfer)
    expected *= float(straggler_slowdown(columns.num_gpus)[0])
    expected += float(stage.fixed_time_s(all_stages(1))[0, 0])
    seconds = stage.time_s(layers, offloaded_counts(layers))
    assert float(seconds[0, 0]) == pytest.approx(expected, rel=1e-12)


def test_activations_move_behind_the_parameters_on_the_same_link() -> None:
    # ZeRO-3 with parameters in host memory: a pass takes the longer of compute and both transfers.
    policies = {"policies": ("none", "offloaded")}
    plain = with_traits(context_of(framework="deepspeed"), support=policies)
    code = OFFLOAD_CODES.index("optimizer+parameters:host")
    columns = columns_of(dp=8, zero_stage=3, offload=code)
    for bytes_per_s in (1e9, 5e10, 1e13):
        context = with_node(plain, host_link_bytes_per_s=bytes_per_s)
        stage, parts = stage_model(context, columns), stage_parameters(context, columns)
        times = layer_times(parts)
        moved = host_transfer_s(parts.costs.at(parts.costs.body.saved_bytes), context.cluster)
        both = times.fetch + moved
        expected = np.maximum(times.forward.sharded_s, both)
        expected = expected + np.maximum(times.backward.sharded_s, both)
        per_layer = stage.layer_s + stage.policies.added_s[OFFLOADED]
        pace = straggler_slowdown(columns.num_gpus)
        assert per_layer == pytest.approx(pace * expected, rel=1e-12)


def test_the_host_holds_what_layers_save() -> None:
    # 32h bytes and 4 per head a token.
    stage = stage_model(context_of(), columns_of(num_micro_batches=16))
    layers, per_layer = np.full((1, 1), 4.0), 1024 * (32 * 1024 + 4 * 16)
    host = stage.host_bytes(layers, offloaded_counts(layers))
    assert host.tolist() == [[4 * per_layer]]
    # The device keeps none of it but two layers' buffers while a layer runs backward.
    moved = stage.held_bytes(layers, offloaded_counts(layers))
    workspace = stage.workspace_bytes(offloaded_counts(layers))
    buffers = stage.transient_bytes(all_stages(1), workspace)
    buffers = buffers - stage.transient_bytes(all_stages(1), 0.0)
    assert stage.held_bytes(layers) - moved == pytest.approx(host - buffers, rel=1e-12)


def test_two_layers_buffers_stay_whatever_the_number_of_offloaded_layers() -> None:
    context = context_of(model="mixtral-8x7b")
    columns = columns_of(tp=[1, 2], num_micro_batches=16)
    stage, parts = stage_model(context, columns), stage_parameters(context, columns)
    buffers = 2.0 * parts.costs.at(parts.costs.largest_saved_bytes)
    assert offload_buffer_bytes(parts).tolist() == buffers.tolist()
    middle = np.full((2, 1), 7.0)  # neither embedding nor head
    for number in (1.0, 5.0, 32.0):
        workspace = stage.workspace_bytes(offloaded_counts(np.full((2, 1), number)))
        found = stage.transient_bytes(middle, workspace)[:, 0]
        assert found.tolist() == (stage.layer_transient_bytes + buffers).tolist()


SHARDED = columns_of(dp=[1, 8], zero_stage=2, num_micro_batches=4)
V3 = context_of(model="deepseek-v3", cluster="4xdgx-h100")


@pytest.mark.parametrize(
    ("context", "columns", "layers"),
    [
        *(
            (context_of(framework=name, model="llama3-8b"), SHARDED, [[32.0], [32.0]])
            for name in ("deepspeed", "torchtitan", "accelerate")
        ),
        # Megatron offloads no activations under pipelining, nobody to unknown memory.
        (V3, columns_of(pp=2, tp=8), [[31.0, 30.0]]),
        (with_node(context_of(), host_memory_bytes=None), columns_of(), [[4.0]]),
    ],
)
def test_without_activation_offload_an_offloaded_layer_is_like_any_other(
    context: Context, columns: StrategyColumns, layers: list[list[float]]
) -> None:
    assert not offers_activation_offload(context, columns).any()
    stage, split = stage_model(context, columns), np.array(layers)
    counts = offloaded_counts(split)
    for figure in (StageModel.time_s, StageModel.held_bytes, StageModel.host_bytes):
        assert figure(stage, split, counts) == pytest.approx(figure(stage, split), rel=1e-12)
    assert stage.host_bytes(split, counts).max() == 0.0


def test_megatron_offers_activation_offload_without_pipelining() -> None:
    columns = columns_of(pp=[1, 2, 4], tp=8)
    assert offers_activation_offload(V3, columns).tolist() == [True, False, False]


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_states_move_to_the_host_in_proportion(zero_stage: int) -> None:
    context = context_of(framework="deepspeed")
    part = columns_of(dp=8, zero_stage=zero_stage, offload=HOST, offload_percent=PERCENTS)
    ends = columns_of(dp=8, zero_stage=zero_stage, offload=[0, HOST])
    states, whole = (stage_parameters(context, each).states for each in (part, ends))
    for name in ("weights", "gradients", "optimizer", "host"):
        first, last = getattr(whole, name)
        moved = first + np.array(PERCENTS) / 100.0 * (last - first)
        assert np.broadcast_to(getattr(states, name), 5) == pytest.approx(moved, rel=1e-12)
    assert whole.host[1] > whole.host[0] == 0.0


def test_the_step_of_partly_offloaded_states_is_the_weighted_sum() -> None:
    # Device: bytes the optimizer moves through HBM; host: Adam on the node's CPUs.
    context = context_of()
    columns = columns_of(dp=8, zero_stage=1, offload=HOST, offload_percent=PERCENTS)
    parts, share = stage_parameters(context, columns), np.array(PERCENTS) / 100.0
    bare = columns_of(dp=8, zero_stage=1)
    on_device = optimizer_s_per_param(context, bare, np.array([1 / 8]))[0]
    found = optimizer_s_per_param(context, columns, np.full(5, 1 / 8))
    assert found == pytest.approx((1 - share) * on_device + share * found[-1], rel=1e-12)
    assert found[-1] > on_device
    # Gradients of the offloaded part alone travel.
    busy, _, ends = gradient_offload_s(parts, layer_times(parts))
    assert busy == pytest.approx(share * busy[-1], rel=1e-12)
    assert ends == pytest.approx(share * ends[-1], rel=1e-12)


MIXED: list[dict[str, object]] = [
    {"tp": 8},
    {"tp": 8, "pp": 2, "recompute": "selective"},
    {"tp": 4, "pp": 4, "recompute": "full", "recompute_layers": 3},
    {"tp": 8, "offloaded_layers": 5, "offload": "optimizer:host", "offload_percent": 30},
    {"tp": 2, "pp": 2, "vpp": 2, "micro_batch": 2, "zero_stage": 0},
]


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_many_estimates_at_once_are_those_of_each_alone(model: str) -> None:
    context = context_of(model=model, cluster="4xdgx-h100", global_batch=64, seq_len=4096)
    # 61 layers make no 4 chunks, and mixtures need sequence parallelism beside tp.
    part = {"tp": 2, "sequence_parallel": model != "llama3-8b", "recompute": "selective"}
    requests = [*MIXED[: 4 if model == "deepseek-v3" else None], {**part, "recompute_layers": 2}]
    strategies = [fill_in(context, requested(**one))[1] for one in requests]
    first, *others = (module.name for module in context.traits.recompute.modules)
    for modules in ((first,), tuple(others[:2])):
        strategies.append(replace(strategies[1], recompute_modules=modules))
    together = estimates(context, strategies)
    assert together == [estimate(context, strategy) for strategy in strategies]
    assert together[::-1] == estimates(context, strategies[::-1])


def test_named_modules_are_priced_as_if_the_profile_selected_them() -> None:
    context, strategy = fill_in(
        context_of(model="llama3-8b"), requested(tp=8, recompute="selective")
    )
    for module in context.traits.recompute.modules:
        named = estimate(context, replace(strategy, recompute_modules=(module.name,)))
        assert named == estimate(with_modules(context, (module.name,)), strategy)
