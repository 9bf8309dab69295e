"""Formulas of collectives, measured fits and levels, by hand and against ranks that pass pieces."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import played_collectives as sim
import pytest

from planner.collectives.algorithms import (
    ALGORITHMS,
    BY_NAME,
    exposed_by_priority_s,
    exposed_in_order_s,
    int8_all_gather,
    parameter_server_all_reduce,
    top_k_all_gather,
)
from planner.collectives.cost import CollectiveCost, Flat, Link, fitted_s
from planner.collectives.flat import (
    binomial_broadcast,
    bruck_all_to_all,
    butterfly_all_reduce,
    chain_broadcast,
    direct_all_reduce,
    direct_exchange,
    double_tree_all_reduce,
    double_tree_broadcast,
    grid_collective,
    halving_doubling_all_reduce,
    naive_all_reduce,
    nvls_all_gather,
    nvls_all_reduce,
    nvls_reduce_scatter,
    pairwise_all_to_all,
    rabenseifner_all_reduce,
    ring_all_reduce,
    scatter_all_gather_broadcast,
    send,
    sharp_all_reduce,
    tree_all_reduce,
)
from planner.collectives.hierarchy import GroupLevel, on_levels, unsuitable
from planner.spec.cluster import CollectiveFit

LINK = Link(latency_s=5e-6, bytes_per_s=100e9)
MB = 1e6


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


NODE = GroupLevel(
    name="node", members=8, latency_s=2e-6, bytes_per_s=400e9, reduces_in_network=True
)
SPINE = GroupLevel(name="spine", members=4, latency_s=5e-6, bytes_per_s=50e9)
CASES = [(a.name, kind) for a in ALGORITHMS for kind in a.flat]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_one_level_is_the_flat_formula(name: str, kind: str) -> None:
    which = ("ring", "all_reduce") if name == "leader" else (name, kind)
    flat = BY_NAME[which[0]].flat[which[1]](1e9, 8, NODE.link)
    cost = on_levels(name, kind, 1e9, (NODE,)).total
    assert cost.time_s == pytest.approx(flat.time_s)
    assert cost.rounds == pytest.approx(flat.rounds)
    assert cost.sent_bytes == pytest.approx(flat.sent_bytes)
    # A level with one unit adds nothing.
    alone = on_levels(name, kind, 1e9, (NODE, replace(SPINE, members=1)))
    assert alone.total.time_s == pytest.approx(flat.time_s)


def test_a_ring_passes_all_ports_of_a_node_by_hand() -> None:
    # 32 ranks. Node: 2 * 7 * 4 rounds, 62/32 S at 400 GB/s. Spine: 2 * 3 rounds, a port has 1/8.
    cost = on_levels("ring", "all_reduce", 1e9, (NODE, SPINE))
    node, spine = cost.levels
    assert (node.rounds, spine.rounds) == (56, 6)
    assert spine.sent_bytes == pytest.approx(62 / 32 * 1e9 / 8)
    slowest = max(62 / 32 * 1e9 / 400e9, 62 / 32 * 1e9 / 8 / 50e9)
    assert cost.total.time_s == pytest.approx(56 * 2e-6 + 6 * 5e-6 + slowest)
    assert node.sent_bytes == pytest.approx(62 / 32 * 1e9 * 7 / 8)
    assert cost.total.sent_bytes == pytest.approx(62 / 32 * 1e9)


def test_a_hierarchy_runs_level_by_level_by_hand() -> None:
    cost = on_levels("hierarchical", "all_reduce", 1e9, (NODE, SPINE))
    node = 14 * 2e-6 + 1.75 * 1e9 / 400e9
    spine = 6 * 5e-6 + 1.5 * 1e9 / 8 / 50e9
    assert [float(level.time_s) for level in cost.levels] == pytest.approx([node, spine])
    assert cost.total.time_s == pytest.approx(node + spine)
    assert cost.bottleneck == "node"


def test_chunks_keep_all_levels_busy_by_hand() -> None:
    cost = on_levels("multi-dimensional", "all_reduce", 1e9, (NODE, SPINE))
    waits = 6 * 2e-6 + 4 * 5e-6
    assert cost.total.time_s == pytest.approx(waits + max(1.75e9 / 400e9, 1.5e9 / 8 / 50e9))


def test_direct_uses_all_levels_at_once_and_each_for_its_peers() -> None:
    cost = on_levels("direct", "all_to_all", 1e9, (NODE, SPINE))
    sent = [float(level.sent_bytes) for level in cost.levels]
    assert sent == pytest.approx([7 / 32 * 1e9, 24 / 32 * 1e9])
    assert cost.total.time_s == pytest.approx(5e-6 + 24 / 32 * 1e9 / 50e9)
    # Leaders carry the whole vector across.
    cost = on_levels("leader", "all_reduce", 1e9, (NODE, SPINE))
    assert cost.levels[1].sent_bytes == pytest.approx(1.5e9)
    assert cost.bottleneck == "spine"


def test_multi_dimensional_takes_what_suits_each_topology() -> None:
    full, ring = replace(NODE, topology="fully_connected"), replace(SPINE, topology="ring")
    torus = replace(NODE, topology="torus_2d", dims=(4, 2), closes=(True, True))
    for levels, rounds in (((full, ring), [2, 6]), ((torus,), [8])):
        cost = on_levels("multi-dimensional", "all_reduce", 1e9, levels)
        assert [float(level.rounds) for level in cost.levels] == rounds


def test_partners_are_messaged_one_after_the_other() -> None:
    # 7 partners in the node, 24 beyond it, started 0.1 and 1 us apart: 5 + 23 us, twice.
    levels = (replace(NODE, issue_s=1e-7), replace(SPINE, issue_s=1e-6))
    cost = on_levels("direct", "all_reduce", 1e-3, levels)
    assert cost.total.time_s == pytest.approx(56e-6)
    assert cost.levels[0].time_s == pytest.approx(2 * (2e-6 + 6e-7))


def test_an_exchange_on_a_torus_by_hand() -> None:
    # 4 x 8 closed: a byte travels 8/4 = 2 links of 400 GB/s; the farthest is 3 + 7 hops away.
    dims, closes = (4, 8), (True, True)
    torus = replace(NODE, members=32, topology="torus_2d", dims=dims, closes=closes)
    cost = on_levels("direct", "all_to_all", 1e9, (torus,))
    assert cost.total.time_s == pytest.approx(10 * 2e-6 + 2 * 1e9 / 400e9)
    mesh = replace(torus, closes=(False, False))
    cost = on_levels("direct", "all_reduce", 1e9, (mesh,))
    assert cost.total.time_s == pytest.approx(2 * (10 * 2e-6 + 4 * 1e9 / 400e9))


def test_in_network_adds_where_switches_can_and_trees_join_them() -> None:
    # 64 domains: 12 rounds up and down the tree, not 126 round a ring.
    many, adding = replace(SPINE, members=64), replace(SPINE, reduces_in_network=True)
    for across, rounds, sent in ((SPINE, 4, 1.5), (many, 12, 2 * 63 / 64), (adding, 2, 1.0)):
        node, spine = on_levels("in-network", "all_reduce", 1e9, (NODE, across)).levels
        assert (node.rounds, spine.rounds) == (2, rounds)
        assert node.sent_bytes == pytest.approx(9 / 8 * 1e9)
        assert spine.sent_bytes == pytest.approx(sent * 1e9 / 8)


def test_what_an_algorithm_cannot_do_is_said() -> None:
    assert "does no all-to-all; allowed are direct" in unsuitable("ring", "all_to_all", (NODE,))
    assert "switches reduce" in unsuitable("in-network", "all_reduce", (SPINE,))
    assert not unsuitable("in-network", "all_reduce", (NODE, SPINE))


LENGTH = 27720  # Divides by 1 to 12
SLOW_LINK = Link(latency_s=5.0, bytes_per_s=2.0)
PLAYED: dict[str, tuple[Callable[[int, int], sim.Machine], Flat]] = {
    "ring": (sim.ring, ring_all_reduce),
    "tree": (sim.tree, tree_all_reduce),
    "halving-doubling": (sim.halving_doubling, halving_doubling_all_reduce),
    "rabenseifner": (sim.rabenseifner, rabenseifner_all_reduce),
    "butterfly": (sim.butterfly, butterfly_all_reduce),
    "direct": (sim.direct, direct_all_reduce),
    "naive": (sim.naive, naive_all_reduce),
}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 11, 12])
@pytest.mark.parametrize("name", PLAYED)
def test_formula_is_what_happens(name: str, n: int) -> None:
    play, formula = PLAYED[name]
    machine = play(n, LENGTH)
    assert machine.is_reduced
    cost = formula(float(LENGTH), n, SLOW_LINK)
    assert cost.rounds == machine.rounds
    assert cost.sent_bytes == pytest.approx(machine.busiest)
    path = machine.rounds * 5.0 + machine.path_elements / 2.0
    assert cost.time_s == pytest.approx(path)


@pytest.mark.parametrize(("inner", "outer"), [(2, 2), (4, 3), (6, 2), (1, 4), (4, 1)])
def test_hierarchy_is_what_happens(inner: int, outer: int) -> None:
    machine = sim.hierarchical(inner, outer, LENGTH)
    assert machine.is_reduced
    level = GroupLevel(name="inside", members=inner, latency_s=5.0, bytes_per_s=2.0)
    levels = [level, replace(level, name="across", members=outer)]
    cost = on_levels("hierarchical", "all_reduce", float(LENGTH), levels).total
    assert cost.rounds == machine.rounds
    assert cost.sent_bytes == pytest.approx(machine.busiest)
    assert cost.time_s == pytest.approx(machine.rounds * 5.0 + machine.path_elements / 2.0)
