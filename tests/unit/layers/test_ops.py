"""Parameters and FLOPs of the ops against the counts of the whole model."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import shape_of, small_model
from forward_flops import forward_flops

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.block import embedding_op, head_op, layer_groups, padded_vocab_size
from planner.layers.mlp import moe_ops
from planner.layers.op import LayerShape, Op, dispatched_token_fraction, kept_token_fraction
from planner.layers.parameters import count_parameters
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits, KernelTraits

TRAITS = load_traits("torchtitan")  # Pads no vocabulary


def op_params(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> float:
    total = embedding_op(model, shape, traits).params + head_op(model, shape, traits).params
    for group in layer_groups(model, shape, traits):
        total = total + group.num_layers * sum(op.params for op in group.ops)
    return float(np.asarray(total).reshape(-1)[0])


@pytest.mark.parametrize("name", list_models())
def test_params_of_all_ops_add_up_to_the_models(name: str) -> None:
    model = load_model(name)
    whole = count_parameters(model)
    assert op_params(model, shape_of(seq_len=512), TRAITS) == whole
    # Shards together hold at least the model.
    for tp in (2, 4, 8):
        share = op_params(model, shape_of(seq_len=512, tp=tp), TRAITS)
        assert whole * (1 - 1e-12) / tp <= share <= whole


@pytest.mark.parametrize(
    ("vocab", "tp", "padding", "padded"),
    [
        (50257, 1, 128, 50304),  # 393 * 128
        (50257, 8, 128, 51200),  # 50 * 1024
        (50257, 8, 1, 50257),
        (51200, 8, 128, 51200),
    ],
)
def test_vocabulary_is_padded_to_a_multiple_of_padding_times_tp(
    vocab: int, tp: int, padding: int, padded: int
) -> None:
    model = small_model(vocab_size=vocab)
    assert padded_vocab_size(model, np.array([tp]), padding) == padded


def test_a_dense_layer_does_2_flops_per_parameter_and_token_and_4_s_h_of_attention() -> None:
    # 2 · 12h² + 4sh per token with the whole square: h = 1024, s = 512.
    model = small_model()
    (group,) = layer_groups(model, shape_of(seq_len=512), load_traits("megatron"))
    square = sum(op.attention.square_flops - op.attention.flops for op in group.ops if op.attention)
    flops = sum(forward_flops(op) for op in group.ops) + square
    assert float(flops[0]) == 512 * (24 * 1024**2 + 4 * 512 * 1024)


def test_unfused_attention_computes_the_whole_square() -> None:
    model, shape = small_model(), shape_of(seq_len=512, micro_batch=2)
    (group,) = layer_groups(model, shape, load_traits("megatron", "classic"))
    (core,) = (op for op in group.ops if op.name == "attention_core")
    # 2 sequences, 16 heads: scores and values 2·512²·64 each.
    assert float(forward_flops(core)[0]) == 2 * 16 * 2 * (2 * 512**2 * 64)


def test_rows_of_key_value_heads_are_split_when_tp_exceeds_them() -> None:
    # Llama-3-8B: 32 query, 8 key/value heads of 128. tp 16: 1/16 of all rows each.
    (group,) = layer_groups(load_model("llama3-8b"), shape_of(tp=16), TRAITS)
    (qkv,) = (op for op in group.ops if op.name == "qkv")
    assert float(qkv.params[0]) == 4096 * (32 + 2 * 8) * 128 / 16
    assert float(qkv.gemms[0].n[0]) == (32 + 2 * 8) * 128 / 16


@pytest.mark.parametrize(
    ("window", "step", "share"), [(0, 0, 0.0), (1024, 0, 1.0), (128, 2, 0.5), (1024, 6, 5 / 6)]
)
def test_every_nth_layer_sees_the_whole_sequence(window: int, step: int, share: float) -> None:
    model = replace(small_model(), num_layers=12, sliding_window=window, full_attention_step=step)
    assert model.windowed_share == pytest.approx(share)


def expert_traffic(model: ModelSpec, traits: FrameworkTraits, shape: LayerShape) -> np.ndarray:
    """Bytes a pair that experts move, forward and backward."""
    (group,) = layer_groups(model, shape, traits)
    ops = [op for op in group.ops if op.name in ("expert_activation", "expert_down")]
    pairs = shape.num_tokens * (model.moe.top_k if model.moe else 0)
    moved = [sum(op.forward_bytes for op in ops), sum(op.backward_bytes for op in ops)]
    return np.array(moved / pairs).reshape(2)


def test_clamps_and_biases_of_experts_are_passes_of_their_own() -> None:
    # gpt-oss: 2,880 wide and hidden; 6 and 10 bytes of activation. Clamps move 16 and 20 at 1/1.6
    # of the pace of fused kernels. Of the second bias's 28 and 40, 14 and 24 are broadcast or
    # summed over tokens at 1/3.5 of it.
    clamps, biases = (26, 32), (14 * 3.5 + 14 * 1.6, 24 * 3.5 + 16 * 1.6)
    traits, model, shape = load_traits("megatron"), load_model("gpt-oss-120b"), shape_of(ep=8)
    found = expert_traffic(model, traits, shape)
    passes = [6 + clamps[0] + biases[0], 10 + clamps[1] + biases[1]]
    assert found == pytest.approx([2880 * each for each in passes], rel=5e-3)
    assert model.moe
    plain = replace(model, activation="silu", moe=replace(model.moe, expert_bias=False))
    assert expert_traffic(plain, traits, shape) == pytest.approx([2880 * 6, 2880 * 10])
    fused = load_traits("megatron", settings=(("kernels.cuda_graph_fraction", 1.0),))
    assert expert_traffic(model, fused, shape) == pytest.approx(expert_traffic(plain, fused, shape))


def test_a_stash_moves_what_experts_keep_there_and_back() -> None:
    # Mixtral-8x7B keeps 3·14336·2 + 4096·2 = 94,208 bytes of a pair: read and written each way.
    model, shape = load_model("mixtral-8x7b"), shape_of(ep=8)
    plain, stashed = (
        expert_traffic(model, load_traits("megatron", settings=settings), shape)
        for settings in ((), (("kernels.cuda_graph_fraction", 1.0),))
    )
    assert stashed - plain == pytest.approx([2 * 94_208, 2 * 94_208])


def test_the_head_is_in_16_bits_unless_said() -> None:
    model, shape = load_model("mixtral-8x7b"), shape_of()
    for in_8_bit in (("experts",), ("linears", "head")):
        traits = load_traits("megatron", settings=(("kernels.in_8_bit", in_8_bit),))
        assert head_op(model, shape, traits).runs_in_16_bit is ("head" not in in_8_bit)


def test_scaled_rotation_is_a_pass_over_queries_and_keys() -> None:
    # gpt-oss: 64 query and 8 key heads of 64 for each of two ranks.
    traits, model, shape = load_traits("megatron"), load_model("gpt-oss-120b"), shape_of(tp=2)
    moved = []
    for each in (model, replace(model, scaled_rotary=False)):
        (group,) = layer_groups(each, shape, traits)
        (qkv,) = (op for op in group.ops if op.name == "qkv")
        moved.append(np.array([qkv.forward_bytes, qkv.backward_bytes])[:, 0] / shape.num_tokens)
    assert moved[0] - moved[1] == pytest.approx([72 * 64 / 2 * each for each in (34, 44)])


IMBALANCE = 0.5
KERNELS = load_traits("megatron").kernels


def limited(factor: float, *, pads: bool = False) -> KernelTraits:
    return replace(KERNELS, expert_capacity_factor=factor, pads_to_capacity=pads)


@pytest.mark.parametrize(
    ("factor", "pads", "received", "sent"),
    [
        (0.0, False, [1.0, 1.5], 1.0),
        # The busiest rank's surplus beyond the capacity is dropped; what fits is not padded.
        (1.25, False, [1.0, 1.25], 1.0),
        (2.0, False, [1.0, 1.5], 1.0),
        (0.8, False, [0.8, 0.8], 0.8),
        # Padded, every expert has as many rows, however tokens are routed.
        (1.25, True, [1.25, 1.25], 1.25),
        (1.0, True, [1.0, 1.0], 1.0),
    ],
)
def test_a_capacity_bounds_the_busiest_rank_and_padding_fills_all(
    factor: float, pads: bool, received: list[float], sent: float
) -> None:
    shape = replace(shape_of(ep=1), ep=np.array([1.0, 8.0]), imbalance_fraction=IMBALANCE)
    traits = limited(factor, pads=pads)
    assert kept_token_fraction(shape, traits).tolist() == received
    assert dispatched_token_fraction(traits) == sent


def test_products_memory_and_exchange_grow_with_the_padding() -> None:
    model = load_model("mixtral-8x7b")

    def ops(traits: KernelTraits, **degrees: int) -> dict[str, Op]:
        shape = replace(shape_of(seq_len=4096, **degrees), imbalance_fraction=IMBALANCE)
        return {op.name: op for op in moe_ops(model, shape, traits)}

    padded, even = ops(limited(1.25, pads=True), ep=8), ops(limited(1.0, pads=True), ep=8)
    for read in (
        lambda found: found["expert_up"].gemms[0].flops,
        lambda found: found["expert_activation"].saved_bytes,
        lambda found: found["dispatch"].comms[0][0].num_bytes,
        lambda found: found["dispatch"].forward_bytes,
        lambda found: found["combine"].backward_bytes,
    ):
        assert float(read(padded)[0] / read(even)[0]) == pytest.approx(1.25)
    # Two passes of what the busiest rank keeps beside the experts, 1.5 of what all send.
    dropped = ops(limited(1.25), ep=8)["dispatch"].forward_bytes / even["dispatch"].forward_bytes
    assert dropped == pytest.approx((2.0 * 1.25 + 1.5) / 3.5)
    more, once = (ops(limited(each, pads=True), tp=2, etp=2)["dispatch"] for each in (1.25, 1.0))
    assert more.comms[0][1].num_bytes / once.comms[0][1].num_bytes == pytest.approx(1.25)
