"""Passes of one layer: what expert communication and launches add to its kernels."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import changed_traits, columns_of, context_of, with_traits

from planner.cost.context import Context
from planner.cost.layer import layer_shape
from planner.cost.layer_time import (
    LayerPasses,
    PricingInputs,
    TimeItems,
    exposed_s,
    layer_passes,
    op_items,
    op_precisions,
)
from planner.cost.overlap import exposed_beside_s, interference_fraction
from planner.layers.block import LayerGroup, layer_groups
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import FrameworkTraits

EXPERTS = "expert_parallel"


def changed(
    traits: FrameworkTraits, *, overlap: str = "none", graphs: float = 0.0, launch_s: float = 0.0
) -> FrameworkTraits:
    """Traits with another overlap of the all-to-all and other launches (backward takes twice)."""
    return changed_traits(
        traits,
        overlap={"expert_all_to_all_overlap": overlap},
        kernels={
            "cuda_graph_fraction": graphs,
            "launch_s": 0.0,
            "grouped_launch_s": 0.0,
            "eager_launch_s": 0.0,
            "moe_launch_s": (launch_s, 2.0 * launch_s),
        },
    )


def priced(
    context: Context, columns: StrategyColumns
) -> tuple[LayerPasses, tuple[LayerGroup, ...], PricingInputs]:
    traits, cluster = context.traits, context.cluster
    kinds = layer_groups(context.model, layer_shape(columns, context.job), traits)
    inputs = PricingInputs(job=context.job, cluster=cluster, traits=traits, strategy=columns)
    return layer_passes(kinds, inputs), kinds, inputs


COLUMNS = columns_of(dp=64, ep=[2, 4, 8, 16], micro_batch=[1, 2, 4, 1])


def passes_of(
    context: Context, columns: StrategyColumns = COLUMNS, **changes: object
) -> LayerPasses:
    traits = changed(context.traits, **changes)
    return priced(replace(context, traits=traits), columns)[0]


@pytest.fixture
def mixture() -> Context:
    return context_of(model="qwen3-235b-a22b", cluster="8xdgx-h100", seq_len=4096)


def interference(context: Context) -> float:
    overlap = context.traits.overlap
    return interference_fraction(overlap.communication_multiprocessors, context.cluster.accelerator)


def test_beside_another_batch_an_all_to_all_hides_behind_the_other_pass(mixture: Context) -> None:
    plain, hidden = passes_of(mixture), passes_of(mixture, overlap="batches")
    for own, other, after in (
        (plain.forward, plain.backward, hidden.forward),
        (plain.backward, plain.forward, hidden.backward),
    ):
        busy, shown = own[EXPERTS].busy_s, after[EXPERTS].exposed_s
        computing_s = exposed_s(other) - other[EXPERTS].exposed_s
        beside = exposed_beside_s(computing_s, busy, interference(mixture))
        assert shown == pytest.approx(beside)
        assert (shown < own[EXPERTS].exposed_s).all()


@pytest.mark.parametrize("overlap", ["batches", "shared_expert"])
@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "deepseek-v3"])
def test_overlap_of_an_all_to_all_changes_nothing_else_and_never_costs(
    overlap: str, model: str
) -> None:
    context = context_of(model=model, cluster="8xdgx-h100", seq_len=4096)
    plain, hidden = passes_of(context), passes_of(context, overlap=overlap)
    for before, after in ((plain.forward, hidden.forward), (plain.backward, hidden.backward)):
        assert after.keys() == before.keys()
        for name, duration in before.items():
            assert after[name].busy_s == pytest.approx(duration.busy_s), name
            if name != EXPERTS or (overlap, model) == ("shared_expert", "qwen3-235b-a22b"):
                # Without a shared expert nothing hides behind it.
                assert after[name].exposed_s == pytest.approx(duration.exposed_s), name
        assert (after[EXPERTS].exposed_s <= before[EXPERTS].exposed_s).all()


def test_a_shared_expert_hides_as_much_as_its_products_last() -> None:
    context = context_of(model="deepseek-v3", cluster="8xdgx-h100", seq_len=4096)
    traits = changed(context.traits, overlap="shared_expert")
    columns = columns_of(dp=64, ep=64)
    passes, kinds, inputs = priced(replace(context, traits=traits), columns)
    (mixed,) = (kind for kind in kinds if kind.name == "moe")
    share = mixed.num_layers / sum(kind.num_layers for kind in kinds)
    shared = [op for op in mixed.ops if op.name.startswith("shared_expert")]
    for items, backward in ((passes.forward, False), (passes.backward, True)):
        beside = sum(exposed_s(op_items(op, inputs, backward=backward)) for op in shared)
        busy = items[EXPERTS].busy_s / share
        expected = share * exposed_beside_s(beside, busy, interference(context))
        assert items[EXPERTS].exposed_s == pytest.approx(expected)
        assert 0.0 < expected < share * busy


@pytest.mark.parametrize("graphs", [0.0, 0.25, 1.0])
def test_cuda_graphs_lower_the_floor_that_launches_put_under_a_mixture(
    mixture: Context, graphs: float
) -> None:
    ahead = with_traits(mixture, kernels={"host_waits": ()})
    bare, held_up = (passes_of(ahead, launch_s=each, graphs=graphs) for each in (0.0, 1.0))
    floors = [(held_up.forward, bare.forward, 1.0), (held_up.backward, bare.backward, 2.0)]
    for items, kernels, launch_s in floors:
        floor = np.maximum(launch_s * (1.0 - graphs), exposed_s(kernels))
        assert exposed_s(items) == pytest.approx(floor)


@pytest.mark.parametrize(
    ("in_8_bit", "experts", "linears"),
    [
        (("experts", "linears"), "fp8", "fp8"),
        (("linears",), "bf16", "fp8"),
        (("experts",), "fp8", "bf16"),
    ],
)
def test_products_left_in_16_bits_are_of_experts_or_of_all_others(
    mixture: Context, in_8_bit: tuple[str, ...], experts: str, linears: str
) -> None:
    kernels = replace(mixture.traits.kernels, in_8_bit=in_8_bit)  # type: ignore[arg-type]
    job = replace(mixture.job, precision="fp8")
    (group,) = priced(mixture, columns_of(dp=64, ep=[8]))[1]
    found = {op.name: op_precisions(op, job, kernels)[0][0] for op in group.ops}
    assert (found["expert_up"], found["expert_down"]) == (experts, experts)
    assert (found["qkv"], found["router"]) == (linears, "bf16")
    # A fifth of the layers in 16 bits: those products that are in 8 elsewhere.
    kernels = replace(kernels, layers_in_16_bit_fraction=0.2)
    both = {op.name: dict(op_precisions(op, job, kernels)) for op in group.ops}
    assert both["qkv"] == ({"fp8": 0.8, "bf16": 0.2} if linears == "fp8" else {"bf16": 1.0})


def test_grouped_products_run_at_their_share_of_the_rate(mixture: Context) -> None:
    columns = columns_of(dp=64, ep=[8])
    slow = with_traits(mixture, kernels={"grouped_rate_fraction": 0.5})
    _, (group,), whole = priced(mixture, columns)
    half = priced(slow, columns)[2]
    for op in group.ops:
        taken = [op_items(op, each)["gemm"].busy_s for each in (whole, half) if op.gemms]
        if taken:
            assert taken[1] == pytest.approx(taken[0] * (2.0 if op.is_expert else 1.0))


def test_a_layer_waits_for_launches_before_the_exchange_although_experts_outlast_theirs(
    mixture: Context,
) -> None:
    # All launches take as long as all kernels, three tenths of them before the exchange, whose
    # kernels take less: a host that waits there and behind the experts is ahead of none of them,
    # one that waits there alone only not of what follows the wait.
    columns = columns_of(dp=64, ep=8, micro_batch=4)

    def forward(waits: tuple[str, ...], launch_s: float) -> TimeItems:
        given = changed(mixture.traits, launch_s=launch_s)
        context = with_traits(
            replace(mixture, traits=given),
            kernels={"host_waits": waits, "moe_launch_s": (launch_s, 0.0)},
        )
        return priced(context, columns)[0].forward

    kernels_s = float(exposed_s(forward((), 0.0))[0])
    once, twice = (
        float(forward(waits, kernels_s)["launch"].exposed_s[0])
        for waits in (("router",), ("router", "combine"))
    )
    assert 0.0 < once < twice < 0.3 * kernels_s


@pytest.mark.parametrize("sequence_parallel", [0, 1])
def test_exchanges_of_backward_hide_beside_the_product_that_does_not_need_them(
    sequence_parallel: int,
) -> None:
    context = context_of(model="llama3-70b", cluster="1xdgx-h100")
    columns = columns_of(tp=2, dp=1, sequence_parallel=sequence_parallel)
    after, beside = (
        priced(with_traits(context, overlap={"overlaps_input_gradients": early}), columns)[0]
        .backward["tensor_parallel"]
        .exposed_s
        for early in (False, True)
    )
    gathered_alone = 1.0 / 3.0 if sequence_parallel else 0.0
    shown = gathered_alone + (1.0 - gathered_alone) * interference(context)
    assert beside == pytest.approx(shown * after, rel=0.1)


def test_without_a_product_of_the_weight_s_gradient_nothing_hides_them() -> None:
    context = context_of(model="llama3-70b", cluster="1xdgx-h100")
    columns = columns_of(tp=2, dp=1)
    _, kinds, inputs = priced(context, columns)
    (op,) = (op for op in kinds[0].ops if op.name == "qkv")
    frozen = replace(op, gemms=tuple(replace(gemm, is_frozen=True) for gemm in op.gemms))
    assert context.traits.overlap.overlaps_input_gradients
    found = op_items(frozen, inputs, backward=True)["tensor_parallel"]
    assert found.exposed_s == found.busy_s
    assert op_items(op, inputs, backward=True)["tensor_parallel"].exposed_s < 0.5 * found.busy_s
