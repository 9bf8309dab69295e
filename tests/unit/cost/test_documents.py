"""Documents shorter than a sequence: packed, padded and grouped ones in memory and time."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, strategy_of, with_traits

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.flops import model_flops_per_iteration
from planner.spec.job import read_documents
from planner.spec.strategy import Strategy

LONGEST = 8192


def context(documents: str | None, seq_len: int = LONGEST) -> Context:
    plain = context_of(
        model="llama3.2-1b", cluster="1xh100-sxm", framework="accelerate", seq_len=seq_len
    )
    lengths = read_documents(documents, seq_len) if documents else None
    return replace(plain, job=replace(plain.job, documents=lengths))


def layout(micro_batch: int) -> Strategy:
    return strategy_of(
        zero_stage=0,
        micro_batch=micro_batch,
        num_micro_batches=16 // micro_batch,
        layers_per_stage=(16,),
        recompute_layers_per_stage=(16,),
    )


def priced(documents: str | None, micro_batch: int = 2, seq_len: int = LONGEST) -> Estimate:
    return estimate(context(documents, seq_len), layout(micro_batch))


def test_memory_is_that_of_the_longest() -> None:
    for kind in ("packed", "padded", "grouped"):
        assert priced(f"{kind}:500").memory == priced(None).memory


def test_packed_documents_save_the_keys_that_no_token_sees() -> None:
    whole_s = priced(None).iter_time_s
    per_key_s = []
    for documents in ("packed:500", "packed:3000"):
        unseen = LONGEST - context(documents).job.attended_tokens
        per_key_s.append((whole_s - priced(documents).iter_time_s) / unseen)
    assert per_key_s[0] > 0
    assert per_key_s[0] == pytest.approx(per_key_s[1], rel=0.2)


def test_padded_documents_take_as_long_as_sequences_of_that_length() -> None:
    documents = read_documents("padded:4096", LONGEST)
    length = round(documents.padded_tokens(np.array([2.0])).item())
    padded, short = priced("padded:4096"), priced(None, seq_len=length)
    assert padded.iter_time_s == pytest.approx(short.iter_time_s, rel=2e-3)


def test_padding_is_no_token_and_no_model_flop_and_grouped_documents_have_none() -> None:
    grouped, padded = priced("grouped:700", 4), priced("padded:700", 4)
    assert grouped.iter_time_s < padded.iter_time_s
    assert grouped.tokens_per_s > padded.tokens_per_s
    job = context("padded:2048").job
    assert job.tokens_per_iteration == 16 * 2048
    whole, padded = (
        model_flops_per_iteration(each.model, each.job, each.traits)
        for each in (context(None), context("padded:2048"))
    )
    assert padded.products == pytest.approx(whole.products / 4)
    keys = job.attended_tokens / LONGEST
    assert padded.attention == pytest.approx(whole.attention / 4 * keys)


def test_separate_operations_pay_the_whole_square() -> None:
    whole, packed = (
        with_traits(context(documents), kernels={"attention": "unfused"})
        for documents in (None, "packed:500")
    )
    assert estimate(whole, layout(1)).iter_time_s == estimate(packed, layout(1)).iter_time_s
