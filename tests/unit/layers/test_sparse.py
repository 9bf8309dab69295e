"""Sparse attention: keys that a query sees, FLOPs and kept tensors by hand."""

import numpy as np
import pytest

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.attention import attention_ops, selected_keys
from planner.layers.op import LayerShape, Op
from planner.spec.model import IndexerSpec

INDEXER = IndexerSpec(num_heads=64, head_dim=128, top_k=2048)


@pytest.mark.parametrize("seq_len", [100, 2048, 2049, 8192])
def test_mean_keys_are_those_of_a_count(seq_len: int) -> None:
    # the diagonal is counted half, as in dense attention
    seen = [min(position + 0.5, INDEXER.top_k) for position in range(seq_len)]
    assert float(selected_keys(INDEXER, seq_len)) == pytest.approx(np.mean(seen), rel=5e-4)


def ops_of(seq_len: int) -> dict[str, Op]:
    shape = LayerShape.all_of(1.0, seq_len)
    traits = load_traits("megatron").kernels
    return {op.name: op for op in attention_ops(load_model("deepseek-v3.2"), shape, traits)}


def test_parameters_of_the_indexer_by_hand() -> None:
    # 64·128·1536 + 128·7168 + 64·7168 and the layernorm of 128
    assert ops_of(8192)["indexer"].params.item() == 13_959_424


def test_attention_is_over_the_chosen_keys_in_latent_width() -> None:
    attention = ops_of(8192)["attention_core"].attention
    assert attention is not None
    keys = 2048 - 2048 * 2047 / (2 * 8192)
    assert attention.flops.item() == pytest.approx(8192 * 2 * 128 * keys * (576 + 512))


def test_scores_of_the_indexer_grow_with_the_square() -> None:
    short, long = (ops_of(length)["indexer"].attention for length in (8192, 16384))
    assert short is not None
    assert long is not None
    assert long.flops.item() == pytest.approx(4.0 * short.flops.item())


def test_keys_and_values_are_not_expanded() -> None:
    ops = ops_of(8192)
    assert [tensor.name for tensor in ops["kv_up"].saved] == ["kv_up.query"]
    kept = {tensor.name: tensor.width.item() for tensor in ops["attention_core"].saved}
    assert kept == {
        "attention_core.absorbed_query": 128 * 576,
        "attention_core.latent_output": 128 * 512,
        "attention_core.chosen": 2048,
    }
