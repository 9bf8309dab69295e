"""What gradient reduction and weight gathering move, by the framework's traits."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.data_parallel import (
    DataParallelCosts,
    gather_elements,
    gathered_weight_bytes,
)
from planner.cost.parts import build_parts
from planner.cost.topology import group_of
from planner.frameworks.registry import load_traits
from planner.spec.job import Precision
from planner.spec.strategy import StrategyColumns

Contexts = Callable[..., Context]
Columns = Callable[..., StrategyColumns]


def with_states(context: Context, **changes: object) -> Context:
    states = replace(context.traits.states, **changes)  # type: ignore[arg-type]
    return replace(context, traits=replace(context.traits, states=states))


@pytest.mark.parametrize("scatters", [True, False])
def test_where_gradients_are_not_scattered_stage_1_pays_an_all_reduce_and_the_gather(
    scatters: bool, context_of: Contexts, columns_of: Columns
) -> None:
    context = with_states(context_of(cluster="8xdgx-h100"), scatters_gradients=scatters)
    costs = build_parts(context, columns_of(dp=64, zero_stage=[0, 1])).dp
    none, one = costs.reduce
    assert one < 0.6 * none if scatters else one == none
    assert costs.gather[0] == 0.0
    assert costs.gather[1] > 0.0


def test_stage_2_then_all_reduces_behind_every_micro_batch_and_stage_3_scatters_all_the_same(
    context_of: Contexts, columns_of: Columns
) -> None:
    plain = context_of(framework="deepspeed", cluster="8xdgx-h100")
    columns = columns_of(dp=64, zero_stage=[2, 3])
    scattered, reduced = (
        build_parts(with_states(plain, scatters_gradients=scatters), columns).dp
        for scatters in (True, False)
    )
    assert scattered.reduce.tolist() == reduced.reduce.tolist() == [0.0, 0.0]
    assert 1.4 * scattered.layer_backward[0] < reduced.layer_backward[0]
    assert scattered.layer_backward[1] == reduced.layer_backward[1]


@pytest.mark.parametrize(
    ("profile", "scatters"),
    [
        ("current", False),
        ("pipeline", False),
        ("zero++", False),
        ("optimum-habana", False),
        ("trainer-2023", True),
        ("trainer-2022", True),
        ("megatron", True),
        ("neox", True),
        ("megatron-bf16", False),
    ],
)
def test_deepspeed_all_reduces_buckets_since_its_release_0_12_4(
    profile: str, scatters: bool
) -> None:
    assert load_traits("deepspeed", profile).states.scatters_gradients == scatters


@pytest.mark.parametrize(
    ("precision", "in_fp8"),
    [
        ("bf16", False),
        ("fp16", False),
        ("fp8", True),
        ("fp8_block", True),
        ("mxfp8", True),
        ("fp4", False),
    ],
)
def test_only_fp8_training_gathers_weights_in_the_traits_bytes(
    precision: Precision, in_fp8: bool, context_of: Contexts
) -> None:
    context = with_states(context_of(precision=precision), fp8_gathered_weight_bytes=1.25)
    assert gathered_weight_bytes(context) == (1.25 if in_fp8 else 2.0)


def test_weights_gathered_in_fp8_take_half_the_time_and_gradients_as_long(
    context_of: Contexts, columns_of: Columns
) -> None:
    columns = columns_of(dp=64, zero_stage=3)

    def costs(num_bytes: float) -> DataParallelCosts:
        context = context_of(
            model="llama3-8b", framework="torchtitan", cluster="8xdgx-h100", precision="fp8"
        )
        return build_parts(with_states(context, fp8_gathered_weight_bytes=num_bytes), columns).dp

    one, two = costs(1.0), costs(2.0)
    assert one.layer_forward == pytest.approx(0.5 * two.layer_forward, rel=0.1)
    saved = two.layer_forward - one.layer_forward
    assert two.layer_backward - one.layer_backward == pytest.approx(saved)
    assert one.reduce.tolist() == two.reduce.tolist()


def test_weights_updated_under_stage_2_are_gathered_in_16_bits_in_fp8_training_too(
    context_of: Contexts, columns_of: Columns
) -> None:
    columns = columns_of(dp=64, zero_stage=2)
    contexts = [
        with_states(
            context_of(framework="torchtitan", cluster="8xdgx-h100", precision="fp8"),
            fp8_gathered_weight_bytes=num_bytes,
        )
        for num_bytes in (1.0, 2.0)
    ]
    one, two = (build_parts(context, columns).dp.gather for context in contexts)
    assert (one > 0).all()
    assert one.tolist() == two.tolist()


def test_under_deepspeed_stage_3_gathers_as_many_weights_at_a_time_as_it_prefetches(
    context_of: Contexts,
) -> None:
    context = context_of(model="llama3-8b", framework="deepspeed")  # 7 matrices, 2 norms a layer
    layer, chunk = np.array([218112000.0]), np.array([32 * 218112000.0])

    def elements(wanted: float) -> float:
        overlap = replace(context.traits.overlap, weight_gather_elements=wanted)
        given = replace(context, traits=replace(context.traits, overlap=overlap))
        return float(gather_elements(given, layer, chunk)[0])

    assert context.traits.overlap.weight_gather_elements == 5e7
    assert [elements(each) for each in (0, 1, 5e7, 1e12)] == [layer, layer / 9, 5e7, chunk]


@pytest.mark.parametrize("wanted", [0.0, 1.0])
def test_each_message_of_stage_3_waits_for_its_latency(
    wanted: float, context_of: Contexts, columns_of: Columns
) -> None:
    plain = context_of(model="llama3-8b", framework="deepspeed", cluster="8xdgx-h100")
    overlap = replace(plain.traits.overlap, weight_gather_elements=wanted)
    context = replace(plain, traits=replace(plain.traits, overlap=overlap))
    columns = columns_of(dp=64, zero_stage=3)
    parts = build_parts(context, columns)
    group = group_of("dp_shard", columns, context.cluster)
    messages = 9.0 if wanted else 1.0
    one = collective_s("all_gather", 2.0 * parts.params / messages, group, context.cluster)
    assert parts.dp.layer_forward * parts.params == pytest.approx(messages * one)
