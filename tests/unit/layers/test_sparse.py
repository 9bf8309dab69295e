"""Sparse and pooled attention: keys that a query sees, FLOPs and kept tensors by hand."""

import numpy as np
import pytest

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.attention import attention_ops, latent_keys, mean_keys
from planner.layers.block import layer_groups, mtp_blocks
from planner.layers.op import LayerShape, Op


@pytest.mark.parametrize("seq_len", [100, 2048, 2049, 8192])
def test_mean_keys_are_those_of_a_count(seq_len: int) -> None:
    # the diagonal is counted half, as in dense attention
    seen = [min(position + 0.5, 2048) for position in range(seq_len)]
    assert float(mean_keys(2048, seq_len)) == pytest.approx(np.mean(seen), rel=5e-4)


def ops_of(seq_len: int, name: str = "deepseek-v3.2", letter: str = "F") -> dict[str, Op]:
    shape, model = LayerShape.all_of(1.0, seq_len), load_model(name).with_attention(letter)
    return {op.name: op for op in attention_ops(model, shape, load_traits("megatron").kernels)}


def attention_flops(ops: dict[str, Op], name: str = "attention_core") -> float:
    attention = ops[name].attention
    assert attention is not None
    return attention.flops.item()


def test_attention_is_over_the_chosen_keys_in_latent_width() -> None:
    keys = 2048 - 2048 * 2047 / (2 * 8192)
    expected = 8192 * 2 * 128 * keys * (576 + 512)
    assert attention_flops(ops_of(8192)) == pytest.approx(expected)


def test_scores_of_the_indexer_grow_with_the_square() -> None:
    short, long = (attention_flops(ops_of(length), "indexer") for length in (8192, 16384))
    assert long == pytest.approx(4.0 * short)


def test_keys_and_values_are_not_expanded() -> None:
    ops = ops_of(8192)
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
    found = attention_flops(ops_of(8192, "deepseek-v4-flash", letter))
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
    assert ops_of(4096, name, letter)[op].params.item() == params


def test_grouped_queries_see_the_keys_of_chosen_blocks() -> None:
    chosen, whole = (attention_flops(ops_of(8192, "minimax-m3", each)) for each in "SF")
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
