"""Bytes that one layer sends, forward and backward."""

from collections import Counter

import pytest
from contexts import shape_of

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.block import layer_groups
from planner.layers.op import LayerShape
from planner.spec.model import ModelSpec

SBH2 = 2048 * 12288 * 2.0  # one activation tensor in bf16 for GPT-3 at s = 2048


def totals(model: ModelSpec, shape: LayerShape, direction: str) -> Counter[tuple[str, str]]:
    """Bytes by collective and axis over one layer; empty messages are left out."""
    (group,) = layer_groups(model, shape, load_traits("megatron"))
    result: Counter[tuple[str, str]] = Counter()
    for op in group.ops:
        comms = op.comms[direction == "backward"]
        for comm in comms:
            if float(comm.num_bytes[0]):
                result[comm.collective, comm.axis] += float(comm.num_bytes[0])
    return result


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_rank_alone_sends_nothing(direction: str) -> None:
    for name in ("gpt3-175b", "mixtral-8x7b"):
        assert not totals(load_model(name), shape_of(seq_len=2048), direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_megatron_all_reduces_twice_per_layer_and_direction(direction: str) -> None:
    # arXiv 1909.08053, section 3: two all-reduces forward, two backward, of s·b·h elements.
    sent = totals(load_model("gpt3-175b"), shape_of(seq_len=2048, tp=8), direction)
    assert sent == {("all_reduce", "tp"): 2 * SBH2}


def test_sequence_parallelism_sends_the_same_ring_bytes_forward() -> None:
    # arXiv 2205.05198, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather.
    sent = totals(load_model("gpt3-175b"), shape_of(seq_len=2048, tp=8, sp=1), "forward")
    assert sent == {("all_gather", "tp"): 2 * SBH2, ("reduce_scatter", "tp"): 2 * SBH2}


def test_sequence_parallelism_gathers_inputs_once_more_backward() -> None:
    # Backward of both parts: all-gather at the exit, reduce-scatter at the entry, and the input
    # gathered again for the weight gradient.
    sent = totals(load_model("gpt3-175b"), shape_of(seq_len=2048, tp=8, sp=1), "backward")
    assert sent == {("all_gather", "tp"): 4 * SBH2, ("reduce_scatter", "tp"): 2 * SBH2}


def test_context_parallelism_passes_keys_and_values_around() -> None:
    # Llama-3-8B: 8 key/value heads of 128, s = 8192: 2·8192·1024·2 bytes gathered.
    gathered = 2 * 8192 * 1024 * 2.0
    model, shape = load_model("llama3-8b"), shape_of(seq_len=8192, cp=4)
    assert totals(model, shape, "forward") == {("all_gather", "cp"): gathered}
    assert totals(model, shape, "backward") == {
        ("all_gather", "cp"): gathered,
        ("reduce_scatter", "cp"): gathered,
    }


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_experts_exchange_top_k_copies_of_every_token_twice(direction: str) -> None:
    # Mixtral: dispatch and combine of 2 copies of 4096 tokens x 4096 elements in bf16.
    sent = totals(load_model("mixtral-8x7b"), shape_of(seq_len=4096, ep=8), direction)
    assert sent == {("all_to_all", "ep"): 2 * (4096 * 2 * 4096 * 2.0)}
