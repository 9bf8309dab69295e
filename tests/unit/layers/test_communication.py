"""Bytes that one layer sends, forward and backward."""

from collections import Counter

import pytest
from contexts import shape_of

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.block import layer_groups

SBH2 = 2048 * 12288 * 2.0  # one activation tensor in bf16 for GPT-3 at s = 2048
# Llama-3-8B: 8 key/value heads of 128, s = 8192, in bf16.
KEYS_AND_VALUES = 2 * 8192 * 1024 * 2.0
# Mixtral: dispatch and combine of 2 copies of 4096 tokens x 4096 elements in bf16.
PAIRS = {("all_to_all", "ep"): 2 * (4096 * 2 * 4096 * 2.0)}
ALL_REDUCES = {("all_reduce", "tp"): 2 * SBH2}
SPLIT = {("all_gather", "tp"): 2 * SBH2, ("reduce_scatter", "tp"): 2 * SBH2}
# Behind them the input of both parts is gathered again for the gradients of their weights.
SPLIT_BACKWARD = SPLIT | {("all_gather", "tp"): 4 * SBH2}
RING = {("all_gather", "cp"): KEYS_AND_VALUES}
RING_BACKWARD = RING | {("reduce_scatter", "cp"): KEYS_AND_VALUES}


@pytest.mark.parametrize(
    ("model", "degrees", "forward", "backward"),
    [
        ("gpt3-175b", {}, {}, {}),
        ("mixtral-8x7b", {}, {}, {}),
        # arXiv 1909.08053, section 3: two all-reduces each way, of s·b·h elements.
        ("gpt3-175b", {"tp": 8}, ALL_REDUCES, ALL_REDUCES),
        # arXiv 2205.05198, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather.
        ("gpt3-175b", {"tp": 8, "sp": 1}, SPLIT, SPLIT_BACKWARD),
        ("llama3-8b", {"cp": 4, "seq_len": 8192}, RING, RING_BACKWARD),
        ("mixtral-8x7b", {"ep": 8, "seq_len": 4096}, PAIRS, PAIRS),
    ],
)
def test_a_layer_sends_what_its_papers_say(
    model: str, degrees: dict[str, int], forward: dict[str, float], backward: dict[str, float]
) -> None:
    shape = shape_of(**{"seq_len": 2048, **degrees})
    (group,) = layer_groups(load_model(model), shape, load_traits("megatron"))
    for direction, expected in enumerate((forward, backward)):
        sent: Counter[tuple[str, str]] = Counter()
        for comm in (comm for op in group.ops for comm in op.comms[direction]):
            sent[comm.collective, comm.axis] += float(comm.num_bytes[0])
        assert +sent == expected
