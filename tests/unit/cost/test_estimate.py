"""Estimates: classes of runs, machines that differ, documents shorter than a sequence."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, strategy_of, with_traits

from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.estimate import Estimate, accuracy_regime, estimate, with_host_rate, with_products
from planner.cost.flops import model_flops_per_iteration
from planner.spec.items import TimeRange
from planner.spec.job import read_documents
from planner.spec.strategy import Strategy
from planner.spec.training import FULL, Training

FLAT = {("", ""): TimeRange(accelerators=("b200-sxm", "h100-sxm"))}
LORA = Training(mode="lora", rank=8, targets=("q",))


def planned(
    model: str, cluster: str, framework: str = "deepspeed", **layout: object
) -> tuple[Context, Strategy]:
    """A plan whose range is that of machines alone."""
    context = context_of(model=model, cluster=cluster, framework=framework)
    traits = replace(context.traits, time_ranges=FLAT)
    return fill_in(replace(context, traits=traits), requested(**layout))


@pytest.mark.parametrize(
    ("model", "offload", "training", "kind"),
    [
        ("llama3-8b", "none", FULL, "dense"),
        ("mixtral-8x7b", "none", FULL, "mixture"),
        ("mixtral-8x7b", "optimizer:host", FULL, "offload"),
        ("mixtral-8x7b", "optimizer:host", LORA, "frozen"),
    ],
)
def test_a_plan_is_of_the_first_kind_that_holds(
    model: str, offload: str, training: Training, kind: str
) -> None:
    context, strategy = planned(model, "1xdgx-h100", zero_stage=2)
    context = replace(context, traits=replace(context.traits, training=training))
    assert accuracy_regime(context, replace(strategy, offload=offload)) == (kind, "usual")


def test_ends_are_iterations_of_the_slowest_and_fastest_published_products() -> None:
    context, strategy = planned("llama3-8b", "1xdgx-b200", "megatron", zero_stage=1)
    gemm = context.cluster.accelerator.gemm
    found = estimate(context, strategy)
    for end, fraction in zip(found.machine_ends_s, (gemm.fastest, gemm.slowest), strict=True):
        own = estimate(with_products(context, sustained_fraction=fraction), strategy)
        assert end == pytest.approx(own.iter_time_s)
    assert found.iter_time_s_lower == found.machine_ends_s[0] < found.iter_time_s
    assert found.iter_time_s_upper == found.machine_ends_s[1] > found.iter_time_s
    assert found.regime.endswith("; machines differ")


def test_machines_that_nobody_found_to_differ_have_no_range() -> None:
    found = estimate(*planned("llama3-8b", "1xdgx-h100", "megatron", zero_stage=1))
    assert found.machine_ends_s == (found.iter_time_s, found.iter_time_s)
    assert found.iter_time_s_lower == found.iter_time_s_upper == found.iter_time_s
    assert "machines differ" not in found.regime


def test_ends_of_an_offloaded_optimizer_take_hosts_and_products_together() -> None:
    context, strategy = planned("llama3-8b", "1xdgx-b200", zero_stage=2, offload="optimizer:host")
    traits, gemm = context.traits.offload, context.cluster.accelerator.gemm
    fastest = with_host_rate(context, traits.host_optimizer_factors[1])
    own = estimate(with_products(fastest, sustained_fraction=gemm.fastest), strategy)
    assert estimate(context, strategy).machine_ends_s[0] == pytest.approx(own.iter_time_s)


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
