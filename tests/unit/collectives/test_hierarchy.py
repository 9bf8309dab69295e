"""Algorithms on levels: shares, totals, bottleneck."""

from collections.abc import Callable
from dataclasses import replace

import played_collectives as sim
import pytest

from planner.collectives.algorithms import ALGORITHMS, BY_NAME
from planner.collectives.cost import Flat, Link
from planner.collectives.flat import (
    butterfly_all_reduce,
    direct_all_reduce,
    halving_doubling_all_reduce,
    naive_all_reduce,
    rabenseifner_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from planner.collectives.hierarchy import GroupLevel, on_levels, unsuitable

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
LINK = Link(latency_s=5.0, bytes_per_s=2.0)
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
    cost = formula(float(LENGTH), n, LINK)
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
