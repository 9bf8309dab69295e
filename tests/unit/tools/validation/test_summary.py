"""Errors and orders on small examples worked by hand."""

import numpy as np
import pytest

from tools.validation.summary import kendall_tau, regret, summarize, weighted_quantile


def test_summarize() -> None:
    errors = summarize([0.1, -0.3, 0.2])
    assert errors.n == 3
    assert errors.mape == pytest.approx(0.2)
    assert errors.median_ape == pytest.approx(0.2)
    assert errors.bias == pytest.approx(0.0)


def test_summarize_nothing() -> None:
    assert summarize([]).mape is None


def test_kendall_tau() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert kendall_tau([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
    assert kendall_tau([1, 2, 3], [10, 30, 20]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert kendall_tau([1, 1], [1, 2]) == 0.0


def test_regret() -> None:
    assert regret([1.0, 2.0], [11.0, 10.0]) == pytest.approx(0.1)
    assert regret([2.0, 1.0], [11.0, 10.0]) == 0.0


def test_quantiles_follow_the_weights() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    assert [weighted_quantile(values, weights, share) for share in (0.25, 0.5, 0.8, 1.0)] == [
        1.0,
        2.0,
        3.0,
        3.0,
    ]
