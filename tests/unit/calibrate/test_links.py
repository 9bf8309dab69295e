"""Collectives by size: latency and rate, in one regime or two."""

import numpy as np
import pytest

from planner.calibrate.machine import alpha_beta_fit

SIZES = np.array([2.0**power for power in range(12, 30, 2)])


def test_a_line_of_one_regime_stays_one() -> None:
    line = alpha_beta_fit(SIZES, SIZES, 3e-5 + SIZES / 2e9)
    assert line.switch_bytes == ()
    assert line.latency_s[0] == pytest.approx(3e-5, rel=0.01)
    assert line.bytes_per_s[0] == pytest.approx(2e9, rel=0.01)


def test_two_protocols_are_two_regimes_that_switch_between_their_points() -> None:
    seconds = np.where(SIZES < 2**20, 1e-5 + SIZES / 0.5e9, 2e-4 + SIZES / 8e9)
    line = alpha_beta_fit(SIZES, SIZES, seconds)
    assert line.bytes_per_s == pytest.approx((0.5e9, 8e9), rel=0.05)
    assert 2**18 < line.switch_bytes[0] < 2**20
    assert line.error < 0.05


def test_one_point_is_a_line() -> None:
    line = alpha_beta_fit(np.array([2.0**20]), np.array([2.0**20]), [1e-3])
    assert line.num_points == 1
    assert line.latency_s[0] + 2.0**20 / line.bytes_per_s[0] == pytest.approx(1e-3, rel=0.5)
