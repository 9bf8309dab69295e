"""Layers of multi-token prediction by hand: DeepSeek-V3 (arXiv 2412.19437), section 2.2."""

import pytest
from contexts import shape_of, small_model

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.block import block_kinds, head_op, layer_groups, mtp_ops
from planner.layers.op import LayerShape, Op, total_bytes
from planner.layers.parameters import count_mtp_parameters, count_parameters, mtp_params
from planner.spec.model import ModelSpec

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
