"""Memory and time where only adapters are trained, by hand."""

from dataclasses import replace

import pytest
from contexts import context_of, strategy_of

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.flops import model_flops_per_iteration
from planner.cost.kernels import gemm_backward_s, gemm_s
from planner.frameworks.settings import with_training
from planner.layers.adapter_targets import adapter_params
from planner.layers.op import ONE, Gemm
from planner.layers.parameters import count_parameters
from planner.spec.strategy import Strategy
from planner.spec.training import QUANTISED_BYTES, TARGETS, Mode, Training

LINEAR = 32 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336)
"""Weights in linear layers of Llama 3.1 8B."""


def trained(mode: Mode, framework: str = "accelerate", **job: object) -> Context:
    context = context_of(model="llama3.1-8b", framework=framework, **job)
    training = Training(mode=mode, rank=16, targets=TARGETS)
    return replace(context, traits=with_training(context.traits, training))


def layout(**values: object) -> Strategy:
    usual = {"layers_per_stage": (32,), "num_micro_batches": 2, "zero_stage": 0}
    return strategy_of(**{**usual, **values})


def priced(context: Context, strategy: Strategy) -> Estimate:
    found = estimate(context, strategy)
    assert sum(found.memory.items.values()) == pytest.approx(found.memory.peak_bytes)
    assert sum(item.exposed_s for item in found.time.values()) == pytest.approx(found.iter_time_s)
    return found


def test_one_gpu_holds_frozen_weights_in_16_bits_and_states_of_adapters_only() -> None:
    context = trained("lora")
    items = priced(context, layout()).memory.items
    adapters = adapter_params(context.model, context.traits.training, context.traits.kernels)
    assert items["frozen_weights"] == 2.0 * count_parameters(context.model)
    assert items["weights"] == 2.0 * adapters
    assert items["gradients"] == 4.0 * adapters
    assert items["optimizer.states"] == pytest.approx(8.0 * adapters)


def test_a_4_bit_base_leaves_embedding_head_and_norms_in_16_bits_and_rebuilds_a_matrix() -> None:
    context = trained("qlora", seq_len=16, global_batch=2)
    items = priced(context, layout()).memory.items
    others = count_parameters(context.model) - LINEAR
    assert items["frozen_weights"] == pytest.approx(LINEAR * QUANTISED_BYTES + 2.0 * others)
    assert items["transient.dequantised_matrix"] == 2.0 * 4096 * 14336


@pytest.mark.parametrize(
    ("framework", "zero_stage", "copies"),
    [
        ("accelerate", 0, 1.0),
        ("accelerate", 2, 1.0 + 1.0 / 8.0),
        ("accelerate", 3, 1.0 / 8.0),
        ("deepspeed", 2, 1.0),
        ("deepspeed", 3, 1.0 / 8.0),
    ],
)
def test_frozen_weights_are_sharded_where_weights_are(
    framework: str, zero_stage: int, copies: float
) -> None:
    context = trained("lora", framework)
    items = priced(context, layout(dp=8, zero_stage=zero_stage)).memory.items
    assert items["frozen_weights"] == pytest.approx(2.0 * count_parameters(context.model) * copies)


def test_offloaded_parameters_take_frozen_weights_to_the_host() -> None:
    context = trained("qlora")
    found = priced(context, layout(dp=8, zero_stage=3, offload="optimizer+parameters:host"))
    stored = LINEAR * QUANTISED_BYTES + 2.0 * (count_parameters(context.model) - LINEAR)
    assert "frozen_weights" not in found.memory.items
    assert found.memory.host_bytes > stored / 8.0


def test_gathering_frozen_weights_takes_time_and_reducing_them_none() -> None:
    plain = context_of(model="llama3.1-8b", framework="accelerate")
    strategy, adapted = layout(dp=8, zero_stage=3), trained("lora")
    full, lora, qlora = (
        priced(context, strategy).time["sharding.gather_and_reduce"].busy_s
        for context in (plain, adapted, trained("qlora"))
    )
    assert lora == pytest.approx(full, rel=0.02)
    assert qlora < 0.4 * lora
    reduced = priced(adapted, layout(dp=8)).time["data_parallel"].busy_s
    adapters = adapter_params(plain.model, adapted.traits.training, plain.traits.kernels)
    assert reduced < 10.0 * 2.0 * adapters / plain.cluster.node.scale_up.bytes_per_s


def test_slow_links_carry_frozen_weights_at_stage_3_alone() -> None:
    context = trained("lora", "deepspeed", cluster="2xdgx-h100")
    # 10 Gb/s a node for its eight GPUs.
    slow = replace(context.cluster.fabric, bytes_per_s=1.25e9 / 8.0)
    context = replace(context, cluster=replace(context.cluster, fabric=slow))
    whole, sharded = (
        priced(context, layout(dp=16, num_micro_batches=1, zero_stage=stage)).iter_time_s
        for stage in (2, 3)
    )
    # Forward and backward bring half of 16 GB over each node's link.
    assert sharded - whole > 2.0 * 8.0e9 / 1.25e9
    assert whole < 3.0


def test_a_frozen_product_runs_backward_as_long_as_forward() -> None:
    accelerator = context_of().cluster.accelerator
    square = Gemm(m=4096 * ONE, n=4096 * ONE, k=4096 * ONE, is_frozen=True)
    once = gemm_s(square, accelerator, "bf16")
    assert gemm_backward_s(square, accelerator, "bf16") == pytest.approx(once)
    assert gemm_backward_s(replace(square, is_frozen=False), accelerator, "bf16") > 1.9 * once


def test_model_flops_count_two_products_of_a_frozen_weight_and_three_of_an_adapters() -> None:
    context = trained("lora")
    products = model_flops_per_iteration(context.model, context.job, context.traits).products
    head = 128256 * 4096
    adapters = adapter_params(context.model, context.traits.training, context.traits.kernels)
    tokens = context.job.tokens_per_iteration
    assert products == pytest.approx(tokens * (4.0 * (LINEAR + head) + 6.0 * adapters))
