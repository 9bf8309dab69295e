"""Formulas against ranks that really pass pieces: result, rounds, bytes, time."""

from collections.abc import Callable
from dataclasses import replace

import played_collectives as sim
import pytest

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
from planner.collectives.hierarchy import GroupLevel, on_levels

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
