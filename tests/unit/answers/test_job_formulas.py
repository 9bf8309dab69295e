"""A job's formulas against simulations, published jobs and the examples in their docstrings."""

import doctest

import numpy as np
import pytest

from planner.answers import job
from planner.answers.job import (
    checkpoint_bytes,
    daly_interval_s,
    learning_rates,
    node_mtbf_s,
    time_factor,
    write_s,
    young_interval_s,
)

MIN, HOUR, DAY = 60.0, 3600.0, 86400.0


def simulated_factor(
    interval_s: float, stop_s: float, restart_s: float, mtbf_s: float, seed: int = 3
) -> float:
    """Elapsed over useful time of 20,000 segments, failure by failure.

    A segment (work and its checkpoint) is begun anew after a failure in it, and so is a restart.
    """
    draw = np.random.default_rng(seed)
    elapsed_s, num_segments = 0.0, 20_000
    for _ in range(num_segments):
        while True:
            fails_s = draw.exponential(mtbf_s)
            if fails_s >= interval_s + stop_s:
                elapsed_s += interval_s + stop_s
                break
            elapsed_s += fails_s
            while (again_s := draw.exponential(mtbf_s)) < restart_s:
                elapsed_s += again_s
            elapsed_s += restart_s
    return elapsed_s / (num_segments * interval_s)


@pytest.mark.parametrize(
    ("interval_s", "stop_s", "restart_s", "mtbf_s"),
    [
        (57 * MIN, 5 * MIN, 10 * MIN, 6 * HOUR),
        (9 * MIN, 5 * MIN, 10 * MIN, 15 * MIN),
        (4 * MIN, 3.0, 10 * MIN, 3.1 * HOUR),
        (8 * HOUR, 10 * MIN, 0.0, 24 * HOUR),
    ],
)
def test_the_cost_function_is_what_a_simulation_of_failures_gives(
    interval_s: float, stop_s: float, restart_s: float, mtbf_s: float
) -> None:
    exact = float(time_factor(interval_s, stop_s, restart_s, mtbf_s))
    assert simulated_factor(interval_s, stop_s, restart_s, mtbf_s) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("stop_s", [1.0, 60.0, 600.0, 3000.0])
def test_dalys_interval_is_within_a_thousandth_of_the_best(stop_s: float) -> None:
    mtbf_s, restart_s = 3 * HOUR, 10 * MIN
    intervals = np.geomspace(1.0, 20 * HOUR, 20_000)
    least = float(np.min(time_factor(intervals, stop_s, restart_s, mtbf_s)))
    at_daly = time_factor(daly_interval_s(stop_s, mtbf_s), stop_s, restart_s, mtbf_s)
    assert float(at_daly) < 1.001 * least


def test_youngs_interval_is_worse_where_checkpoints_take_long() -> None:
    young, daly = (
        float(time_factor(of(600.0, HOUR), 600.0, 600.0, HOUR))
        for of in (young_interval_s, daly_interval_s)
    )
    assert young > 1.001 * daly
    assert daly_interval_s(2 * HOUR, HOUR) == HOUR  # a checkpoint takes twice that


def test_the_cost_function_takes_columns_and_is_infinite_where_it_never_ends() -> None:
    factors = time_factor(np.array([MIN, HOUR, DAY]), 3.0, 600.0, 3 * HOUR)
    assert factors.shape == (3,)
    assert factors[1] == pytest.approx(float(time_factor(HOUR, 3.0, 600.0, 3 * HOUR)))
    assert np.isinf(float(time_factor(DAY, 10.0, 600.0, 1.0)))


def test_llama_3_failed_every_three_hours_and_worked_more_than_nine_tenths_of_the_time() -> None:
    # 54 d · 24 h / 419 = 3.09 h between failures of 2,048 nodes; 5.68 TB at 2 TB/s stop it for 3 s
    between_s = node_mtbf_s(8) / 2048
    assert between_s == pytest.approx(54 * 24 / 419 * HOUR)
    assert node_mtbf_s(8) == pytest.approx(node_mtbf_s(1) / 8)
    best_s = daly_interval_s(2.84, between_s)
    assert 0.90 < 1.0 / float(time_factor(best_s, 2.84, 603.0, between_s)) < 0.95


def test_a_checkpoint_of_bloom_is_2_3_tb() -> None:
    # 176.247e9 · (2 + 4 + 8) = 2.467e12 bytes = 2.24 TiB; the weights alone 329 GiB
    assert checkpoint_bytes(176.247e9, 2, 4, 8) / 2**40 == pytest.approx(2.24, abs=0.01)
    assert checkpoint_bytes(176.247e9, 2, 0, 0) / 2**30 == pytest.approx(329, rel=3e-3)


def test_writing_is_limited_by_the_file_system_or_by_the_nodes() -> None:
    assert write_s(1e12, 1e11, 4, 5e10) == 10.0
    assert write_s(1e12, 1e12, 4, 5e10) == 5.0


@pytest.mark.parametrize(
    ("num_params", "batch_tokens", "published"),
    [(7.0e9, 4e6, 3e-4), (68.5e9, 4e6, 1.5e-4), (401e9, 16e6, 8e-5)],
)
def test_the_two_laws_are_on_both_sides_of_llama_3s_learning_rates_or_near(
    num_params: float, batch_tokens: float, published: float
) -> None:
    # arXiv 2407.21783, table 3; 15.6T tokens, parameters without embeddings
    rates = learning_rates(num_params, 15.6e12, batch_tokens)
    assert 0.8 * min(rates) < published < max(rates)


def test_the_learning_rate_grows_with_the_root_of_the_batch_up_to_the_critical_one() -> None:
    small, larger = (learning_rates(7e9, 1e10, batch)[1] for batch in (1e5, 4e5))
    assert larger == pytest.approx(2 * small)
    # 22.91 · (1e10)^0.47 = 22.91 · 50,119 = 1.148e6
    assert learning_rates(7e9, 1e10, 2e6) == learning_rates(7e9, 1e10, 1.2e6)


def test_examples_of_the_docstrings_hold() -> None:
    found = doctest.testmod(job)
    assert found.attempted >= 6
    assert found.failed == 0
