"""What fp32 around 4-bit products moves and keeps, by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_training
from planner.layers.block import embedding_op, layer_groups
from planner.layers.op import LayerShape, Op
from planner.spec.training import TARGETS, Mode, Training
from planner.spec.traits import FrameworkTraits

Shapes = Callable[..., LayerShape]
LLAMA = load_model("llama3.1-8b")
TOKENS, HIDDEN, KV, FFN = 1024.0, 4096, 1024, 14336


def trained(mode: Mode = "qlora", *, widens_stream: bool) -> FrameworkTraits:
    traits = load_traits("accelerate")
    traits = replace(traits, kernels=replace(traits.kernels, widens_stream=widens_stream))
    return with_training(traits, Training(mode=mode, rank=16, targets=TARGETS))


def ops_of(shape_of: Shapes, *, widens_stream: bool) -> dict[str, Op]:
    (group,) = layer_groups(LLAMA, shape_of(), trained(widens_stream=widens_stream))
    return {op.name: op for op in group.ops}


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        # Inputs of three projections; outputs back to fp32 and once more for the kernel.
        ("qkv", 3 * HIDDEN + 2 * (HIDDEN + 2 * KV)),
        ("mlp_up", 2 * HIDDEN + 2 * FFN),
        ("mlp_down", FFN + HIDDEN),
        ("attention_output", 0),
        ("attention_norm", 0),
    ],
)
def test_casts_around_linear_layers(shape_of: Shapes, name: str, elements: int) -> None:
    plain, wide = (ops_of(shape_of, widens_stream=each)[name] for each in (False, True))
    moved = 6.0 * TOKENS * elements
    assert float((wide.forward_bytes - plain.forward_bytes)[0]) == pytest.approx(moved)
    assert float((wide.backward_bytes - plain.backward_bytes)[0]) == pytest.approx(moved)


def test_gates_move_and_keep_twice_as_much_and_queries_do_not(shape_of: Shapes) -> None:
    plain, wide = (ops_of(shape_of, widens_stream=each) for each in (False, True))
    for figure in ("forward_bytes", "backward_bytes", "saved_bytes"):
        before, after = (getattr(ops["mlp_activation"], figure)[0] for ops in (plain, wide))
        assert after == 2.0 * before
    assert wide["qkv"].saved_bytes == plain["qkv"].saved_bytes


def test_embedding_and_norms_are_stored_in_fp32(shape_of: Shapes) -> None:
    ends = [
        embedding_op(LLAMA, shape_of(), trained(widens_stream=each)).frozen_bytes
        for each in (False, True)
    ]
    assert ends[1] == 2.0 * ends[0]
    assert ops_of(shape_of, widens_stream=True)["mlp_norm"].frozen_bytes[0] == 4.0 * HIDDEN


def test_a_base_of_16_bits_is_not_widened() -> None:
    assert not trained("lora", widens_stream=True).kernels.widens_stream
