"""What no collective can beat, for any size, group and link."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.collectives.algorithms import ALGORITHMS, Algorithm
from planner.collectives.cost import Link, busbw_factor
from planner.collectives.hierarchy import GroupLevel, on_levels, unsuitable
from planner.spec.cluster import CollectiveKind

SIZES = st.floats(1.0, 1e13)
RANKS, MORE = st.integers(2, 5000), st.floats(1.0, 100.0)
LINKS = st.builds(Link, latency_s=st.floats(1e-8, 1e-3), bytes_per_s=st.floats(1e6, 1e13))
IN_NETWORK = {"in-network"}  # the switch does part of the sending
CASES = [(a, kind) for a in ALGORITHMS for kind in a.flat]
IDS = [f"{a.name}-{kind}" for a, kind in CASES]


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20)
@given(num_bytes=SIZES, n=RANKS, link=LINKS)
def test_nobody_sends_less_than_the_least_in_fewer_rounds_than_information_needs(
    algorithm: Algorithm, kind: CollectiveKind, num_bytes: float, n: int, link: Link
) -> None:
    cost = algorithm.flat[kind](num_bytes, n, link)
    if algorithm.name not in IN_NETWORK:
        least = float(busbw_factor(kind, n)) * num_bytes
        assert cost.sent_bytes >= least * (1 - 1e-9)
        assert cost.time_s * (1 + 1e-9) >= least / link.bytes_per_s
        # log2 n rounds, or many messages at once.
        if algorithm.placement != "all_peers" and kind != "p2p":
            assert cost.rounds >= math.floor(math.log2(n))
    for size, ranks in ((num_bytes, 1), (0.0, n)):
        nothing = algorithm.flat[kind](size, ranks, link)
        assert nothing.time_s == nothing.rounds == nothing.sent_bytes == 0


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=IDS)
@settings(max_examples=20)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), n=RANKS, link=LINKS, more=MORE)
def test_more_bytes_and_slower_links_never_take_less_and_columns_are_their_rows(
    algorithm: Algorithm, kind: CollectiveKind, sizes: list[float], n: int, link: Link, more: float
) -> None:
    formula = algorithm.flat[kind]
    alone = [float(formula(size, n, link).time_s) for size in sizes]
    together = formula(np.array(sizes), np.full(len(sizes), n), link).time_s
    assert together == pytest.approx(alone)
    assert formula(sizes[0] * more, n, link).time_s >= alone[0] * (1 - 1e-9)
    slower = Link(latency_s=link.latency_s * more, bytes_per_s=link.bytes_per_s / more)
    assert formula(sizes[0], n, slower).time_s >= alone[0] * (1 - 1e-9)


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
@settings(max_examples=20)
@given(num_bytes=SIZES, levels=LEVELS)
def test_the_whole_lies_between_its_slowest_level_and_their_sum(
    algorithm: Algorithm, kind: CollectiveKind, num_bytes: float, levels: list[GroupLevel]
) -> None:
    if unsuitable(algorithm.name, kind, levels):
        return
    cost = on_levels(algorithm.name, kind, num_bytes, levels)
    times = [float(level.time_s) for level in cost.levels]
    total = float(cost.total.time_s)
    assert max(times) * (1 - 1e-9) <= total <= sum(times) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["ring", "double-tree"])
@settings(max_examples=50)
@given(num_bytes=SIZES, levels=LEVELS)
def test_levels_share_the_bytes_of_a_ring_or_tree_and_send_none_twice(
    name: str, num_bytes: float, levels: list[GroupLevel]
) -> None:
    n = math.prod(level.members for level in levels)
    sent = {"ring": 2 * (n - 1) / n, "double-tree": 2.0}[name] * num_bytes
    cost = on_levels(name, "all_reduce", num_bytes, levels)
    assert cost.total.sent_bytes == pytest.approx(sent)
    assert all(level.sent_bytes > 0 for level in cost.levels)
    if name == "ring":  # One over all ranks
        assert cost.total.rounds == pytest.approx(2 * (n - 1))


DIMENSIONS = st.lists(st.integers(1, 16), min_size=1, max_size=3).filter(lambda d: max(d) > 1)


@pytest.mark.parametrize("name", ["direct", "pairwise"])
@settings(max_examples=100)
@given(num_bytes=SIZES, dims=DIMENSIONS, link=LINKS)
def test_an_exchange_on_a_torus_waits_for_the_links_across_its_middle(
    name: str, num_bytes: float, dims: list[int], link: Link
) -> None:
    # Half of the ranks send half of what they have across 2 n/d links, of half B each, one way.
    n, longest = math.prod(dims), max(dims)
    rates = {"latency_s": float(link.latency_s), "bytes_per_s": float(link.bytes_per_s)}
    torus = {"topology": "torus_3d", "dims": tuple(dims), "closes": (True,) * len(dims)}
    crossing, links = n / 2 * num_bytes / 2, 2 * n / longest
    least = crossing / (links * rates["bytes_per_s"])
    level = GroupLevel(name="torus", members=n, **rates, **torus)
    cost = on_levels(name, "all_to_all", num_bytes, [level])
    assert cost.total.time_s >= least * (1 - 1e-9)
    assert cost.total.sent_bytes == pytest.approx((n - 1) / n * num_bytes)


@settings(max_examples=20)
@given(n=st.integers(64, 4096))
def test_tiny_messages_of_many_ranks_are_not_sent_to_everyone(n: int) -> None:
    level = GroupLevel(name="net", members=n, latency_s=5e-6, bytes_per_s=5e10, issue_s=1e-6)
    everyone, tree = (
        float(on_levels(name, "all_reduce", 8.0, [level]).total.time_s)
        for name in ("direct", "double-tree")
    )
    assert everyone > tree
