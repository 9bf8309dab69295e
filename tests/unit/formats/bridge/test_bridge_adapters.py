"""Adapters in overrides of Megatron-Bridge: read, written, and refused where not priced."""

from collections.abc import Callable
from dataclasses import replace

from planner.cost.context import Context
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.frameworks.settings import with_training
from planner.spec.strategy import Strategy
from planner.spec.training import TARGETS, Training

BRIDGE = load_format("bridge")


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
