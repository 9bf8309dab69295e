"""Bytes that a layer keeps and sends, op by op (arXiv 2205.05198, section 4).

GPT-3 shapes: s = 2048, b = 1, h = 12288, a = 96; sbh = 25,165,824 bytes, 5as/h = 80.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from contexts import shape_of, small_model

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.block import head_op, layer_groups
from planner.layers.op import LayerShape, Op
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits, traits_at_precision

SBH = 2048.0 * 12288
SCORES = 5.0 * 96 * 2048 / 12288  # 5as/h = 80


GPT3 = load_model("gpt3-175b")


def ops_of(
    model: ModelSpec | str, shape: LayerShape, traits: str | FrameworkTraits = "classic"
) -> dict[str, Op]:
    """Ops of the only kind of layer under traits, or a profile of Megatron."""
    traits = load_traits("megatron", traits) if isinstance(traits, str) else traits
    model = load_model(model) if isinstance(model, str) else model
    (group,) = layer_groups(model, shape, traits)
    return {op.name: op for op in group.ops}


def saved(ops: dict[str, Op], *names: str) -> float:
    return float(sum(ops[name].saved_bytes[0] for name in names or ops))


@pytest.mark.parametrize(
    ("degrees", "profile", "sbh"),
    [
        ({}, "classic", 34 + SCORES),
        ({"micro_batch": 4}, "classic", 4 * (34 + SCORES)),
        # sbh (10 + 24/t + 5as/(ht)); t = 8: 10 + 3 + 10 = 23
        ({"tp": 2}, "classic", 10 + (24 + SCORES) / 2),
        ({"tp": 8}, "classic", 23),
        # Sequence parallelism divides everything by t.
        ({"tp": 2, "sp": 1}, "classic", (34 + SCORES) / 2),
        ({"tp": 8, "sp": 1}, "classic", 114 / 8),
        # No masks (34 - 2), no scores, 4 bytes per head and token: 4·96/12288 = 0.03125.
        ({}, "current", 32.03125),
        ({"cp": 2}, "current", 32.03125 / 2),
    ],
)
def test_a_block_saves_what_table_2_says(degrees: dict[str, int], profile: str, sbh: float) -> None:
    ops = ops_of(GPT3, shape_of(seq_len=2048, **degrees), profile)
    assert saved(ops) == pytest.approx(sbh * SBH)


@pytest.mark.parametrize(
    ("names", "sbh"),
    [
        # Input of qkv 2, q and k 4, v 2, input of the output projection 2, dropout mask 1; the norm
        # op holds its own input, the input of qkv and the mask.
        (("attention_norm", "qkv", "attention_core", "attention_output"), 2 + 11 + SCORES),
        (("attention_core",), SCORES),
        # Input 2, pre-activation 8, activation 8, mask 1; and the norm's own input.
        (("mlp_norm", "mlp_up", "mlp_activation", "mlp_down"), 2 + 19),
    ],
)
def test_halves_of_a_block_save_their_share(names: tuple[str, ...], sbh: float) -> None:
    assert saved(ops_of(GPT3, shape_of(seq_len=2048)), *names) == pytest.approx(sbh * SBH)


def test_selective_recomputation_drops_the_scores_only() -> None:
    # arXiv 2205.05198, table 2: 34 sbh remain.
    ops = ops_of(GPT3, shape_of(seq_len=2048))
    assert [name for name, op in ops.items() if op.selective_fraction] == ["attention_core"]
    assert float(sum(op.kept_bytes for op in ops.values())[0]) == pytest.approx(34 * SBH)


# Bytes per token that a layer keeps, and multiply-adds per token that it repeats.
LLAMA = 8 * 4096 + 2 * 1024 + 2 * 14336 + 4 * 32
# One projection of queries, keys and values, kept whole; repeated are output and up projections.
FUSED, OUT, UP = LLAMA + 2 * 1024, 4096 * 4096, 4096 * 14336
# Split over 8 ranks, but for what the down projection leaves; a sum before either half's end.
SPLIT = (FUSED - 2 * 4096 + 2 * 2 * 4096) / 8 + 2 * 4096
QWEN = 2 * 2048 + 2 * (4096 + 2 * 512) + 2 * 4096 + 4 * 32 + 8 * 8  # with the experts chosen
# The output projection, the router of 128, and 8 experts, with EP but for their last products.
QWEN_REPEATS, EXPERT = 4096 * 2048 + 2048 * 128, 8 * 2048 * 768
# Queries; keys and values made of latent ones; the shared experts' gate and down projections.
LITE = 2 * 2048 + 2 * 16 * 192 + 2 * 16 * 256 + (2 * 16 * 128 + 4 * 16) + 2 * 2816 + 2 * 2048
LITE_REPEATS = 2048 * 576 + 2048 * 2048 + 2048 * 64 + 2048 * 2816 + 6 * 3 * 2048 * 1408


@pytest.mark.parametrize(
    ("model", "profile", "degrees", "kept", "repeated"),
    [
        ("llama3-8b", "2024-eager", {}, LLAMA, OUT + UP + 4096 * 1024),
        # No keys and values that went round the ring.
        ("llama3-8b", "2024-eager", {"cp": 8}, LLAMA / 8, (OUT + UP + 4096 * 1024) / 8),
        ("llama3-8b", "eager", {}, FUSED, OUT + UP),
        ("llama3-8b", "current", {}, FUSED - 2 * 4096, OUT + UP),
        ("llama3-8b", "eager", {"tp": 8, "sp": 1}, SPLIT, (OUT + UP) / 8),
        # The compiler reads the attention block's sum in place of the product.
        ("llama3-8b", "current", {"tp": 8, "sp": 1}, SPLIT - 2 * 4096 - 2 * 4096 / 8, UP / 8),
        ("qwen3-30b-a3b", "current", {}, QWEN, QWEN_REPEATS + 3 * EXPERT),
        ("qwen3-30b-a3b", "current", {"ep": 8}, QWEN + 4 * 8 * 2048, QWEN_REPEATS + 2 * EXPERT),
        ("deepseek-v2-lite", "eager", {}, LITE + 12 * 6, LITE_REPEATS),
    ],
)
def test_torchtitans_op_policy_keeps_every_second_matmul(
    model: str, profile: str, degrees: dict[str, int], kept: float, repeated: float
) -> None:
    shape = shape_of(seq_len=8192, **degrees)
    group = layer_groups(load_model(model), shape, load_traits("torchtitan", profile))[-1]
    assert float(sum(op.kept_bytes for op in group.ops)[0]) == kept * 8192
    again = [op.selective_op for op in group.ops if op.selective_op and op.selective_fraction]
    flops = sum(float(np.sum(gemm.flops)) for op in again for gemm in op.gemms)
    assert flops == pytest.approx(2 * repeated * 8192)
    assert {comm.collective for op in again for comm in op.comms[0]} <= {"all_gather", "all_reduce"}


def test_the_busiest_rank_of_experts_gets_its_own_tokens_back() -> None:
    shape = replace(shape_of(seq_len=8192, ep=8), imbalance_fraction=0.5)
    ops = ops_of("qwen3-30b-a3b", shape, load_traits("torchtitan"))
    kept = {one.name: float(one.num_bytes[0]) for op in ops.values() for one in op.kept}
    assert kept["dispatch.all_to_all"] == 1.5 * kept["combine.all_to_all"] == 1.5 * 8192 * 8 * 4096


def test_a_compiler_casts_to_8_bits_again_in_backward() -> None:
    # Inputs of both norms, q, k, v, log-sum-exp, attention's output in 16 and 8 bits, gate and up;
    # under tensor parallelism what norms leave is gathered in 8 bits.
    traits = traits_at_precision(load_traits("torchtitan", "2025"), "fp8")
    whole = 4 * 4096 + 2 * (4096 + 2 * 1024) + 4 * 32 + 3 * 4096 + 4 * 14336
    assert saved(ops_of("llama3-8b", shape_of(seq_len=8192), traits)) == 8192 * whole
    split = ops_of("llama3-8b", shape_of(seq_len=8192, tp=8, sp=1), traits)
    assert saved(split) == 8192 * (whole / 8 + 2 * 4096)


def test_transformer_engine_keeps_one_byte_per_linear_input_under_fp8() -> None:
    # Inputs of qkv and fc1 (norm outputs, h each), of the projection (h) and of fc2 (4h): 7h
    # elements per token lose one byte each.
    traits = load_traits("megatron")
    wide, narrow, half = (
        saved(ops_of(small_model(), shape_of(), traits_at_precision(traits, precision)))
        for precision in ("bf16", "fp8", "fp16")
    )
    assert wide - narrow == 1024 * 7 * 1024
    assert wide == half


def test_dynamic_casts_of_eager_blocks_keep_sixteen_bits() -> None:
    traits = load_traits("torchtitan", "eager")
    assert traits_at_precision(traits, "fp8") == traits


def test_a_gated_block_of_llama_by_hand() -> None:
    # Llama-2-7B, s = 4096, h = 4096, 32 heads of 128, ffn 11008, flash, no dropout.
    # Per token: norms 2·4·4096 = 32768; q, k, v 3·4096·2 = 24576; log-sum-exp 32·4 = 128;
    # output input 4096·2 = 8192; gate, up, product 3·11008·2 = 66048: 131,712 bytes.
    assert saved(ops_of("llama2-7b", shape_of(seq_len=4096), "current")) == 4096 * 131_712


def test_the_loss_keeps_6_bytes_per_logit_in_the_classic_profile() -> None:
    # Vocabulary 50257 padded to a multiple of 128·8 = 51200; per rank 6400 logits a token:
    # 6·6400 (16-bit logits and the softmax in fp32); the final norm's input and output 4·12288.
    op = head_op(GPT3, shape_of(seq_len=2048, tp=8), load_traits("megatron", "classic"))
    assert float(op.saved_bytes[0]) == 2048 * (6 * 6400 + 4 * 12288)


def test_an_expert_layer_saves_by_token_expert_pair() -> None:
    # Mixtral-8x7B, top-2 of 8, h = 4096, ffn 14336, s = 4096: 8192 pairs of
    # 3·14336·2 + 4096·2 = 94,208 bytes; the busiest of several ranks has more of them.
    for ep, imbalance, pairs in ((1, 0.0, 8192), (8, 0.0, 8192), (1, 0.5, 8192), (8, 0.5, 12288)):
        shape = replace(shape_of(seq_len=4096, ep=ep), imbalance_fraction=imbalance)
        ops = ops_of("mixtral-8x7b", shape, "current")
        assert saved(ops, "expert_activation") == pytest.approx(pairs * 94_208)
        # Router: 8 experts, 12 bytes each per token.
        assert saved(ops, "router") == 4096 * 8 * 12


SBH2 = 2048 * 12288 * 2.0  # one activation tensor in bf16 for GPT-3 at s = 2048
# Llama-3-8B: 8 key/value heads of 128, s = 8192, in bf16.
KEYS_AND_VALUES = 2 * 8192 * 1024 * 2.0
# Mixtral: dispatch and combine of 2 copies of 4096 tokens x 4096 elements in bf16.
PAIRS = {("all_to_all", "ep"): 2 * (4096 * 2 * 4096 * 2.0)}
ALL_REDUCES = {("all_reduce", "tp"): 2 * SBH2}
HALVES = {("all_gather", "tp"): 2 * SBH2, ("reduce_scatter", "tp"): 2 * SBH2}
# Behind them the input of both parts is gathered again for the gradients of their weights.
HALVES_BACKWARD = HALVES | {("all_gather", "tp"): 4 * SBH2}
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
        ("gpt3-175b", {"tp": 8, "sp": 1}, HALVES, HALVES_BACKWARD),
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
