"""Model FLOPs against the published formulas."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.cost.flops import model_flops_per_iteration
from planner.spec.model import ModelSpec

Contexts = Callable[..., Context]


def flops(context: Context) -> float:
    return model_flops_per_iteration(context.model, context.job, context.traits)


def test_gpt3_matches_the_formula_of_arxiv_2104_04473(context_of: Contexts) -> None:
    # With recomputation: 96 B s l h² (1 + s/(6h) + V/(16 l h)), four passes of every layer;
    # without, three of the four. B 1536, s 2048, l 96, h 12288, V 50257. (The formula's
    # vocabulary term, 0.27 %, never held a recomputation, hence the tolerance.)
    context = context_of(model="gpt3-175b", global_batch=1536, seq_len=2048)
    b, s, num_layers, h, v = 1536, 2048, 96, 12288, 50257
    formula = 96 * b * s * num_layers * h**2 * (1 + s / (6 * h) + v / (16 * num_layers * h))
    assert flops(context) == pytest.approx(0.75 * formula, rel=1e-3)


def test_gpt3_matches_72_bslh2_exactly_without_recomputation(context_of: Contexts) -> None:
    # 72 B s l h² (1 + s/(6h) + V/(12 l h)): 24 h² per token and layer forward, three passes.
    context = context_of(model="gpt3-175b", global_batch=1536, seq_len=2048)
    b, s, num_layers, h, v = 1536, 2048, 96, 12288, 50257
    formula = 72 * b * s * num_layers * h**2 * (1 + s / (6 * h) + v / (12 * num_layers * h))
    assert flops(context) == pytest.approx(formula, rel=1e-12)


def test_llama_matches_6n_plus_12_lsh_per_token(context_of: Contexts) -> None:
    # PaLM, appendix B: 6 N + 12 L a e s per token, N without the input embedding.
    # Llama-3-8B: N = 8,030,261,248 - 128256·4096 - 65 norms of 4096; 32 layers, s = 8192.
    context = context_of(model="llama3-8b", global_batch=4, seq_len=8192)
    n = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    per_token = 6 * n + 12 * 32 * 4096 * 8192
    assert flops(context) == pytest.approx(4 * 8192 * per_token, rel=1e-12)


def test_flops_grow_with_the_batch_only(context_of: Contexts) -> None:
    one, many = (flops(context_of(global_batch=batch)) for batch in (1, 64))
    assert many == 64 * one
    for profile in ("classic", "bridge"):
        assert flops(context_of(profile=profile, global_batch=1)) == one


def test_padding_of_the_vocabulary_is_not_counted(
    context_of: Contexts, small_model: Callable[..., ModelSpec]
) -> None:
    # 16 · 1024 tokens, 6 h each per column of the head.
    narrow, wide = (flops(context_of(model=small_model(vocab_size=v))) for v in (32000, 32001))
    assert wide - narrow == 6 * 16 * 1024 * 1024


def test_a_mixture_counts_the_experts_a_token_meets(context_of: Contexts) -> None:
    # Mixtral-8x7B, s = 4096, per token and layer forward: attention 2·(4096·(4096+2048) + 4096²),
    # router 2·4096·8, two experts 2·2·3·4096·14336, square 4·4096·4096; head 2·32000·4096.
    context = context_of(model="mixtral-8x7b", global_batch=1, seq_len=4096)
    h = 4096
    attention = 2 * (h * (h + 2048) + h * h)
    layer = attention + 2 * h * 8 + 2 * 2 * 3 * h * 14336 + 4 * 4096 * h
    assert flops(context) == pytest.approx(3 * 4096 * (32 * layer + 2 * 32000 * h), rel=1e-12)
