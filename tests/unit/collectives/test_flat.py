"""Worked numbers of single formulas, by hand."""

import math

import numpy as np
import pytest

from planner.collectives.cost import CollectiveCost, Link
from planner.collectives.flat import (
    binomial_broadcast,
    bruck_all_to_all,
    chain_broadcast,
    direct_exchange,
    double_tree_all_reduce,
    double_tree_broadcast,
    grid_collective,
    nvls_all_gather,
    nvls_all_reduce,
    nvls_reduce_scatter,
    pairwise_all_to_all,
    ring_all_reduce,
    scatter_all_gather_broadcast,
    send,
    sharp_all_reduce,
)

LINK = Link(latency_s=5e-6, bytes_per_s=100e9)
MB = 1e6


def test_ring_broadcasts_over_columns() -> None:
    times = ring_all_reduce(np.array([MB, 2 * MB]), np.array([2, 8]), LINK).time_s
    assert times == pytest.approx([10e-6 + 10e-6, 70e-6 + 35e-6])


@pytest.mark.parametrize(
    ("cost", "rounds", "sent"),
    [
        (chain_broadcast(MB, 8, LINK), 7, 1e6),
        (binomial_broadcast(MB, 8, LINK), 3, 3e6),
        (binomial_broadcast(MB, 5, LINK), 3, 3e6),
        (scatter_all_gather_broadcast(MB, 8, LINK), 10, 1.75e6),
        (double_tree_broadcast(MB, 8, LINK), 3, 1e6),
        (double_tree_all_reduce(MB, 8, LINK), 6, 2e6),
        (direct_exchange(MB, 8, LINK), 1, 0.875e6),
        (pairwise_all_to_all(MB, 8, LINK), 7, 0.875e6),
        (bruck_all_to_all(MB, 8, LINK), 3, 1.5e6),
        (send(MB, 2, LINK), 1, 1e6),
        (nvls_all_reduce(MB, 8, LINK), 2, 1.125e6),
        (nvls_reduce_scatter(MB, 8, LINK), 1, 1e6),
        (sharp_all_reduce(MB, 8, LINK), 2, 1e6),
    ],
)
def test_rounds_bytes_and_their_time(cost: CollectiveCost, rounds: int, sent: float) -> None:
    assert cost.rounds == rounds
    assert cost.sent_bytes == pytest.approx(sent)
    assert cost.time_s == pytest.approx(rounds * 5e-6 + sent / 100e9)


def test_an_in_network_all_gather_sends_a_part_but_waits_for_the_rest() -> None:
    cost = nvls_all_gather(MB, 8, LINK)
    assert cost.sent_bytes == pytest.approx(MB / 8)
    assert cost.time_s == pytest.approx(5e-6 + 0.875e6 / 100e9)


@pytest.mark.parametrize(
    ("dims", "wraps", "rounds", "seconds"),
    [
        # 4x4: 12 rounds; 2 * 15/16 S over two dimensions at once; a mesh takes twice as long.
        ((4, 4), True, 12, 60e-6 + 2 * 15 / 16 * MB / 200e9),
        ((4, 4), False, 12, 120e-6 + 4 * 15 / 16 * MB / 200e9),
        ((4, 4, 4), True, 18, 90e-6 + 2 * 63 / 64 * MB / 300e9),
        # 4x2, half of S each way. Step 1: max(3/4, 1/2) S/2; step 2: max(1/2/4, 3/4/2) S/2.
        ((4, 2), True, 8, 8 * 5e-6 + 2 * (0.75 + 0.375) / 2 * MB / 100e9),
        # One long dimension is a ring.
        ((1, 8, 1), True, 14, 14 * 5e-6 + 2 * 7 / 8 * MB / 100e9),
        ((1, 1), True, 0, 0.0),
    ],
)
def test_all_reduces_on_a_torus_by_hand(
    dims: tuple[int, ...], wraps: bool, rounds: int, seconds: float
) -> None:
    cost = grid_collective("all_reduce", MB, dims, LINK, wraps=wraps)
    n = math.prod(dims)
    assert (cost.rounds, cost.sent_bytes) == pytest.approx((rounds, 2 * (n - 1) / n * MB))
    assert cost.time_s == pytest.approx(seconds)
