"""Servers, order of buckets and compression, by hand and by the figures of their papers."""

import numpy as np
import pytest

from planner.collectives.algorithms import (
    exposed_by_priority_s,
    exposed_in_order_s,
    int8_all_gather,
    parameter_server_all_reduce,
    top_k_all_gather,
)
from planner.collectives.cost import Link
from planner.collectives.flat import ring_all_reduce

LINK = Link(latency_s=5e-6, bytes_per_s=100e9)
MB = 1e6


def test_parameter_servers_by_hand() -> None:
    # 4 workers, 1 server: in 4 S, out 4 S; 2 * 5 us + 8e6/100e9 = 90 us for S = 1 MB.
    one = parameter_server_all_reduce(MB, 4, LINK)
    assert one.time_s == pytest.approx(90e-6)
    assert one.sent_bytes == pytest.approx(4e6)
    # 4 servers take 1 S each; 16 are idle behind the workers' own links.
    assert parameter_server_all_reduce(MB, 4, LINK, 4).time_s == pytest.approx(30e-6)
    assert parameter_server_all_reduce(MB, 4, LINK, 16).time_s == pytest.approx(30e-6)


def test_priority_widens_the_window_by_the_next_forward() -> None:
    assert exposed_in_order_s(10.0, 4.0, 0.1) == pytest.approx(10.0 - 0.9 * 4.0)
    assert exposed_by_priority_s(10.0, 4.0, 2.0, 0.1) == pytest.approx(10.0 - 0.9 * 6.0)
    assert exposed_by_priority_s(3.0, 4.0, 2.0, 0.1) == pytest.approx(0.3)


@pytest.mark.parametrize("reduce_s", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
def test_priority_never_shows_more_than_sending_in_order(reduce_s: float, fraction: float) -> None:
    in_order = exposed_in_order_s(reduce_s, 2.0, fraction)
    assert exposed_by_priority_s(reduce_s, 2.0, 1.0, fraction) <= in_order


def test_top_k_sends_values_and_indices_to_every_rank() -> None:
    sent = top_k_all_gather(4 * MB, 32, LINK, density=0.01).sent_bytes
    assert sent == pytest.approx(31 * 0.01 * 8 * MB)
    # Two workers: 270 to 600 times less (arXiv 1712.01887, abstract), at a thousandth of them.
    compressed = top_k_all_gather(4 * MB, 2, LINK, density=0.001)
    assert ring_all_reduce(4 * MB, 2, LINK).sent_bytes / compressed.sent_bytes == pytest.approx(500)


def test_gathers_in_8_bits_lose_against_an_all_reduce_on_many_ranks() -> None:
    num_ranks = np.array([4, 32])
    compressed = int8_all_gather(4 * MB, num_ranks, LINK)
    plain = ring_all_reduce(4 * MB, num_ranks, LINK)
    assert compressed.sent_bytes == pytest.approx([3 * MB, 31 * MB])
    assert list(compressed.sent_bytes < plain.sent_bytes) == [True, False]
    assert compressed.time_s[0] == pytest.approx(3 * 5e-6 + 3 * MB / 100e9)
