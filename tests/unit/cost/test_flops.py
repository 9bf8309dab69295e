"""Model FLOPs against the published formulas."""

from functools import partial

import pytest
from contexts import context_of, small_model, strategy_of

from planner.catalog.clusters import load_cluster
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.flops import ModelFlops, mfu, model_flops_per_iteration
from planner.spec.job import Precision


def flops(context: Context) -> ModelFlops:
    return model_flops_per_iteration(context.model, context.job, context.traits)


def test_gpt3_matches_72_bslh2_exactly_without_recomputation() -> None:
    # 72 B s l h² (1 + s/(6h) + V/(12 l h)): 24 h² per token and layer forward, three passes.
    # Half of the square: s/(12h), as Megatron-LM prints it.
    context = context_of(model="gpt3-175b", global_batch=1536, seq_len=2048)
    b, s, num_layers, h, v = 1536, 2048, 96, 12288, 50257
    layer, head = 72 * b * s * num_layers * h**2, v / (12 * num_layers * h)
    found = flops(context)
    assert found.full_square == pytest.approx(layer * (1 + s / (6 * h) + head), rel=1e-12)
    assert found.total == pytest.approx(layer * (1 + s / (12 * h) + head), rel=1e-12)


@pytest.mark.parametrize(
    ("seq_len", "causal", "whole"), [(8192, 51.47, 57.91), (131072, 148.1, 251.2)]
)
def test_llama_matches_6n_plus_6_lsh_per_token(seq_len: int, causal: float, whole: float) -> None:
    # Llama-3-8B: N = 8,030,261,248 - 128256·4096 (lookup) - 65 norms of 4096; 32 layers of 4096.
    # 6 N is 45.03 GFLOP a token; half the square 6.44 at 8k and 103.08 at 128k (6 L s h), the
    # whole one twice that (PaLM, appendix B: 12 L s h).
    context = context_of(model="llama3.1-8b", global_batch=4, seq_len=seq_len)
    n = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    found, tokens = flops(context), 4 * seq_len
    assert found.products == pytest.approx(6 * n * tokens, rel=1e-12)
    assert found.attention == pytest.approx(6 * 32 * seq_len * 4096 * tokens, rel=1e-12)
    assert found.attention_square == pytest.approx(12 * 32 * seq_len * 4096 * tokens, rel=1e-12)
    assert found.total / tokens / 1e9 == pytest.approx(causal, rel=1e-3)
    assert found.full_square / tokens / 1e9 == pytest.approx(whole, rel=1e-3)


def test_windows_count_what_they_see() -> None:
    # 1024 queries with a window of 256 see 128 on average while it fills, then 256:
    # (256·128 + 768·256) / 1024 = 224 keys, where a causal one sees 512.
    model = partial(small_model, num_layers=4, sliding_window=256)
    whole = flops(context_of(seq_len=1024, model=small_model(num_layers=4))).attention
    for step, keys in ((0, 224.0), (2, (224.0 + 512.0) / 2)):
        found = flops(context_of(seq_len=1024, model=model(full_attention_step=step)))
        assert found.attention == pytest.approx(whole * keys / 512.0, rel=1e-12)
        assert found.attention_square == pytest.approx(2.0 * whole, rel=1e-12)
    longer = flops(context_of(seq_len=1024, model=model(sliding_window=4096)))
    assert longer.attention == pytest.approx(whole, rel=1e-12)


def test_layers_of_a_second_attention_have_its_heads_and_its_window() -> None:
    # Gemma 4 31B: 50 layers of 32 heads of 256 whose queries see 1024(1 - 1024/16384) keys of
    # 8192, 10 of 32 heads of 512 that see half; 2 FLOPs per key for scores and for values.
    context = context_of(model="gemma-4-31b", global_batch=4, seq_len=8192)
    per_token = 50 * 4 * 32 * 256 * 960 + 10 * 4 * 32 * 512 * 4096
    assert flops(context).attention == pytest.approx(3 * per_token * 4 * 8192, rel=1e-12)


def test_encoders_see_the_whole_square() -> None:
    bert = flops(context_of(model="bert-large", seq_len=512))
    assert bert.attention == bert.attention_square
    # T5: every decoder layer has a causal square and one over the encoder: 1 + 1.5 of 1 + 2.
    t5 = flops(context_of(model="t5-11b", seq_len=512))
    assert t5.attention / t5.attention_square == pytest.approx(2.5 / 3.0)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "seconds", "published"),
    [
        ("korthikanti-22b", 8, 4, 1.10, 0.415),
        ("korthikanti-175b", 64, 64, 13.75, 0.514),
        ("korthikanti-530b", 280, 280, 37.83, 0.560),
        ("korthikanti-1t", 512, 512, 71.49, 0.563),
    ],
)
def test_utilisation_of_arxiv_2205_05198_table_5(
    model: str, gpus: int, batch: int, seconds: float, published: float
) -> None:
    # "Model FLOPs utilization" of "Present work", A100, the whole square counted (appendix A).
    found = flops(context_of(model=model, global_batch=batch, seq_len=2048))
    a100 = load_cluster("1xdgx-a100-640").accelerator
    # Seconds are published to two decimals.
    rounding = 0.005 / seconds + 0.0005 / published
    assert mfu(found.full_square, seconds, gpus, a100) == pytest.approx(published, rel=rounding)
    assert mfu(found.total, seconds, gpus, a100) < published


@pytest.mark.parametrize(
    ("model", "tokens_per_s", "tflops"),
    [
        ("llama3.1-405b", 1536 * 8192 / 37.693252 / 1024, 822),
        ("qwen3-235b-a22b", 2048 * 4096 / 19.7 / 256, 245),
        ("gpt-oss-120b", 1280 * 4096 / 2.48062 / 64, 1077),
    ],
)
def test_rates_that_nvidia_publishes(model: str, tokens_per_s: float, tflops: float) -> None:
    # Megatron-Bridge performance summary (26.06, 26.08) and Megatron's MoE model zoo: tokens/s/GPU
    # and TFLOP/s/GPU over half the square; gpt-oss with windows of 128 in every second layer.
    context = context_of(model=model, global_batch=64, seq_len=8192 if "405b" in model else 4096)
    per_token = flops(context).total / context.job.tokens_per_iteration
    assert per_token * tokens_per_s / 1e12 == pytest.approx(tflops, rel=0.01)


def test_meta_s_405b() -> None:
    # arXiv 2407.21783, table 4: 16,384 H100, batch of 16M tokens of 8k, 400 TFLOP/s, 41 % of bf16's
    # peak; section 3: 3.8e25 FLOPs for 15.6T tokens, which is 6 N with the lookup, no attention.
    context = context_of(model="llama3.1-405b", global_batch=2048, seq_len=8192)
    found, tokens = flops(context), context.job.tokens_per_iteration
    lookup = 6 * 128_256 * 16_384
    assert (found.products / tokens + lookup) * 15.6e12 == pytest.approx(3.8e25, rel=2e-3)
    h100 = load_cluster("1xdgx-h100").accelerator
    seconds = found.total / (400e12 * 16_384)
    assert mfu(found.total, seconds, 16_384, h100) == pytest.approx(0.41, abs=0.006)
    # Counted in half or as a whole, the square is 4 % of a 405B at 8k: no reading is excluded.
    assert found.full_square / found.total == pytest.approx(1.04, abs=0.002)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "fp4"])
def test_jobs_in_8_and_4_bits_divide_by_the_16_bit_peak(precision: Precision) -> None:
    context = context_of(cluster="1xdgx-b200", precision=precision)
    result = estimate(context, strategy_of(dp=2, num_micro_batches=8))
    peak = context.cluster.accelerator.peak_flops_per_s["bf16"]
    assert result.mfu == pytest.approx(result.model_flops / (result.iter_time_s * 2 * peak))


def test_a_v100_divides_by_its_fp16_peak() -> None:
    v100 = load_cluster("1xdgx-1-v100").accelerator
    assert mfu(62.5e12, 1.0, 1, v100) == pytest.approx(62.5e12 / v100.peak_flops_per_s["fp16"])


def test_flops_grow_with_the_batch_only() -> None:
    one, many = (flops(context_of(global_batch=batch)) for batch in (1, 64))
    assert many.total == 64 * one.total
    for profile in ("classic", "bridge"):
        assert flops(context_of(profile=profile, global_batch=1)) == one
    # Nor with padding of the vocabulary: 16 · 1024 tokens, 6 h each per column of the head.
    narrow, wide = (flops(context_of(model=small_model(vocab_size=v))) for v in (32000, 32001))
    assert wide.total - narrow.total == 6 * 16 * 1024 * 1024


def test_a_mixture_counts_the_experts_a_token_meets() -> None:
    # Mixtral-8x7B, s = 4096, per token and layer forward: attention 2·(4096·(4096+2048) + 4096²),
    # router 2·4096·8, two experts 2·2·3·4096·14336, square 4·4096·4096; head 2·32000·4096.
    context = context_of(model="mixtral-8x7b", global_batch=1, seq_len=4096)
    h = 4096
    attention = 2 * (h * (h + 2048) + h * h)
    layer = attention + 2 * h * 8 + 2 * 2 * 3 * h * 14336 + 4 * 4096 * h
    whole = flops(context).full_square
    assert whole == pytest.approx(3 * 4096 * (32 * layer + 2 * 32000 * h), rel=1e-12)
