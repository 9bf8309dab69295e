"""Multi-token prediction on the stage of the head: time, memory, policies, and the search."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contexts import context_of, strategy_of

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.flops import model_flops_per_iteration
from planner.cost.ledger import stage_ledger
from planner.cost.stage import StageModel
from planner.cost.stage_model import price
from planner.search.search import search
from planner.search.space.narrow import read_narrowing
from planner.spec.strategy import Strategy

LAYERS = (12, 12, 12, 10)
NONE, ALL = (0, 0, 0, 0), LAYERS
POLICIES = {"none": (NONE, NONE), "selective": (ALL, NONE), "full": (NONE, ALL)}


DEGREES = {"dp": 8, "tp": 2, "pp": 4, "ep": 8, "etp": 1, "num_micro_batches": 8}
PLAIN = strategy_of(**DEGREES, sequence_parallel=True, layers_per_stage=LAYERS)


def glm(number: int) -> Context:
    sizes = {"global_batch": 64, "seq_len": 4096, "mtp_layers": number}
    return context_of(model="glm-4.5-air", cluster="8xdgx-h100", **sizes)


@pytest.fixture(params=POLICIES)
def layout(request: Any) -> Strategy:
    selective, full = POLICIES[request.param]
    return replace(
        PLAIN,
        selective_layers_per_stage=selective,
        recompute_layers_per_stage=full,
        recompute_modules=("layernorm", "moe_act") if any(selective) else None,
    )


def test_only_the_stage_of_the_head_grows(layout: Strategy) -> None:
    before, after = (price(glm(number), layout) for number in (0, 1))
    for figure in (StageModel.time_s, StageModel.peak_bytes):
        grown = (figure(after.model, *after.split) - figure(before.model, *before.split))[0]
        assert grown[-1] > 0
        assert np.allclose(grown[:-1] / figure(before.model, *before.split)[0, :-1], 0, atol=1e-9)


@pytest.mark.parametrize("number", [1, 2])
def test_items_add_up_to_time_and_memory(layout: Strategy, number: int) -> None:
    context = glm(number)
    subject, last = price(context, layout), layout.pp - 1
    peak = subject.model.peak_bytes(*subject.split)[0, last]
    ledger = stage_ledger(subject, last)
    assert ledger.peak_bytes == pytest.approx(peak, rel=1e-12)
    found = estimate(context, layout)
    exposed = sum(item.exposed_s for item in found.time.values())
    assert exposed == pytest.approx(found.iter_time_s, rel=1e-12)
    assert found.stage_time(last)["compute.mtp"].exposed_s > 0


def test_two_take_twice_what_one_does(layout: Strategy) -> None:
    models = [price(glm(number), layout).model for number in (0, 1, 2)]
    for figure in ("last_s", "last_transient_bytes"):
        zero, one, two = (float(getattr(model, figure)[0]) for model in models)
        assert two - one == pytest.approx(one - zero, rel=1e-9)


def test_a_block_is_recomputed_as_all_layers_are(layout: Strategy) -> None:
    # Not where only some are: Megatron-Core's method ``block`` leaves it out.
    some = replace(PLAIN, recompute_layers_per_stage=(3, 3, 3, 3))
    plain, under, part = (price(glm(1), each).model for each in (PLAIN, layout, some))
    is_recomputed = layout.recompute != "none"
    assert (under.last_s[0] > plain.last_s[0]) == is_recomputed
    assert (under.last_transient_bytes[0] < plain.last_transient_bytes[0]) == is_recomputed
    assert part.last_transient_bytes[0] == plain.last_transient_bytes[0]
    assert part.last_s[0] == plain.last_s[0]


def test_the_vocabulary_lies_on_the_last_stage_too(layout: Strategy) -> None:
    zero, one = (price(glm(number), layout).parts for number in (0, 1))
    vocab = zero.costs.at(zero.costs.vocab_params)
    assert np.array_equal(one.last_params - zero.last_params, vocab)
    selective, full, _ = (sum(counts) for counts in layout.policy_counts)
    policies = {"selective_layers_per_stage": (selective,), "recompute_layers_per_stage": (full,)}
    whole = replace(layout, pp=1, layers_per_stage=(46,), **policies)
    alone = [price(glm(number), whole).parts.last_params for number in (0, 1)]
    assert np.array_equal(*alone)


def test_every_further_token_is_counted_as_a_layer_a_projection_and_a_head() -> None:
    """As Megatron-LM counts: training/training.py, num_floating_point_operations."""
    zero, one, two = (
        model_flops_per_iteration(context.model, context.job, context.traits)
        for context in (glm(number) for number in (0, 1, 2))
    )
    assert two.products - one.products == one.products - zero.products
    model, tokens = glm(0).model, 64 * 4096
    around = 6.0 * tokens * model.hidden_size * (model.vocab_size + 2 * model.hidden_size)
    assert one.products - zero.products > around
    assert one.attention - zero.attention == pytest.approx(zero.attention / 46, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_search_finds_what_the_estimate_says(recompute: str) -> None:
    context = glm(1)
    narrowing = read_narrowing(fix=(f"recompute={recompute}", "pp=4", "tp=2", "ep=8"))
    found = search(context, top=1, narrowing=narrowing).plans[0]
    own = estimate(context, found.strategy)
    assert found.iteration_s == pytest.approx(own.iter_time_s, rel=1e-12)
    assert own.memory.fits
    assert found.strategy.layers_per_stage[-1] < max(found.strategy.layers_per_stage)
