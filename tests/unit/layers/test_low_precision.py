import pytest
from contexts import shape_of, small_model

from planner.frameworks.registry import load_traits
from planner.layers.block import layer_groups
from planner.spec.traits import traits_at_precision


def test_transformer_engine_keeps_one_byte_per_linear_input_under_fp8() -> None:
    # Inputs of qkv and fc1 (norm outputs, h each), of the projection (h) and of fc2 (4h): 7h
    # elements per token lose one byte each.
    model = small_model()
    traits = load_traits("megatron")
    shape = shape_of(micro_batch=1, seq_len=1024)

    def saved(precision: str) -> float:
        under = traits_at_precision(traits, precision)  # type: ignore[arg-type]
        (group,) = layer_groups(model, shape, under)
        return float(sum(op.saved_bytes for op in group.ops)[0])

    elements = 1024 * (2 * model.hidden_size + model.query_size + model.ffn_size)
    assert saved("bf16") - saved("fp8") == pytest.approx(elements)
    assert saved("fp16") == saved("bf16")


def test_dynamic_casts_of_eager_blocks_keep_sixteen_bits() -> None:
    traits = load_traits("torchtitan", "eager")
    assert traits_at_precision(traits, "fp8") == traits
