"""Messages of an iteration: what is repeated, gathered, scattered, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of

from planner.answers.layout import requested, resolve
from planner.cost.stage_model import PricedStrategy, price
from planner.cost.traffic import Messages, Traffic, traffic_of, why_no_traffic


@pytest.fixture
def subject() -> Callable[..., PricedStrategy]:
    def build(
        model: str = "llama3-8b", framework: str = "megatron", **layout: Any
    ) -> PricedStrategy:
        context = context_of(
            model=model,
            cluster="2xdgx-h100",
            framework=framework,
            global_batch=16,
            seq_len=2048,
        )
        return price(*resolve(context, requested(global_batch=16, **layout)))

    return build


def by_item(messages: Messages) -> dict[tuple[str, str], float]:
    return {(one.item, one.collective): one.num_bytes for one in messages}


def all_bytes(traffic: Traffic) -> float:
    passes = [each for chunk in traffic.chunks for each in (chunk.forward, chunk.backward)]
    return sum(one.num_bytes for messages in passes for one in messages)


def test_full_recomputation_repeats_the_messages_of_forward(subject: Any) -> None:
    kept = traffic_of(subject(tp=2, pp=4)).chunks[1]
    again = traffic_of(subject(tp=2, pp=4, recompute="full")).chunks[1]
    assert again.forward == kept.forward
    repeated = [one for one in again.backward if one.item == "recompute"]
    assert by_item(tuple(repeated)) == {
        ("recompute", collective): pytest.approx(num_bytes)
        for (_, collective), num_bytes in by_item(kept.forward).items()
    }


def test_a_repeated_forward_that_stops_early_spares_the_last_all_reduce(subject: Any) -> None:
    chunk = traffic_of(
        subject(framework="accelerate", tp=2, sequence_parallel=False, recompute="full")
    ).chunks[0]
    loss, hidden, layers = 3 * 4 * 2048.0, 2048 * 4096 * 2.0, 32
    forward = by_item(chunk.forward)["tensor_parallel", "all_reduce"]
    assert forward == hidden + layers * 2 * hidden + loss
    assert by_item(chunk.backward)["recompute", "all_reduce"] == layers * hidden


def test_selective_recomputation_of_attention_repeats_no_messages(subject: Any) -> None:
    found = traffic_of(subject(tp=2, pp=2, recompute="selective"))
    assert found.recomputed_fraction == (0.0, 0.0)
    assert not [one for one in found.chunks[0].backward if one.item == "recompute"]


def test_chunks_of_any_schedule_share_the_same_bytes(subject: Any) -> None:
    assert all_bytes(traffic_of(subject(tp=2, pp=2, vpp=4))) == pytest.approx(
        all_bytes(traffic_of(subject(tp=2, pp=2)))
    )


def further(chunk: Messages, middle: Messages) -> dict[str, float]:
    """Bytes that a chunk sends beyond those of its layers, by collective."""
    layers = by_item(middle)
    more = {
        collective: num_bytes - layers.get((item, collective), 0.0)
        for (item, collective), num_bytes in by_item(chunk).items()
    }
    return {collective: num_bytes for collective, num_bytes in more.items() if num_bytes}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_split_vocabulary_sends_at_both_ends_whatever_is_recomputed(
    recompute: str, subject: Any
) -> None:
    chunks = traffic_of(subject(tp=2, pp=4, recompute=recompute)).chunks
    first, middle, last = chunks[0], chunks[1], chunks[-1]
    hidden = 2048 * 4096 * 2.0  # a micro-batch of one sequence
    assert further(first.forward, middle.forward) == {"reduce_scatter": hidden}
    assert further(first.backward, middle.backward) == {"all_gather": hidden}
    # the head's input; the largest and the predicted logit and the sum of exponentials in fp32
    assert further(last.forward, middle.forward) == {
        "all_gather": hidden,
        "all_reduce": 3 * 4 * 2048.0,
    }
    # its gradient, and the input once more for the gradient of the weights
    assert further(last.backward, middle.backward) == {
        "reduce_scatter": hidden,
        "all_gather": hidden,
    }


def test_without_sequence_parallelism_the_ends_all_reduce(subject: Any) -> None:
    chunks = traffic_of(subject(tp=2, pp=4, sequence_parallel=False)).chunks
    first, middle, last = chunks[0], chunks[1], chunks[-1]
    hidden, loss = 2048 * 4096 * 2.0, 3 * 4 * 2048.0
    assert further(first.forward, middle.forward) == {"all_reduce": hidden}
    assert further(first.backward, middle.backward) == {}
    assert further(last.forward, middle.forward) == {"all_reduce": loss}
    assert further(last.backward, middle.backward) == {"all_reduce": hidden}


def test_learned_positions_are_added_to_the_whole_sum_which_is_split_afterwards(
    subject: Any,
) -> None:
    chunks = traffic_of(subject(model="opt-1.3b", tp=2, pp=4)).chunks
    hidden = 2048 * 2048 * 2.0
    assert further(chunks[0].forward, chunks[1].forward) == {"all_reduce": hidden}
    assert further(chunks[0].backward, chunks[1].backward) == {"all_gather": hidden}


def test_groups_of_one_send_nothing(subject: Any) -> None:
    found = traffic_of(subject(tp=1, pp=2))
    assert all_bytes(found) == 0.0
    assert found.gathered_bytes == 0.0


def test_the_ends_of_a_tied_model_reduce_its_vocabulary(subject: Any) -> None:
    tied = traffic_of(subject(model="llama3.2-1b", pp=4)).tails
    sizes = [by_item(messages).get(("tied_embedding", "all_reduce")) for messages in tied]
    # 128,256 rows are a multiple of Megatron's 128; gradients travel in fp32.
    assert sizes == [128256 * 2048 * 4.0, None, None, 128256 * 2048 * 4.0]


def test_without_sequence_parallelism_a_rank_sends_its_part_and_gathers_the_whole(
    subject: Any,
) -> None:
    whole = traffic_of(subject(tp=4, pp=2, sequence_parallel=False))
    split = traffic_of(subject(tp=4, pp=2, sequence_parallel=True))
    boundary = 2048 * 4096 * 2.0
    assert (whole.sent_bytes, whole.gathered_bytes) == (boundary / 4, boundary)
    assert (split.sent_bytes, split.gathered_bytes) == (boundary / 4, 0.0)


def test_hybrid_sharding_adds_up_the_shards_of_replicas(subject: Any) -> None:
    plain = subject(framework="torchtitan", zero_stage=2)
    hybrid = subject(framework="torchtitan", zero_stage=2, dp_replicate=2)

    def per_iteration(found: PricedStrategy) -> dict[tuple[str, str, str], float]:
        traffic = traffic_of(found)
        messages = [*traffic.tails[0], *traffic.chunks[0].forward, *traffic.chunks[0].backward]
        return {(one.collective, one.axis, one.item): one.num_bytes for one in messages}

    alone, replicated = per_iteration(plain), per_iteration(hybrid)
    across = {key: size for key, size in replicated.items() if key[1] == "dp_replicate"}
    scattered = next(size for key, size in alone.items() if key[0] == "reduce_scatter")
    assert sum(across.values()) == pytest.approx(scattered / 8)
    assert {k: v for k, v in replicated.items() if k not in across} == pytest.approx(alone)


def test_what_sends_messages_of_its_own_is_named(subject: Any) -> None:
    found = subject(tp=2, pp=2)
    assert why_no_traffic(found) == ""
    job = replace(found.context.job, mtp_layers=1)
    parts = replace(found.parts, context=replace(found.context, job=job))
    further = replace(found, parts=parts)
    assert "multi-token" in why_no_traffic(further)
