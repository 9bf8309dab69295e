"""Measured fits: which line counts, and which number of ranks."""

import numpy as np
import pytest

from planner.collectives.cost import fitted_s
from planner.spec.cluster import CollectiveFit

FITS = (
    CollectiveFit(
        num_ranks=8,
        latency_s=(10e-6, 40e-6),
        busbw_bytes_per_s=(50e9, 200e9),
        switch_bytes=(1e6,),
    ),
    CollectiveFit(num_ranks=2, latency_s=(4e-6,), busbw_bytes_per_s=(100e9,)),
)


def seconds(num_bytes: float, num_ranks: int, *, grows: bool = False) -> float:
    size, ranks = np.array([num_bytes]), np.array([num_ranks])
    return float(fitted_s(FITS, "all_gather", size, ranks, latency_grows=grows)[0])


def test_the_line_changes_at_the_switch_point() -> None:
    # 8 ranks, factor 7/8.
    assert seconds(999_999, 8) == pytest.approx(10e-6 + 0.875 * 999_999 / 50e9)
    assert seconds(1e6, 8) == pytest.approx(40e-6 + 0.875e6 / 200e9)


def test_a_fit_without_switch_points_has_one_line() -> None:
    assert seconds(1e9, 2) == pytest.approx(4e-6 + 0.5e9 / 100e9)


def test_other_numbers_of_ranks_take_the_next_measured_one() -> None:
    assert seconds(1e3, 4) == pytest.approx(10e-6 + 0.75e3 / 50e9)
    assert seconds(1e3, 16) == pytest.approx(10e-6 + 15 / 16 * 1e3 / 50e9)


def test_beyond_the_largest_the_latency_grows_as_it_did() -> None:
    # 6 us for 6 ranks more: 1 us per rank; 8 ranks more than 8.
    assert seconds(1e3, 16, grows=True) == pytest.approx(18e-6 + 15 / 16 * 1e3 / 50e9)
    assert seconds(1e3, 8, grows=True) == seconds(1e3, 8)


@pytest.mark.parametrize(("num_bytes", "num_ranks"), [(0.0, 8), (1e6, 1)])
def test_nothing_to_do_takes_no_time(num_bytes: float, num_ranks: int) -> None:
    assert seconds(num_bytes, num_ranks) == 0.0


def test_columns_of_sizes_and_ranks_are_their_rows() -> None:
    sizes, ranks = np.array([1e3, 1e6, 1e9, 1e9]), np.array([8, 8, 2, 4])
    together = fitted_s(FITS, "all_gather", sizes, ranks)
    assert together == pytest.approx(
        [seconds(s, int(n)) for s, n in zip(sizes, ranks, strict=True)]
    )
