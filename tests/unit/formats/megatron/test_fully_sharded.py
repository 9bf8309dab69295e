"""Megatron-FSDP, offloaded layers, overlapped expert exchange: Megatron's words and Bridge's."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy

MEGATRON, BRIDGE = load_format("megatron"), load_format("bridge")
Make = Callable[..., Strategy]


def llama_70b() -> Context:
    return Context(
        model=load_model("llama3-70b"),
        job=JobSpec(global_batch=256, seq_len=8192, precision="bf16"),
        cluster=load_cluster("16xgb200-tray"),
        traits=load_traits("megatron", "bridge"),
    )


@pytest.fixture
def recipe(strategy_of: Make) -> Strategy:
    """NVIDIA's llama3_70b_pretrain_64gpu_gb200_bf16_config of Megatron-Bridge 0.6.2."""
    return strategy_of(
        dp=64,
        zero_stage=3,
        num_micro_batches=4,
        layers_per_stage=(80,),
        offloaded_layers_per_stage=(20,),
    )


def test_nvidias_recipe_is_said_in_megatrons_words(recipe: Strategy) -> None:
    emitted = MEGATRON.emit(llama_70b(), recipe)
    lines = emitted.files[0].text.splitlines()
    for line in (
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy optim_grads_params",
        "--ckpt-format fsdp_dtensor",
        "--init-model-with-meta-device",
        "--fsdp-double-buffer",
        "--no-gradient-accumulation-fusion",
        "--cpu-offloading-num-layers 20",
    ):
        assert line in lines, line
    assert not [line for line in lines if line.startswith("--grad-reduce-in-bf16")]
    assert emitted.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def test_nvidias_recipe_is_said_in_bridges_words(recipe: Strategy) -> None:
    lines = BRIDGE.emit(llama_70b(), recipe).files[0].text.splitlines()
    for line in (
        "ddp.use_megatron_fsdp=true",
        "ddp.data_parallel_sharding_strategy=optim_grads_params",
        "checkpoint.ckpt_format=fsdp_dtensor",
        "model.init_model_with_meta_device=true",
        "ddp.fsdp_double_buffer=true",
        "model.cpu_offloading=true",
        "model.cpu_offloading_weights=false",
        "model.cpu_offloading_num_layers=20",
    ):
        assert line in lines, line


def test_a_file_of_bridge_leaves_sharded_checkpoints_with_the_sharding(recipe: Strategy) -> None:
    context = llama_70b()
    sharded = BRIDGE.emit(context, recipe).files[0].text
    plain = replace(recipe, zero_stage=1, offloaded_layers_per_stage=(0,))
    text = BRIDGE.write_into(SourceText(path="file", text=sharded), context, plain)
    assert "checkpoint.ckpt_format=torch_dist" in text.splitlines()
    assert "ddp.use_megatron_fsdp=false" in text.splitlines()
    assert BRIDGE.read(SourceText(path="file", text=text)).decisions["zero_stage"].value == 1


def test_other_checkpoints_than_sharded_ones_are_the_users(recipe: Strategy) -> None:
    context = llama_70b()
    plain = replace(recipe, zero_stage=1)
    before = MEGATRON.emit(context, plain).files[0].text + "--ckpt-format torch_dcp\n"
    after = MEGATRON.write_into(SourceText(path="file", text=before), context, plain)
    assert after == before


def test_sharding_beside_stages_is_refused(strategy_of: Make) -> None:
    strategy = strategy_of(
        dp=32, pp=2, zero_stage=2, num_micro_batches=8, layers_per_stage=(40, 40)
    )
    strategy = replace(
        strategy, selective_layers_per_stage=(0, 0), recompute_layers_per_stage=(0, 0)
    )
    with pytest.raises(ExpressError, match="Megatron-FSDP has no stages"):
        MEGATRON.emit(llama_70b(), strategy)


def test_overlapped_exchange_puts_weight_gradients_off(strategy_of: Make) -> None:
    context = replace(llama_70b(), model=load_model("mixtral-8x7b"))
    overlap = replace(context.traits.overlap, expert_all_to_all_overlap="batches")
    context = replace(context, traits=replace(context.traits, overlap=overlap))
    strategy = strategy_of(dp=64, ep=8, zero_stage=3, num_micro_batches=4, layers_per_stage=(32,))
    lines = MEGATRON.emit(context, strategy).files[0].text.splitlines()
    assert {"--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"} <= set(lines)
    assert "--fsdp-double-buffer" not in lines
    lines = BRIDGE.emit(context, strategy).files[0].text.splitlines()
    assert "comm_overlap.overlap_moe_expert_parallel_comm=true" in lines
    assert "ddp.fsdp_double_buffer=false" in lines
