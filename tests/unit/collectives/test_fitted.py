"""Measured fits: which line counts, and which number of ranks."""

import numpy as np
import pytest

from planner.collectives.cost import fitted_s
from planner.spec.cluster import CollectiveFit

RATES = {"busbw_bytes_per_s": (50e9, 200e9), "switch_bytes": (1e6,)}
FITS = (
    CollectiveFit(num_ranks=8, latency_s=(10e-6, 40e-6), **RATES),
    CollectiveFit(num_ranks=2, latency_s=(4e-6,), busbw_bytes_per_s=(100e9,)),
)


def seconds(num_bytes: float, num_ranks: int, *, grows: bool = False) -> float:
    size, ranks = np.array([num_bytes]), np.array([num_ranks])
    return float(fitted_s(FITS, "all_gather", size, ranks, latency_grows=grows)[0])


@pytest.mark.parametrize(
    ("num_bytes", "num_ranks", "grows", "expected"),
    [
        # 8 ranks, factor 7/8: the line changes at the switch point.
        (999_999, 8, False, 10e-6 + 0.875 * 999_999 / 50e9),
        (1e6, 8, False, 40e-6 + 0.875e6 / 200e9),
        (1e9, 2, False, 4e-6 + 0.5e9 / 100e9),
        # Other numbers of ranks take the next measured one.
        (1e3, 4, False, 10e-6 + 0.75e3 / 50e9),
        (1e3, 16, False, 10e-6 + 15 / 16 * 1e3 / 50e9),
        # The latency grows 6 us for 6 ranks more: 1 us per rank; 8 ranks more than 8.
        (1e3, 16, True, 18e-6 + 15 / 16 * 1e3 / 50e9),
        (1e3, 8, True, 10e-6 + 0.875e3 / 50e9),
        (0.0, 8, False, 0.0),
        (1e6, 1, False, 0.0),
    ],
)
def test_a_fit_is_its_line_for_so_many_ranks(
    num_bytes: float, num_ranks: int, grows: bool, expected: float
) -> None:
    assert seconds(num_bytes, num_ranks, grows=grows) == pytest.approx(expected)


def test_columns_of_sizes_and_ranks_are_their_rows() -> None:
    sizes, ranks = np.array([1e3, 1e6, 1e9, 1e9]), np.array([8, 8, 2, 4])
    alone = [seconds(size, int(number)) for size, number in zip(sizes, ranks, strict=True)]
    assert fitted_s(FITS, "all_gather", sizes, ranks) == pytest.approx(alone)
