"""What no collective can beat, for any size, group and link."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.collectives.algorithms import ALGORITHMS, Algorithm
from planner.collectives.cost import Link, busbw_factor
from planner.collectives.placed import GroupLevel, place, unsuitable
from planner.spec.library import Kind

SIZES = st.floats(1.0, 1e13)
RANKS = st.integers(2, 5000)
LINKS = st.builds(Link, latency_s=st.floats(1e-8, 1e-3), bytes_per_s=st.floats(1e6, 1e13))
IN_NETWORK = {"in-network"}
"""The switch does part of the sending."""
CASES = [(a, kind) for a in ALGORITHMS for kind in a.flat]
IDS = [f"{a.name}-{kind}" for a, kind in CASES]


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, n=RANKS, link=LINKS)
def test_nobody_sends_less_than_the_least(
    algorithm: Algorithm, kind: Kind, num_bytes: float, n: int, link: Link
) -> None:
    if algorithm.name in IN_NETWORK:
        return
    cost = algorithm.flat[kind](num_bytes, n, link)
    least = float(busbw_factor(kind, n)) * num_bytes
    assert cost.sent_bytes >= least * (1 - 1e-9)
    assert cost.time_s * (1 + 1e-9) >= least / link.bytes_per_s


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, n=RANKS, link=LINKS)
def test_information_needs_log2_n_rounds_or_many_messages_at_once(
    algorithm: Algorithm, kind: Kind, num_bytes: float, n: int, link: Link
) -> None:
    one_at_a_time = algorithm.placement not in ("all_peers",) and algorithm.name not in IN_NETWORK
    if one_at_a_time and kind != "p2p":
        rounds = algorithm.flat[kind](num_bytes, n, link).rounds
        assert rounds >= math.floor(math.log2(n))


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, n=RANKS, link=LINKS)
def test_one_rank_or_no_bytes_cost_nothing(
    algorithm: Algorithm, kind: Kind, num_bytes: float, n: int, link: Link
) -> None:
    for size, ranks in ((num_bytes, 1), (0.0, n)):
        cost = algorithm.flat[kind](size, ranks, link)
        assert cost.time_s == cost.rounds == cost.sent_bytes == 0


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, n=RANKS, link=LINKS, more=st.floats(1.0, 100.0))
def test_more_bytes_and_slower_links_never_take_less(
    algorithm: Algorithm, kind: Kind, num_bytes: float, n: int, link: Link, more: float
) -> None:
    formula = algorithm.flat[kind]
    base = formula(num_bytes, n, link).time_s * (1 - 1e-9)
    assert formula(num_bytes * more, n, link).time_s >= base
    slower = Link(latency_s=link.latency_s * more, bytes_per_s=link.bytes_per_s / more)
    assert formula(num_bytes, n, slower).time_s >= base


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), n=RANKS, link=LINKS)
def test_columns_are_their_rows(
    algorithm: Algorithm, kind: Kind, sizes: list[float], n: int, link: Link
) -> None:
    formula = algorithm.flat[kind]
    together = formula(np.array(sizes), np.full(len(sizes), n), link).time_s
    assert together == pytest.approx([float(formula(size, n, link).time_s) for size in sizes])


LEVELS = st.lists(
    st.builds(
        GroupLevel,
        name=st.just("level"),
        members=st.integers(2, 12),
        latency_s=st.floats(1e-7, 1e-4),
        bytes_per_s=st.floats(1e8, 1e12),
        topology=st.sampled_from(["switch", "ring", "fully_connected"]),
        reduces_in_network=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, levels=LEVELS)
def test_the_whole_lies_between_its_slowest_level_and_their_sum(
    algorithm: Algorithm, kind: Kind, num_bytes: float, levels: list[GroupLevel]
) -> None:
    if unsuitable(algorithm.name, kind, levels):
        return
    cost = place(algorithm.name, kind, num_bytes, levels)
    times = [float(level.time_s) for level in cost.levels]
    total = float(cost.total.time_s)
    assert max(times) * (1 - 1e-9) <= total <= sum(times) * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(num_bytes=SIZES, levels=LEVELS)
def test_the_rounds_of_a_ring_are_those_of_one_ring_over_all_ranks(
    num_bytes: float, levels: list[GroupLevel]
) -> None:
    n = math.prod(level.members for level in levels)
    cost = place("ring", "all_reduce", num_bytes, levels)
    assert cost.total.rounds == pytest.approx(2 * (n - 1))
    assert cost.levels[0].sent_bytes == pytest.approx(2 * (n - 1) / n * num_bytes)
