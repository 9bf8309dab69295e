"""Weight tensors: sums against the parameter counts, shapes against published code."""

from math import prod

import pytest
from shards import model_weights

from planner.catalog.models import load_model
from planner.catalog.paths import list_models
from planner.layers.parameters import count_parameters, layer_counts
from planner.layers.weights import (
    LAYOUTS,
    LayoutName,
    Weight,
    layer_kinds,
    weight_shapes,
)


def shapes(weights: tuple[Weight, ...]) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list_models())
def test_elements_add_up_to_the_parameter_count(name: str, layout: LayoutName) -> None:
    model = load_model(name)
    weights = model_weights(model, layout)
    assert sum(prod(weight.shape) * weight.count for weight in weights) == count_parameters(model)
    assert len({weight.name for weight in weights}) == len(weights)
    assert all(size > 0 for weight in weights for size in weight.shape)


@pytest.mark.parametrize("name", list_models())
def test_experts_are_marked_and_all_there(name: str) -> None:
    model = load_model(name)
    stacked = [weight for weight in model_weights(model) if weight.is_expert]
    single = [weight for weight in model_weights(model, "megatron") if weight.is_expert]
    assert sum(prod(w.shape) for w in stacked) == sum(prod(w.shape) * w.count for w in single)
    assert {weight.shape[0] for weight in stacked} == {weight.count for weight in single}
    assert bool(stacked) == (model.moe is not None)


@pytest.mark.parametrize("name", list_models())
def test_layers_of_every_kind_are_counted(name: str) -> None:
    model = load_model(name)
    kinds = layer_kinds(model)
    assert {kind: kinds.count(kind) for kind in layer_counts(model)} == layer_counts(model)


def test_llama_layer_in_both_layouts() -> None:
    model = load_model("llama3-8b")
    assert shapes(weight_shapes(model, "dense")) == {
        "q.weight": (4096, 4096),
        "k.weight": (1024, 4096),
        "v.weight": (1024, 4096),
        "attention_output.weight": (4096, 4096),
        "mlp_gate.weight": (14336, 4096),
        "mlp_up.weight": (14336, 4096),
        "mlp_down.weight": (4096, 14336),
        "norm_0.weight": (4096,),
        "norm_1.weight": (4096,),
    }
    fused = shapes(weight_shapes(model, "dense", "megatron"))
    assert fused["qkv.weight"] == (6144, 4096)
    assert fused["mlp_up.weight"] == (28672, 4096)


def test_gpt2_matrices_are_transposed_and_tied() -> None:
    model = load_model("gpt2-small")
    layer = shapes(weight_shapes(model, "dense", "gpt2"))
    assert layer["qkv.weight"] == (768, 2304)
    assert layer["qkv.bias"] == (2304,)
    assert layer["mlp_down.weight"] == (3072, 768)
    assert [*layer][:3] == ["norm_0.weight", "norm_0.bias", "qkv.weight"]
    assert shapes(weight_shapes(model, "embedding", "gpt2")) == {
        "token_embedding.weight": (50257, 768),
        "position_embedding.weight": (1024, 768),
    }
    assert weight_shapes(model, "head", "gpt2") == ()


def test_latent_attention() -> None:
    layer = shapes(weight_shapes(load_model("deepseek-v3"), "dense"))
    assert layer["query_down.weight"] == (1536, 7168)
    assert layer["query_up.weight"] == (128 * 192, 1536)
    assert layer["kv_down.weight"] == (512 + 64, 7168)
    assert layer["kv_up.weight"] == (128 * 256, 512)
    assert layer["attention_output.weight"] == (7168, 128 * 128)
    assert layer["query_down_norm.weight"] == (1536,)
    assert layer["kv_down_norm.weight"] == (512,)


def test_experts_stacked_and_apart() -> None:
    model = load_model("mixtral-8x7b")
    stacked = [weight for weight in weight_shapes(model, "moe") if weight.is_expert]
    assert [weight.shape for weight in stacked] == [(8, 2 * 14336, 4096), (8, 4096, 14336)]
    apart = [weight for weight in weight_shapes(model, "moe", "megatron") if weight.is_expert]
    assert [(w.shape, w.count) for w in apart] == [((2 * 14336, 4096), 8), ((4096, 14336), 8)]


def test_every_second_layer_is_a_mixture() -> None:
    kinds = layer_kinds(load_model("llama4-maverick-17b-128e"))
    assert kinds[:4] == ["dense", "moe", "dense", "moe"]
