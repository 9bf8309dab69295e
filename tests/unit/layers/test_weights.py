"""Weight tensors: sums against the parameter counts, shapes against published code."""

from collections.abc import Sequence
from math import prod

import pytest
from shards import model_weights

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.layers.parameters import count_parameters
from planner.layers.weights import Weight, weight_shapes


def shapes(weights: Sequence[Weight]) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights}


@pytest.mark.parametrize("name", list_models())
def test_elements_add_up_to_the_parameter_count(name: str) -> None:
    model = load_model(name)
    weights = model_weights(model)
    assert sum(prod(weight.shape) for weight in weights) == count_parameters(model)
    assert len({weight.name for weight in weights}) == len(weights)
    assert all(size > 0 for weight in weights for size in weight.shape)


def test_llama_layer() -> None:
    assert shapes(weight_shapes(load_model("llama3-8b"), "dense")) == {
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


def test_gpt2_matrices_are_transposed_and_tied() -> None:
    model = load_model("gpt2-small")
    tensors = shapes(model_weights(model, is_gpt2=True))
    layer = {name[9:]: shape for name, shape in tensors.items() if name.startswith("layers.0.")}
    assert layer["qkv.weight"] == (768, 2304)
    assert layer["qkv.bias"] == (2304,)
    assert layer["mlp_down.weight"] == (3072, 768)
    assert [*layer][:3] == ["norm_0.weight", "norm_0.bias", "qkv.weight"]
    assert shapes(weight_shapes(model, "embedding")) == {
        "token_embedding.weight": (50257, 768),
        "position_embedding.weight": (1024, 768),
    }
    assert weight_shapes(model, "head") == []


def test_latent_attention() -> None:
    layer = shapes(weight_shapes(load_model("deepseek-v3"), "dense"))
    assert layer["query_down.weight"] == (1536, 7168)
    assert layer["query_up.weight"] == (128 * 192, 1536)
    assert layer["kv_down.weight"] == (512 + 64, 7168)
    assert layer["kv_up.weight"] == (128 * 256, 512)
    assert layer["attention_output.weight"] == (7168, 128 * 128)
    assert layer["query_down_norm.weight"] == (1536,)
    assert layer["kv_down_norm.weight"] == (512,)


def test_experts_are_stacked() -> None:
    layer = shapes(weight_shapes(load_model("mixtral-8x7b"), "moe"))
    assert layer["routed_expert_up.weight"] == (8, 2 * 14336, 4096)
    assert layer["routed_expert_down.weight"] == (8, 4096, 14336)
