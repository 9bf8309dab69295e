"""Adapters in overrides of Megatron-Bridge: read, written, and refused where not priced."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.formats.bridge.format import read
from planner.formats.format import ParsedConfig, SourceText
from planner.formats.registry import load_format
from planner.frameworks.settings import with_training
from planner.spec.strategy import Strategy
from planner.spec.training import TARGETS, Training

BRIDGE = load_format("bridge")
RUN = "torchrun --nproc-per-node 8 run_recipe.py --recipe {recipe} train.micro_batch_size=1 {more}"
LORA = "++peft.dim=8 '++peft.target_modules=[linear_qkv,linear_fc1]'"


def reading_of(more: str, recipe: str = "llama3_8b_peft_config") -> ParsedConfig:
    return read(SourceText(path="run.sh", text=RUN.format(recipe=recipe, more=more) + "\n"))


def test_rank_and_modules_are_read() -> None:
    reading = reading_of(LORA)
    targets = ("q", "k", "v", "gate", "up")
    assert reading.training == Training(mode="lora", rank=8, targets=targets)
    assert reading.decisions["profile"].value == "bridge"
    assert not reading.unpriced
    assert not reading.findings
    assert not reading.traits


def test_all_modules_are_all_targets() -> None:
    modules = "linear_qkv,linear_proj,linear_fc1,linear_fc2"
    reading = reading_of(f"++peft.dim=8 '++peft.target_modules=[{modules}]' ++peft.dropout=0.1")
    assert reading.training is not None
    assert reading.training.targets == TARGETS[:7]
    assert reading.traits == (("kernels.adapter_dropout", True),)
    each = reading_of(f"{LORA} ++peft.share_expert_adapters=false")
    assert each.traits == (("kernels.expert_adapters", "each"),)


def test_without_adapters_all_weights_are_trained() -> None:
    assert reading_of("", "llama3_8b_pretrain_config").training is None
    off = reading_of("peft=null", "llama3_8b_peft_config")
    assert (off.training, off.unpriced) == (None, "")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "adapters are trained, and peft.dim and peft.target_modules left to the recipe"),
        ("++peft.dim=8", "adapters are trained, and peft.target_modules left to the recipe"),
        (
            "++peft.dim=8 ++peft.target_modules=[linear_q]",
            "unknown target 'linear_q'; plans price linear_qkv, linear_proj, linear_fc1, linear",
        ),
        (f"{LORA} ++peft._target_=megatron.bridge.peft.dora.DoRA", "dora.DoRA: plans price"),
        (f"{LORA} ++peft.a2a_experimental=true", "other collectives of adapters"),
        (f"{LORA} ++peft.sequence_parallel_input_regather=true", "gathered twice"),
        (f"{LORA} ++peft.normalize_moe_lora=true", "a smaller rank beside experts"),
    ],
)
def test_what_is_not_priced_is_named(more: str, said: str) -> None:
    reading = reading_of(more)
    assert reading.training is None
    assert said in reading.unpriced


def test_an_override_that_bridge_does_not_find_is_a_finding() -> None:
    (finding,) = reading_of("peft.dim=8").findings
    assert finding.message == "is in no recipe that overrides see: ++peft.dim adds it"


def test_a_rank_is_a_number() -> None:
    (finding,) = reading_of("++peft.dim=r8").findings
    assert "must be a whole number from 1 to 65,536; given 'r8'" in finding.message


def test_a_repair_to_larger_micro_batches_unpacks_samples(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> None:
    training = Training(mode="lora", rank=8, targets=TARGETS)
    context = context_of(profile="bridge")
    context = replace(context, traits=with_training(context.traits, training))
    source = SourceText(path="run.sh", text="train.micro_batch_size=1\n++peft.dim=8\n")
    after = BRIDGE.write_into(
        source, context, strategy_of(dp=2, micro_batch=2, num_micro_batches=4)
    )
    assert "train.micro_batch_size=2\n++peft.dim=8\n" in after
    assert "dataset.enable_offline_packing=false\n" in after
    assert "dataset.offline_packing_specs=null\n" in after
