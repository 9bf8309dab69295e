"""Allocated peak of FSDP2 under Accelerate and torchtitan against torch's memory tracker."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from contexts import context_of, strategy_of
from starts import Starts, running

from planner.cost.estimate import MemoryEstimate, estimate
from planner.frameworks.registry import load_saved_tables, load_traits
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits
from planner.units import GIB

SHARDS = 8
TOLERANCE = 0.02
TITAN_PROFILE = "eager"  # torchtitan without torch.compile: what the tracker runs


@dataclass(frozen=True, kw_only=True)
class TrackerCase:
    """A few layers of Llama 3 8B with its whole vocabulary, and how they are trained on 8 ranks."""

    framework: str  # ``accelerate``, ``torch`` (a loop of one's own) or ``torchtitan``
    layers: int = 2
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 128256
    seq_len: int = 8192
    micro_batch: int = 1
    num_micro_batches: int = 1
    recompute: str = "none"
    """``none``, ``full`` or (torchtitan) ``selective``: one policy for all blocks."""
    chunked_loss: bool = False
    """torchtitan's loss over slices of the sequence, which its configurations use."""
    foreach: bool = False  # AdamW over all tensors at once; fused otherwise


NAMES = ("accelerate", "torch", "torchtitan")
ACCELERATE, TORCH, TITAN = (TrackerCase(framework=name) for name in NAMES)
CASES = {
    "accelerate-loss": ACCELERATE,
    "accelerate-loss-4-layers": replace(ACCELERATE, layers=4),
    "accelerate-loss-full": replace(ACCELERATE, recompute="full"),
    "accelerate-loss-forward": replace(ACCELERATE, seq_len=2048),
    "accelerate-block-full": replace(ACCELERATE, layers=4, vocab=32000, recompute="full"),
    "torch-root-unit": replace(TORCH, layers=4, seq_len=1024, recompute="full"),
    "torch-step": replace(TORCH, layers=22, vocab=4096, seq_len=128, foreach=True),
    "torchtitan-loss": TITAN,
    "torchtitan-loss-4-layers": replace(TITAN, layers=4),
    "torchtitan-loss-full": replace(TITAN, recompute="full"),
    "torchtitan-loss-selective": replace(TITAN, recompute="selective"),
    "torchtitan-loss-selective-4-layers": replace(TITAN, layers=4, recompute="selective"),
    "torchtitan-block": replace(TITAN, layers=4, vocab=32000, seq_len=2048),
    "torchtitan-block-full": replace(TITAN, layers=4, vocab=32000, recompute="full"),
    "torchtitan-chunked": replace(TITAN, recompute="selective", chunked_loss=True),
    "torchtitan-chunked-4-layers": replace(TITAN, layers=4, chunked_loss=True),
}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    with running("fsdp_tracker.py", tmp_path_factory.mktemp("fsdp")) as starts:
        yield starts


def model_of(case: TrackerCase) -> ModelSpec:
    return ModelSpec(
        name="llama",
        num_layers=case.layers,
        hidden_size=case.hidden,
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        head_dim=case.hidden // case.heads,
        ffn_size=case.ffn,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        vocab_size=case.vocab,
        max_seq_len=case.seq_len,
    )


def traits_of(case: TrackerCase) -> FrameworkTraits:
    """The framework's own traits; torchtitan's whole loss is the one Hugging Face runs."""
    accelerate = load_traits("accelerate")
    if case.framework == "torch":
        adamw = ("software.adamw", "foreach" if case.foreach else "fused")
        return load_traits("accelerate", settings=(("software.sharding", "fsdp2"), adamw))
    if case.framework == "accelerate":
        return accelerate
    traits = load_traits("torchtitan", TITAN_PROFILE)
    if case.chunked_loss:
        return traits
    loss = accelerate.kernels.loss
    saved = load_saved_tables(traits.kernels.saved.name, loss)
    states = replace(traits.states, collected_head_gradient_bytes=0.0)
    kernels = replace(traits.kernels, loss=loss, saved=saved)
    return replace(traits, kernels=kernels, states=states)


def predicted(case: TrackerCase) -> MemoryEstimate:
    context = context_of(
        model=model_of(case),
        framework="accelerate" if case.framework == "torch" else case.framework,
        global_batch=SHARDS * case.micro_batch,
        seq_len=case.seq_len,
    )
    layers = (case.layers,)
    strategy = strategy_of(
        dp=SHARDS,
        zero_stage=3,
        micro_batch=case.micro_batch,
        layers_per_stage=layers,
        selective_layers_per_stage=layers if case.recompute == "selective" else (0,),
        recompute_layers_per_stage=layers if case.recompute == "full" else (0,),
    )
    return estimate(replace(context, traits=traits_of(case)), strategy).memory


def as_text(found: dict[str, Any], memory: MemoryEstimate, tensor_bytes: float) -> str:
    """Both sides item by item, for the reader of a failure."""
    lines = [
        f"tracker {found['peak_bytes'] / GIB:.3f} GiB, {found['moment']}",
        *(f"  {size / GIB:8.3f} {kind}" for kind, size in found["by_kind"].items()),
        f"planner {tensor_bytes / GIB:.3f} GiB, {memory.moment}",
        *(
            f"  {size / GIB:8.3f} {name}"
            for name, size in memory.items.items()
            if not name.startswith("overhead.")
        ),
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_allocated_peak(case: TrackerCase, tracker: Starts) -> None:
    found = tracker.made(case)
    memory = predicted(case)
    tensor_bytes = memory.allocated_bytes - memory.items.get("workspaces", 0.0)
    error = tensor_bytes / found["peak_bytes"] - 1.0
    assert abs(error) <= TOLERANCE, f"{error:+.1%}\n{as_text(found, memory, tensor_bytes)}"


def test_tensors_alive_sum_to_the_peak(tracker: Starts) -> None:
    found = tracker.made(CASES["torchtitan-loss"])
    listed = sum(size for tensors in found["tensors"].values() for size in tensors.values())
    assert listed == sum(found["by_kind"].values()) == found["peak_bytes"]
    assert found["peak_bytes"] == max(found["moments"].values())


def test_a_layer_costs_the_same_wherever_the_peak_is_the_loss(tracker: Starts) -> None:
    # What a layer adds: 12/8 bytes per parameter, and per token
    # norms 8h, q k v 2(h + 2 kv), attention out 2h, its log-sum-exp 4a, MLP 8f, row norms 8;
    # a table of rotations, and Adam's step counters of its 7 tensors.
    two, four = (
        tracker.made(CASES[name])["peak_bytes"]
        for name in ("torchtitan-loss", "torchtitan-loss-4-layers")
    )
    hidden, kv, heads, ffn, tokens = 4096, 1024, 32, 14336, 8192
    params = 2 * hidden * (hidden + kv) + 3 * hidden * ffn + 2 * hidden
    saved = 12 * hidden + 4 * kv + 4 * heads + 8 * ffn + 8
    rope_table = 8 * tokens * (hidden // heads) // 2
    assert four - two == 2 * (params * 12 // 8 + saved * tokens + rope_table + 7 * 4)
