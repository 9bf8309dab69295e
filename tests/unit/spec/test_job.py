"""Jobs: lengths of documents (moments of the cut-off exponential, by hand), what is trained."""

import numpy as np
import pytest

from planner.spec.job import read_documents
from planner.spec.training import FULL, QUANTISED_BYTES, TARGETS, Target, Training, read_targets


def test_lengths_about_half_the_longest_are_uniform() -> None:
    documents = read_documents("packed:500", 1000)
    assert documents.attended_tokens == pytest.approx(1000 * 2 / 3, rel=1e-3)
    expected = [1000 * n / (n + 1) for n in (1, 2, 7)]
    assert documents.padded_tokens(np.array([1, 2, 7])) == pytest.approx(expected, rel=1e-3)


def test_lengths_far_below_the_longest_are_exponential() -> None:
    documents = read_documents("padded:100", 10_000)
    assert documents.attended_tokens == pytest.approx(200, rel=1e-2)
    harmonic = [100 * sum(1 / k for k in range(1, n + 1)) for n in (1, 2, 4)]
    assert documents.padded_tokens(np.array([1, 2, 4])) == pytest.approx(harmonic, rel=1e-2)


@pytest.mark.parametrize("mean", [30, 700, 4096, 7000, 8192])
def test_one_document_is_as_long_as_the_mean(mean: int) -> None:
    documents = read_documents(f"grouped:{mean}", 8192)
    assert documents.padded_tokens(np.array([1])) == pytest.approx([mean], rel=5e-3)
    assert mean <= documents.attended_tokens * 1.005 <= 8192 * 1.005


def test_documents_are_read_as_they_are_written() -> None:
    for given, text in (("grouped:700.5", "grouped:700.5"), ("700", "packed:700")):
        assert read_documents(given, 4096).text == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sorted:700", "packed:MEAN, padded:MEAN, grouped:MEAN"),
        ("packed:", "given 'packed:'"),
        ("packed:nan", "given 'packed:nan'"),
        ("packed:-1", "given 'packed:-1'"),
        ("packed:5000", "4096, which is the longest; given 5000"),
        ("packed:2", "from 8.192 tokens"),
    ],
)
def test_what_no_documents_are_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="given") as error:
        read_documents(text, 4096)
    assert says in str(error.value)


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
