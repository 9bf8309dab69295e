"""Parameter counts and weight tensors: by hand, from the literature, of every model."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from shards import model_weights

from planner.catalog import list_models
from planner.catalog.models import load_model, load_model_details
from planner.layers.parameters import (
    attention_params,
    count_active_parameters,
    count_parameters,
    embedding_params,
    head_params,
    layer_params,
    mlp_params,
    moe_params,
    norm_params,
)
from planner.layers.weights import Weight, weight_shapes


@pytest.mark.parametrize("name", list_models())
def test_counts_equal_those_of_the_file(name: str) -> None:
    spec, file = (details := load_model_details(name)).spec, details.file
    assert count_parameters(spec) == file.params_expected
    assert count_active_parameters(spec) == (file.params_active_expected or file.params_expected)


def test_gpt2_small_by_hand() -> None:
    # token embedding     50257 * 768                    = 38,597,376
    # positions            1024 * 768                    =    786,432
    # per layer: qkv        768 * 2304 + 2304            =  1,771,776
    #            output     768 *  768 +  768            =    590,592
    #            up         768 * 3072 + 3072            =  2,362,368
    #            down      3072 *  768 +  768            =  2,360,064
    #            two norms  4 * 768                      =      3,072
    #            sum                                     =  7,087,872   times 12 = 85,054,464
    # final norm           2 * 768                       =      1,536
    model = load_model("gpt2-small")
    assert sum(int(part.total) for part in layer_params(model).values()) == 7_087_872
    assert count_parameters(model) == 124_439_808


def test_gpt_oss_counts_router_and_expert_biases() -> None:
    # d = 2880, 32 experts of width 2880: gate and up 2 * 2880 rows, each with a bias
    parts = moe_params(load_model("gpt-oss-20b"))
    assert (int(parts["router"].weights), int(parts["router"].biases)) == (32 * 2880, 32)
    assert int(parts["routed_expert_up"].biases) == 5760
    assert int(parts["routed_expert_down"].biases) == 2880
    assert int(parts["shared_expert_up"].total) == 0


def test_a_layernorm_without_shift_counts_gains_and_a_tied_head_its_bias_only() -> None:
    model = load_model("gpt2-small")
    bare = replace(model, biases=replace(model.biases, norm=False, lm_head=True))
    for each, norms, head in ((model, 4 * 768, 0), (bare, 2 * 768, 50257)):
        assert int(norm_params(each).total) == norms
        assert int(head_params(each)["lm_head"].total) == head


def test_tensor_parallel_rank_holds_its_share() -> None:
    model, tp = load_model("llama3-8b"), np.array([1, 2, 8, 16])
    # 32 heads, 8 key/value heads: 48 rows of 128, of which tp 16 leaves 3
    for part, whole in (
        (attention_params(model, tp)["qkv"], 48 * 128 * 4096),
        (mlp_params(model, tp)["mlp_down"], 4096 * 14336),
        (embedding_params(model, tp)["token_embedding"], 128_256 * 4096),
    ):
        assert (part.weights == whole // tp).all()


def test_row_split_matrices_keep_their_whole_bias() -> None:
    parts = mlp_params(load_model("gpt2-small"), 4)
    assert (int(parts["mlp_up"].biases), int(parts["mlp_down"].biases)) == (3072 // 4, 768)


def test_classic_formula_leaves_out_attention_biases_norms_and_positions() -> None:
    # V·d + L·(12d² + 5d): projections of attention 4d² and MLP 8d², biases of the MLP 5d.
    d, num_layers = 12288, 96
    classic = 50257 * d + num_layers * (12 * d**2 + 5 * d)
    left_out = num_layers * (4 * d + 4 * d) + 2 * d + 2048 * d
    assert count_parameters(load_model("gpt3-175b")) == classic + left_out


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
    expected = {
        "query_down": (1536, 7168),
        "query_up": (128 * 192, 1536),
        "kv_down": (512 + 64, 7168),
        "kv_up": (128 * 256, 512),
        "attention_output": (7168, 128 * 128),
        "query_down_norm": (1536,),
        "kv_down_norm": (512,),
    }
    layer = shapes(weight_shapes(load_model("deepseek-v3"), "dense"))
    assert {name: layer[f"{name}.weight"] for name in expected} == expected
    weights = attention_params(load_model("deepseek-v3"))
    assert {name: int(weights[name].weights) for name in expected} == {
        name: prod(shape) for name, shape in expected.items()
    }


def test_experts_are_stacked() -> None:
    layer = shapes(weight_shapes(load_model("mixtral-8x7b"), "moe"))
    assert layer["routed_expert_up.weight"] == (8, 2 * 14336, 4096)
    assert layer["routed_expert_down.weight"] == (8, 4096, 14336)
