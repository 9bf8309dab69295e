"""Linear mixers, sparse and pooled attention, multi-token prediction (arXiv 2412.19437, 2.2)."""

import numpy as np
import pytest
from contexts import shape_of, small_model

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.attention import attention_ops, latent_keys, mean_keys
from planner.layers.block import block_kinds, head_op, layer_groups, mtp_blocks, mtp_ops
from planner.layers.mixers import kept_elements, scan_flops_per_token
from planner.layers.op import LayerShape, Op, total_bytes
from planner.layers.parameters import (
    count_mtp_parameters,
    count_parameters,
    layer_params,
    mixer_params,
    mtp_params,
)
from planner.spec.model import ModelSpec

SHAPE, MEGATRON = LayerShape.all_of(1.0, 4096), load_traits("megatron")


@pytest.mark.parametrize(
    ("name", "params"),
    [
        # in 2688 (2·4096 + 2·1024 + 64), conv 6144·5, vectors 3·64 + 4096, out 4096·2688
        ("nemotron-3-nano-30b-a3b", 38_742_208),
        # in 2048 (2·2048 + 2·4096 + 64), conv 8192·4, vectors 2·32 + 128, out 4096·2048
        ("qwen3.5-35b-a3b", 33_718_464),
        ("qwen3.5-397b-a17b", 118_014_208),
        ("nemotron-3-super-120b-a12b", 109_635_968),
        # in 2048 (2·3072 + 2·256 + 48), conv 3584·5, vectors 3·48 without a norm, out 3072·2048
        ("falcon-h1-1.5b", 20_039_312),
        # in 2560 (5·4096 + 32), conv 12288·4, vectors 4096 + 32 + 128, out 4096·2560
        ("ling-3.0-flash", 63_049_888),
        # in 4096·2·8192, x and dt 2·8192 (256 + 16), conv 8192·5, A, D, dt 18·8192, norms 288, out
        ("jamba-1.5-mini", 105_308_448),
    ],
)
def test_parameters_of_a_mixer_by_hand(name: str, params: int) -> None:
    assert sum(int(part.total) for part in mixer_params(load_model(name)).values()) == params


def test_a_mixer_over_eight_ranks_holds_an_eighth_of_its_matrices() -> None:
    model = load_model("nemotron-3-super-120b-a12b")
    whole, split = mixer_params(model), mixer_params(model, 8)
    for name, part in whole.items():
        assert int(part.total) == 8 * int(split[name].total), name


@pytest.mark.parametrize(
    ("name", "flops", "kept"),
    [
        # FLOPs: 2·128 (8·128 + 4096) + 4·128·4096.
        # Kept: 50.6 kB with the input of 2688: in 10304, three of 4096.
        ("nemotron-3-nano-30b-a3b", 3_407_872, 10_304 + 3 * 4096),
        # FLOPs: 32 (2·64 (3·128 + 2·128) + 6·128·128 + 64·64).
        # Kept: in 12352, convolved 8192, queries and keys 8192, four of 4096, blocks 2048, gates.
        ("qwen3.5-35b-a3b", 5_898_240, 12_352 + 8192 + 8192 + 16_384 + 2048 + 192),
    ],
)
def test_flops_of_the_scans_and_kept_tensors_by_hand(name: str, flops: int, kept: int) -> None:
    mixer = load_model(name).mixer
    assert mixer is not None
    assert (scan_flops_per_token(mixer), kept_elements(mixer)) == (flops, kept)


def groups_of(model: ModelSpec) -> dict[str, set[str]]:
    groups = layer_groups(model, SHAPE, MEGATRON)
    return {group.name: {op.name for op in group.ops} for group in groups}


def test_a_layer_of_one_part_has_one_norm_and_that_part() -> None:
    model = load_model("nemotron-3-nano-30b-a3b")
    groups = groups_of(model)
    assert set(groups) == {"mixer", "attention", "experts"}
    assert "mlp_norm" not in groups["mixer"] | groups["attention"]
    assert "attention_norm" not in groups["experts"]
    norms = [int(layer_params(model, kind)["norms"].total) for kind in ("mixer", "experts")]
    assert norms == [model.hidden_size, model.hidden_size]


def test_a_mixer_takes_the_place_of_attention_beside_experts() -> None:
    groups = groups_of(load_model("kimi-linear-48b-a3b"))
    assert set(groups) == {"mixer_dense", "mixer_moe", "moe"}
    assert "attention_core" not in groups["mixer_moe"]
    assert {"mixer", "expert_up"} <= groups["mixer_moe"]


def test_a_layer_of_multi_token_prediction_follows_its_pattern() -> None:
    model = load_model("nemotron-3-super-120b-a12b")
    number, blocks = mtp_blocks(model, layer_groups(model, SHAPE, MEGATRON))
    assert number == 2
    assert {block.name: block.num_layers for block in blocks} == {"attention": 1, "experts": 1}


def test_attention_and_mixer_side_by_side_read_one_norm() -> None:
    (layer,) = layer_groups(load_model("falcon-h1-7b"), SHAPE, MEGATRON)
    assert [op.name for op in layer.ops] == [
        *("attention_norm", "qkv", "attention_core", "attention_output"),
        *("mixer_in", "mixer", "mixer_out", "mlp_norm", "mlp_up"),
        *("mlp_activation", "mlp_down", "extra"),
    ]


def test_gates_of_heads_keep_the_gate_and_the_gated_output() -> None:
    layers = layer_groups(load_model("step-3.7-flash"), SHAPE, MEGATRON)
    first, second = 64 + 64 * 128, 96 + 96 * 128
    wanted = {"dense": first, "moe": first, "second_dense": second, "second_moe": second}
    for layer in layers:
        (gates,) = (op for op in layer.ops if op.name == "head_gates")
        assert gates.saved_bytes.item() == 4096 * 2 * wanted.pop(layer.name)
    assert not wanted


TRAITS = load_traits("megatron", "current")
HIDDEN, V3 = 7168, load_model("deepseek-v3")


def ops_of(model: ModelSpec, shape: LayerShape) -> dict[str, Op]:
    return {op.name: op for op in mtp_ops(model, shape, TRAITS)}


def test_a_dense_model_adds_its_layer_two_norms_a_projection_and_a_final_norm() -> None:
    sizes = {"norm": "rmsnorm", "tied_embeddings": True}
    one, two = small_model(num_layers=1, **sizes), small_model(num_layers=2, **sizes)
    layer = count_parameters(two) - count_parameters(one)
    width = one.hidden_size
    assert count_mtp_parameters(one) == layer + 3 * width + 2 * width * width


def test_the_module_of_deepseek_v3_has_14_billion_parameters_with_both_its_vocabularies() -> None:
    module = count_mtp_parameters(V3) + 2 * V3.vocab_size * V3.hidden_size
    assert module / 1e9 == pytest.approx(14.0, abs=0.6)
    assert round((count_parameters(V3) + module) / 1e9 + 0.5) == 685


def test_the_projection_is_split_over_tensor_parallel_ranks_and_norms_are_not() -> None:
    parts = mtp_params(V3, 8)
    assert int(parts["mtp_projection"].total) == 2 * HIDDEN * HIDDEN // 8
    assert int(parts["mtp_norms"].total) == 2 * HIDDEN
    assert int(parts["mtp_final_norm"].total) == HIDDEN


@pytest.mark.parametrize("sp", [0, 1])
def test_norms_keep_what_they_read_and_the_projection_what_they_join(sp: int) -> None:
    projection = ops_of(V3, shape_of(seq_len=4096, tp=4, sp=sp))["mtp_projection"]
    inputs_and_outputs = 2 * 2 * HIDDEN * 2
    assert float(projection.saved_bytes[0]) == 4096 * inputs_and_outputs / (4 if sp else 1)
    (gemm,) = projection.gemms
    assert float(gemm.flops[0]) == 2.0 * 4096 * 2 * HIDDEN * HIDDEN / 4


def test_the_head_runs_again_and_holds_only_a_norm_more() -> None:
    shape = shape_of(seq_len=4096)
    ops, own = ops_of(V3, shape), head_op(V3, shape, TRAITS)
    again = ops["mtp_head"]
    assert again.gemms == own.gemms
    assert float(total_bytes(again.saved)[0]) == float(total_bytes(own.saved)[0]) > 0
    assert (float(again.params[0]), float(ops["mtp_embedding"].params[0])) == (HIDDEN, 0)


def test_further_blocks_are_as_the_layers_behind_the_leading_ones() -> None:
    kinds = layer_groups(V3, shape_of(seq_len=4096), TRAITS)
    assert [(kind.name, kind.num_layers) for kind in block_kinds(kinds)] == [("moe", 58)]


@pytest.mark.parametrize("seq_len", [100, 2048, 2049, 8192])
def test_mean_keys_are_those_of_a_count(seq_len: int) -> None:
    # the diagonal is counted half, as in dense attention
    seen = [min(position + 0.5, 2048) for position in range(seq_len)]
    assert float(mean_keys(2048, seq_len)) == pytest.approx(np.mean(seen), rel=5e-4)


def attention_ops_of(seq_len: int, name: str = "deepseek-v3.2", letter: str = "F") -> dict[str, Op]:
    shape, model = LayerShape.all_of(1.0, seq_len), load_model(name).with_attention(letter)
    return {op.name: op for op in attention_ops(model, shape, load_traits("megatron").kernels)}


def attention_flops(ops: dict[str, Op], name: str = "attention_core") -> float:
    attention = ops[name].attention
    assert attention is not None
    return attention.flops.item()


def test_attention_is_over_the_chosen_keys_in_latent_width() -> None:
    keys = 2048 - 2048 * 2047 / (2 * 8192)
    expected = 8192 * 2 * 128 * keys * (576 + 512)
    assert attention_flops(attention_ops_of(8192)) == pytest.approx(expected)


def test_scores_of_the_indexer_grow_with_the_square() -> None:
    short, long = (attention_flops(attention_ops_of(length), "indexer") for length in (8192, 16384))
    assert long == pytest.approx(4.0 * short)


def test_keys_and_values_are_not_expanded() -> None:
    ops = attention_ops_of(8192)
    assert [tensor.name for tensor in ops["kv_up"].saved] == ["kv_up.query"]
    kept = {tensor.name: tensor.width.item() for tensor in ops["attention_core"].saved}
    assert kept == {
        "attention_core.absorbed_query": 128 * 576,
        "attention_core.latent_output": 128 * 512,
        "attention_core.chosen": 2048,
    }


@pytest.mark.parametrize(
    ("letter", "most", "ratio"), [("W", 0, 1), ("C", 512, 4), ("H", 8192 // 128, 128)]
)
def test_pooled_attention_is_over_a_window_and_entries_of_tokens_before(
    letter: str, most: int, ratio: int
) -> None:
    model = load_model("deepseek-v4-flash").with_attention(letter)
    assert model.mla is not None
    entries = [min((position + 0.5) / ratio, most) for position in range(8192)]
    window = [min(position + 0.5, 128) for position in range(8192)]
    keys = float(latent_keys(model, model.mla, 8192))
    assert keys == pytest.approx(np.mean(entries) + np.mean(window), rel=5e-4)
    found = attention_flops(attention_ops_of(8192, "deepseek-v4-flash", letter))
    assert found == pytest.approx(8192 * 2 * 64 * keys * 1024)


@pytest.mark.parametrize(
    ("name", "letter", "op", "params"),
    [
        # 64·128·1536 + 128·7168 + 64·7168 and the layernorm of 128
        ("deepseek-v3.2", "F", "indexer", 13_959_424),
        # 2 (2·512)·4096, biases 4·1024, gain 512; in layers H half as wide, biases 128·512
        ("deepseek-v4-flash", "C", "compressor", 8_388_608 + 4096 + 512),
        ("deepseek-v4-flash", "H", "compressor", 4_194_304 + 65_536 + 512),
        # 64·128·1024 + 4·128·4096 + 64·4096, biases 4·256, gain 128
        ("deepseek-v4-flash", "C", "indexer", 10_747_904 + 1024 + 128),
        # eight groups (1024, 4096), then (4096, 8192)
        ("deepseek-v4-flash", "W", "attention_output", 2 * 33_554_432),
        ("minimax-m3", "S", "indexer", (4 * 128 + 128) * 6144 + 2 * 128),
    ],
)
def test_parameters_of_pooled_and_block_sparse_attention_by_hand(
    name: str, letter: str, op: str, params: int
) -> None:
    assert attention_ops_of(4096, name, letter)[op].params.item() == params


def test_grouped_queries_see_the_keys_of_chosen_blocks() -> None:
    chosen, whole = (attention_flops(attention_ops_of(8192, "minimax-m3", each)) for each in "SF")
    assert chosen == pytest.approx(float(mean_keys(2048, 8192)) / 4096 * whole)


def test_layers_of_shortcuts_and_of_streams() -> None:
    shape, traits = LayerShape.all_of(1.0, 4096), load_traits("megatron")
    (layer,) = layer_groups(load_model("longcat-flash-560b"), shape, traits)
    names = [op.name for op in layer.ops]
    assert [names.count(name) for name in ("attention_core", "mlp_up", "expert_up")] == [2, 2, 1]
    assert names.index("expert_up") < names.index("mlp_up")
    model = load_model("deepseek-v4-flash")
    layers = layer_groups(model, shape, traits)
    numbers = {layer.name: layer.num_layers for layer in layers}
    assert numbers == {"window_moe": 2, "chosen_moe": 21, "pooled_moe": 20}
    # two of 24 x 4·4096, 24 and 3; kept four streams and a result at each
    streams = layers[0].ops[-2]
    assert streams.params.item() == 2 * (24 * 16_384 + 27)
    assert streams.saved_bytes.item() == 4096 * 2 * 2 * 5 * 4096
    assert [block.name for block in mtp_blocks(model, layers)[1]] == ["window_moe"]
