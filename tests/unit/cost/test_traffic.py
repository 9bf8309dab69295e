"""Messages of an iteration: what is repeated, gathered, scattered, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of

from planner.answers.layout import fill_in, requested
from planner.cost.stage_model import PricedStrategy, price
from planner.cost.traffic import Messages, Traffic, traffic_of, why_no_traffic


def subject(model: str = "llama3-8b", framework: str = "megatron", **layout: Any) -> PricedStrategy:
    context = context_of(model=model, cluster="2xdgx-h100", framework=framework, seq_len=2048)
    return price(*fill_in(context, requested(global_batch=16, **layout)))


HIDDEN = 2048 * 4096 * 2.0  # A micro-batch of one sequence
LOSS = 3 * 4 * 2048.0  # The largest and the predicted logit and the sum of exponentials in fp32


def by_item(messages: Messages) -> dict[tuple[str, str], float]:
    return {(one.item, one.collective): one.num_bytes for one in messages}


def all_bytes(traffic: Traffic) -> float:
    passes = [each for chunk in traffic.chunks for each in (chunk.forward, chunk.backward)]
    return sum(one.num_bytes for messages in passes for one in messages)


def test_full_recomputation_repeats_the_messages_of_forward_selective_of_attention_none() -> None:
    kept = traffic_of(subject(tp=2, pp=4)).chunks[1]
    again = traffic_of(subject(tp=2, pp=4, recompute="full")).chunks[1]
    assert again.forward == kept.forward
    repeated = by_item(tuple(one for one in again.backward if one.item == "recompute"))
    expected = {("recompute", name): sent for (_, name), sent in by_item(kept.forward).items()}
    assert repeated == pytest.approx(expected)
    found = traffic_of(subject(tp=2, pp=2, recompute="selective"))
    assert found.recomputed_fraction == (0.0, 0.0)
    assert not [one for one in found.chunks[0].backward if one.item == "recompute"]


def test_a_repeated_forward_that_stops_early_spares_the_last_all_reduce() -> None:
    layout = {"tp": 2, "sequence_parallel": False, "recompute": "full"}
    chunk = traffic_of(subject(framework="accelerate", **layout)).chunks[0]
    forward = by_item(chunk.forward)["tensor_parallel", "all_reduce"]
    assert forward == HIDDEN + 32 * 2 * HIDDEN + LOSS
    assert by_item(chunk.backward)["recompute", "all_reduce"] == 32 * HIDDEN


def test_chunks_of_any_schedule_share_the_same_bytes() -> None:
    plain, chunked = (all_bytes(traffic_of(subject(tp=2, pp=2, vpp=vpp))) for vpp in (1, 4))
    assert chunked == pytest.approx(plain)


def further(chunk: Messages, middle: Messages) -> dict[str, float]:
    """Bytes that a chunk sends beyond those of its layers, by collective."""
    layers = by_item(middle)
    more = {
        collective: num_bytes - layers.get((item, collective), 0.0)
        for (item, collective), num_bytes in by_item(chunk).items()
    }
    return {collective: num_bytes for collective, num_bytes in more.items() if num_bytes}


SPLIT_FIRST = ({"reduce_scatter": HIDDEN}, {"all_gather": HIDDEN})
# The head's input; its gradient, and the input once more for the gradient of the weights.
SPLIT_LAST = (
    {"all_gather": HIDDEN, "all_reduce": LOSS},
    {"reduce_scatter": HIDDEN, "all_gather": HIDDEN},
)
# Learned positions are added to the whole sum, which is split afterwards; hidden size 2048.
LEARNED = ({"all_reduce": HIDDEN / 2}, {"all_gather": HIDDEN / 2})
WHOLE = ({"all_reduce": LOSS}, {"all_reduce": HIDDEN})


@pytest.mark.parametrize(
    ("layout", "first", "last"),
    [
        ({}, SPLIT_FIRST, SPLIT_LAST),
        ({"recompute": "full"}, SPLIT_FIRST, SPLIT_LAST),
        ({"sequence_parallel": False}, ({"all_reduce": HIDDEN}, {}), WHOLE),
        ({"model": "opt-1.3b"}, LEARNED, None),
    ],
)
def test_a_split_vocabulary_sends_at_both_ends(
    layout: dict[str, Any], first: tuple[object, object], last: tuple[object, object] | None
) -> None:
    chunks = traffic_of(subject(tp=2, pp=4, **layout)).chunks
    middle = chunks[1]
    for chunk, expected in ((chunks[0], first), (chunks[-1], last)):
        if expected is not None:
            assert further(chunk.forward, middle.forward) == expected[0]
            assert further(chunk.backward, middle.backward) == expected[1]


def test_groups_of_one_send_nothing() -> None:
    found = traffic_of(subject(tp=1, pp=2))
    assert (all_bytes(found), found.gathered_bytes) == (0.0, 0.0)


def test_the_ends_of_a_tied_model_reduce_its_vocabulary() -> None:
    tied = traffic_of(subject(model="llama3.2-1b", pp=4)).tails
    sizes = [by_item(messages).get(("tied_embedding", "all_reduce")) for messages in tied]
    # 128,256 rows are a multiple of Megatron's 128; gradients travel in fp32.
    assert sizes == [128256 * 2048 * 4.0, None, None, 128256 * 2048 * 4.0]


def test_without_sequence_parallelism_a_rank_sends_its_part_and_gathers_the_whole() -> None:
    for is_split, gathered in ((False, HIDDEN), (True, 0.0)):
        found = traffic_of(subject(tp=4, pp=2, sequence_parallel=is_split))
        assert (found.sent_bytes, found.gathered_bytes) == (HIDDEN / 4, gathered)


def test_hybrid_sharding_adds_up_the_shards_of_replicas() -> None:
    def per_iteration(dp_replicate: int) -> dict[tuple[str, str, str], float]:
        layout = {"zero_stage": 2, "dp_replicate": dp_replicate}
        traffic = traffic_of(subject(framework="torchtitan", **layout))
        messages = [*traffic.tails[0], *traffic.chunks[0].forward, *traffic.chunks[0].backward]
        return {(one.collective, one.axis, one.item): one.num_bytes for one in messages}

    alone, replicated = per_iteration(1), per_iteration(2)
    across = {key: size for key, size in replicated.items() if key[1] == "dp_replicate"}
    scattered = next(size for key, size in alone.items() if key[0] == "reduce_scatter")
    assert sum(across.values()) == pytest.approx(scattered / 8)
    assert {k: v for k, v in replicated.items() if k not in across} == pytest.approx(alone)


def test_what_sends_messages_of_its_own_is_named() -> None:
    found = subject(tp=2, pp=2)
    assert why_no_traffic(found) == ""
    job = replace(found.context.job, mtp_layers=1)
    parts = replace(found.parts, context=replace(found.context, job=job))
    assert "multi-token" in why_no_traffic(replace(found, parts=parts))
