"""Parameter counts: by hand, from the literature, and of every model in the catalog."""

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import list_models
from planner.catalog.models import load_model, load_model_details
from planner.layers.parameters import (
    attention_params,
    count_active_parameters,
    count_parameters,
    embedding_params,
    final_norm_params,
    head_params,
    layer_counts,
    layer_params,
    mlp_params,
    moe_params,
    norm_params,
)
from planner.spec.model import Biases, ModelSpec


@pytest.mark.parametrize("name", list_models())
def test_count_equals_the_count_of_the_file(name: str) -> None:
    details = load_model_details(name)
    assert count_parameters(details.spec) == details.file.params_expected


@pytest.mark.parametrize("name", list_models())
def test_active_count_equals_the_count_of_the_file(name: str) -> None:
    details = load_model_details(name)
    expected = details.file.params_active_expected or details.file.params_expected
    assert count_active_parameters(details.spec) == expected


@pytest.mark.parametrize("name", list_models())
def test_count_is_the_sum_of_the_parts(name: str) -> None:
    model = load_model(name)
    experts = model.moe.num_experts if model.moe else 0
    total = model.extra_params
    for parts in (embedding_params(model), final_norm_params(model), head_params(model)):
        total += sum(int(part.total) for part in parts.values())
    for kind, number in layer_counts(model).items():
        for part_name, part in layer_params(model, kind).items():
            copies = experts if part_name.startswith("routed_expert") else 1
            total += number * copies * int(part.total)
    assert total == count_parameters(model)


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


def test_llama3_8b_by_hand() -> None:
    # embedding and head  2 * 128256 * 4096              = 1,050,673,152
    # per layer: qkv      (32 + 8 + 8) * 128 * 4096      =    25,165,824
    #            output   4096 * 4096                    =    16,777,216
    #            up       2 * 14336 * 4096               =   117,440,512
    #            down     4096 * 14336                   =    58,720,256
    #            norms    2 * 4096                       =         8,192
    #            sum                                     =   218,112,000   times 32 = 6,979,584,000
    # final norm                                         =         4,096
    model = load_model("llama3-8b")
    assert sum(int(part.total) for part in layer_params(model).values()) == 218_112_000
    assert count_parameters(model) == 8_030_261_248


def test_deepseek_v3_latent_attention_by_hand() -> None:
    # query_down 1536 * 7168, query_up 128 * (128 + 64) * 1536, kv_down (512 + 64) * 7168,
    # kv_up 128 * (128 + 128) * 512, output 7168 * 128 * 128
    weights = {
        name: int(part.weights)
        for name, part in attention_params(load_model("deepseek-v3")).items()
        if part.weights
    }
    assert weights == {
        "query_down": 11_010_048,
        "query_down_norm": 1536,
        "query_up": 37_748_736,
        "kv_down": 4_128_768,
        "kv_down_norm": 512,
        "kv_up": 16_777_216,
        "attention_output": 117_440_512,
    }


def test_gpt_oss_counts_router_and_expert_biases() -> None:
    # d = 2880, 32 experts of width 2880: gate and up 2 * 2880 rows, each with a bias
    parts = moe_params(load_model("gpt-oss-20b"))
    assert (int(parts["router"].weights), int(parts["router"].biases)) == (32 * 2880, 32)
    assert int(parts["routed_expert_up"].biases) == 5760
    assert int(parts["routed_expert_down"].biases) == 2880
    assert int(parts["shared_expert_up"].total) == 0


def test_llama4_maverick_alternates_dense_and_mixture_layers() -> None:
    assert layer_counts(load_model("llama4-maverick-17b-128e")) == {
        "dense": 24,
        "moe": 24,
        "cross": 0,
    }


def test_t5_decoder_layers_add_cross_attention_and_a_norm() -> None:
    # 128 heads of 128 on d = 1024: 4 * 1024 * 16384 = 67,108,864, and a gain of 1024
    model = load_model("t5-11b")
    extra = sum(int(part.total) for part in layer_params(model, "cross").values())
    plain = sum(int(part.total) for part in layer_params(model, "dense").values())
    assert extra - plain == 67_108_864 + 1024
    assert int(final_norm_params(model)["final_norm"].total) == 2 * 1024


@pytest.mark.parametrize(("name", "gains"), [("qwen3-8b", 128), ("olmo-2-7b", 4096)])
def test_qk_norm_has_one_gain_per_head_dim_or_per_query_and_key_width(
    name: str, gains: int
) -> None:
    parts = attention_params(load_model(name))
    assert (int(parts["query_norm"].total), int(parts["key_norm"].total)) == (gains, gains)


def test_layernorm_without_shift_counts_gains_only() -> None:
    model = load_model("gpt2-small")
    bare = replace(model, biases=replace(model.biases, norm=False))
    assert int(norm_params(model).total) == 4 * 768
    assert int(norm_params(bare).total) == 2 * 768


def test_tied_head_keeps_only_its_bias() -> None:
    model = load_model("gpt2-small")
    assert int(head_params(model)["lm_head"].total) == 0
    biased = replace(model, biases=Biases(lm_head=True))
    assert int(head_params(biased)["lm_head"].total) == 50257


def test_tensor_parallel_rank_holds_its_share() -> None:
    tp = np.array([1, 2, 8, 16])
    model = load_model("llama3-8b")
    # 32 heads, 8 key/value heads: 48 rows of 128, of which tp 16 leaves 3
    rows = np.array([48, 24, 6, 3]) * 128
    np.testing.assert_array_equal(attention_params(model, tp)["qkv"].weights, rows * 4096)
    np.testing.assert_array_equal(mlp_params(model, tp)["mlp_down"].weights, 58_720_256 // tp)
    np.testing.assert_array_equal(
        embedding_params(model, tp)["token_embedding"].weights, 128_256 // tp * 4096
    )


def test_row_split_matrices_keep_their_whole_bias() -> None:
    model = load_model("gpt2-small")
    up, down = (mlp_params(model, 4)[name].biases for name in ("mlp_up", "mlp_down"))
    assert (int(up), int(down)) == (3072 // 4, 768)


def classic_gpt_parameters(vocab_size: int, hidden_size: int, num_layers: int) -> int:
    """V·d + L·(12d² + 5d), the textbook count of a GPT without attention biases.

    12d²: query, key, value and output projections (4d²) and an MLP of width 4d (8d²).
    5d: the MLP biases, 4d on the way up and d on the way down.
    """
    return vocab_size * hidden_size + num_layers * (12 * hidden_size**2 + 5 * hidden_size)


def test_classic_formula_gives_gpt3_about_175_billion() -> None:
    # 50257 * 12288 + 96 * (12 * 12288^2 + 5 * 12288) = 174,569,631,744
    count = classic_gpt_parameters(50257, 12288, 96)
    assert count == 174_569_631_744
    assert count == pytest.approx(175e9, rel=0.003)


def test_classic_formula_leaves_out_attention_biases_norms_and_positions() -> None:
    model: ModelSpec = load_model("gpt3-175b")
    d, num_layers = model.hidden_size, model.num_layers
    left_out = num_layers * (4 * d + 4 * d) + 2 * d + 2048 * d
    classic = classic_gpt_parameters(50257, d, num_layers)
    assert count_parameters(model) == classic + left_out
