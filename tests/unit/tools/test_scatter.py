"""What scatter leaves of an order."""

import pytest

from tools.scatter import tau_of_exact_times


def test_exact_measurements_have_the_order_of_exact_times() -> None:
    assert tau_of_exact_times([[3.0, 1.0, 2.0], [1.0, 2.0]], 0.0) == 1.0


def test_two_times_one_deviation_apart_change_places_in_a_quarter_of_the_draws() -> None:
    """P(z > 1 / sqrt 2) = 0.24: τ of 1 - 2 · 0.24."""
    assert tau_of_exact_times([[1.0, 1.01]], 0.01) == pytest.approx(0.52, abs=0.08)


def test_more_scatter_leaves_less() -> None:
    group = [[1.0, 1.02, 1.05, 1.1]]
    left = [tau_of_exact_times(group, scatter) for scatter in (0.0, 0.01, 0.03, 0.1)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.5 < left[1]
