"""Fits of logarithms with priors, and lines of collectives."""

import numpy as np
import pytest

from planner.calibrate.lines import line_of
from planner.calibrate.ridge import ridge
from planner.units import Array

SIZES = np.array([2.0**power for power in range(12, 30, 2)])


def straight(values: Array) -> Array:
    seconds: Array = values[0] + SIZES / values[1]
    return seconds


def test_a_formula_gives_its_figures_back() -> None:
    fit = ridge(straight, straight(np.array([3e-5, 2e9])), np.array([1e-4, 1e9]), np.full(2, 3.0))
    assert fit.values == pytest.approx([3e-5, 2e9], rel=1e-3)
    assert fit.error == 0.01


def test_a_narrow_prior_holds_and_no_figure_is_surer_than_its_points() -> None:
    measured = straight(np.array([3e-5, 2e9]))
    held = ridge(straight, measured, np.array([3e-5, 1e9]), np.array([3.0, 1e-4]))
    assert held.values[1] == pytest.approx(1e9, rel=0.01)
    noisy = measured * np.exp(0.2 * np.cos(np.arange(len(SIZES)) * 2.0))
    open_ = ridge(straight, noisy, np.array([1e-4, 1e9]), np.full(2, 3.0))
    assert open_.error > 0.1
    assert open_.deviations[1] > held.deviations[1]


def test_a_line_of_one_regime_stays_one() -> None:
    line = line_of(SIZES, SIZES, straight(np.array([3e-5, 2e9])))
    assert line.switch_bytes == ()
    assert line.latency_s[0] == pytest.approx(3e-5, rel=0.01)
    assert line.bytes_per_s[0] == pytest.approx(2e9, rel=0.01)


def test_two_protocols_are_two_regimes_that_switch_between_their_points() -> None:
    seconds = np.where(SIZES < 2**20, 1e-5 + SIZES / 0.5e9, 2e-4 + SIZES / 8e9)
    line = line_of(SIZES, SIZES, seconds)
    assert line.bytes_per_s == pytest.approx((0.5e9, 8e9), rel=0.05)
    assert 2**18 < line.switch_bytes[0] < 2**20
    assert line.error < 0.05


def test_one_point_is_a_line() -> None:
    line = line_of([2.0**20], [2.0**20], [1e-3])
    assert line.num_points == 1
    assert line.latency_s[0] + 2.0**20 / line.bytes_per_s[0] == pytest.approx(1e-3, rel=0.5)
