"""Checkpoints' bytes and times, input, and hints of scaling laws."""

import numpy as np
import pytest

from planner.job.checkpoint import checkpoint_bytes, copy_s, write_s
from planner.job.hints import (
    at_batch,
    critical_batch_tokens,
    deepseek_batch_tokens,
    deepseek_learning_rate,
    extra_tokens_fraction,
    step_batch_tokens,
    step_learning_rate,
)
from planner.job.tokens import input_bytes_per_s, token_bytes


def test_a_checkpoint_of_bloom_is_2_3_tb() -> None:
    # 176.247e9 · (2 + 4 + 8) = 2.467e12 bytes = 2.24 TiB; the weights alone 329 GiB
    assert checkpoint_bytes(176.247e9, 2, 4, 8) / 2**40 == pytest.approx(2.24, abs=0.01)
    assert checkpoint_bytes(176.247e9, 2, 0, 0) / 2**30 == pytest.approx(329, rel=3e-3)


def test_writing_is_limited_by_the_file_system_or_by_the_nodes() -> None:
    assert float(write_s(1e12, 1e11, 4, 5e10)) == 10.0
    assert float(write_s(1e12, 1e12, 4, 5e10)) == 5.0


def test_an_asynchronous_checkpoint_stops_for_one_gpus_copy() -> None:
    assert copy_s(640e9, 8, 50e9) == pytest.approx(1.6)


def test_the_critical_batch_follows_the_data_by_its_power_law() -> None:
    tokens = np.array([1e10, 1e11])
    found = critical_batch_tokens(tokens)
    assert found[1] / found[0] == pytest.approx(10**0.47)
    # 22.91 · (1e10)^0.47 = 22.91 · 50,119
    assert found[0] == pytest.approx(22.91 * 50_119, rel=1e-4)


def test_the_critical_batch_takes_a_fifth_more_tokens_and_twice_that_two_fifths() -> None:
    assert extra_tokens_fraction(1e6, 1e6) == pytest.approx(0.2)
    assert extra_tokens_fraction(2e6, 1e6) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("num_params", "batch_tokens", "published"),
    [(7.0e9, 4e6, 3e-4), (68.5e9, 4e6, 1.5e-4), (401e9, 16e6, 8e-5)],
)
def test_the_two_laws_are_on_both_sides_of_llama_3s_learning_rates_or_near(
    num_params: float, batch_tokens: float, published: float
) -> None:
    # arXiv 2407.21783, table 3; 15.6T tokens, parameters without embeddings
    tokens, flops = 15.6e12, 6 * num_params * 15.6e12
    best = step_learning_rate(num_params, tokens)
    step = float(at_batch(best, batch_tokens, step_batch_tokens(tokens)))
    best = deepseek_learning_rate(flops)
    deepseek = float(at_batch(best, batch_tokens, deepseek_batch_tokens(flops)))
    assert 0.8 * min(step, deepseek) < published < max(step, deepseek)


def test_the_learning_rate_grows_with_the_root_of_the_batch() -> None:
    assert float(at_batch(1e-3, 4e6, 1e6)) == pytest.approx(2e-3)


def test_tokens_take_two_bytes_below_65500_words() -> None:
    assert (token_bytes(65_499), token_bytes(65_500)) == (2, 4)
    assert input_bytes_per_s(1e6, 2) == 2e6
