"""What is trained: words for projections, and bytes of a weight in 4 bits."""

import pytest

from planner.spec.training import FULL, QUANTISED_BYTES, TARGETS, Target, Training, read_targets


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("all-linear", TARGETS),
        ("attention", ("q", "k", "v", "o")),
        ("mlp,q", ("q", "gate", "up", "down")),
        ("v_proj, q_proj", ("q", "v")),
        ("c_attn,attn.c_proj,mlp.c_proj", ("q", "k", "v", "o", "down")),
        ("query_key_value,dense_h_to_4h", ("q", "k", "v", "up")),
        ("model.mlp.gate_up_proj", ("gate", "up")),
        ("linear_qkv,linear_proj,lm_head", ("q", "k", "v", "o", "head")),
        ("w1,w3,w2", ("gate", "up", "down")),
        ("linear_attn.in_proj_qkv,out_proj", ("in_proj_qkv", "out_proj")),
        ("mlp.experts.down_proj, q", ("q", "expert_down")),
    ],
)
def test_targets_are_groups_names_and_the_names_of_modules(
    text: str, targets: tuple[Target, ...]
) -> None:
    assert read_targets(text) == targets


@pytest.mark.parametrize("word", ["w9", "layers.7.q_proj"])
def test_an_unknown_target_is_refused_with_what_is_allowed(word: str) -> None:
    with pytest.raises(ValueError, match=f"unknown target '{word}'; allowed are all-linear, "):
        read_targets(f"q,{word}")


def test_a_weight_in_4_bits_takes_half_a_byte_and_its_share_of_scales() -> None:
    # One byte per 64 weights, four per 64 * 256: 0.127 bits, as arXiv 2305.14314 section 3 says.
    assert pytest.approx(0.127, abs=0.0005) == (QUANTISED_BYTES - 0.5) * 8


def test_what_is_trained_in_words_options_and_keys() -> None:
    some = Training(mode="qlora", rank=8, targets=("q", "v"))
    assert some.words == "qlora of rank 8 on q,v"
    assert some.options == ("--train", "qlora", "--lora-rank", "8", "--lora-targets", "q,v")
    assert some.inputs == {"train": "qlora", "lora_rank": 8, "lora_targets": ["q", "v"]}
    ends = Training(mode="lora", rank=8, targets=(*TARGETS, "embedding"))
    assert ends.words == "lora of rank 8 on all-linear,embedding"
    assert Training(mode="lora", targets=("q", "out_proj")).without_mixers.targets == ("q", "o")
    parts = Training(mode="lora", rank=8, targets=(*TARGETS[:5], "expert_up", "expert_down"))
    assert parts.words == "lora of rank 8 on attention,experts,gate"
    assert (FULL.words, FULL.suffix, FULL.options, FULL.inputs) == ("full", "", (), {})
