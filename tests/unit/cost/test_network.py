"""Collective times against the alpha-beta formulas written out."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from contexts import context_of, of_levels

from planner.collectives.flat import ring_s, tree_all_reduce_s
from planner.cost.network import (
    broadcasts_s,
    collective_s,
    domain_bytes_per_s,
    domain_s,
    fabric_bytes_per_s,
    point_to_point_s,
)
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec, Collective, CollectiveFit, LevelSpec

COLLECTIVES = get_args(Collective)
ALPHA, BETA = 5e-6, 100e9


@pytest.fixture
def plain() -> ClusterSpec:
    """4 nodes of 8: no measured fits; 200 GB/s inside at 2 us, 25 GB/s per port at 10 us."""
    machines = context_of(cluster="4xdgx-h100").cluster
    inside = {"bytes_per_s": 250e9, "efficiency_fraction": 0.8, "latency_s": 2e-6}
    across = {"bytes_per_s": 50e9, "efficiency_fraction": 0.5, "latency_s": 10e-6}
    domain, fabric = replace(machines.node.scale_up, **inside), replace(machines.fabric, **across)
    return of_levels(domain, fabric)


def group(size: int, local: int) -> Group:
    return Group(members=(np.array([local]), np.array([size])))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_a_ring_takes_n_minus_1_alpha_and_n_minus_1_over_n_s_over_b_each_way(
    collective: Collective, n: int
) -> None:
    ways = 2 if collective == "all_reduce" else 1
    expected = ways * ((n - 1) * ALPHA + (n - 1) / n * 3e8 / BETA)
    found = ring_s(collective, 3e8, np.array(n), (n - 1) * ALPHA, BETA)
    assert found == pytest.approx(expected)


def test_tree_beats_ring_for_small_messages_of_many_ranks_only() -> None:
    # 64 ranks, 6 deep: 2 * 6 * 5 us + 2 * 1e6 / 100e9 = 60 us + 20 us.
    assert tree_all_reduce_s(1e6, 6 * 5e-6, 100e9) == pytest.approx(80e-6)
    many, hops, depth = np.array(1024), 1023 * ALPHA, 10 * ALPHA
    assert tree_all_reduce_s(1e4, depth, BETA) < ring_s("all_reduce", 1e4, many, hops, BETA)
    assert tree_all_reduce_s(1e12, depth, BETA) > ring_s("all_reduce", 1e12, many, hops, BETA)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_group_of_one_and_an_empty_message_cost_nothing(collective: Collective) -> None:
    measured = context_of(cluster="4xdgx-h100").cluster
    for num_bytes, size in ((1e9, 1), (0.0, 8), (0.0, 32), (0.0, 1)):
        assert collective_s(collective, num_bytes, group(size, min(size, 8)), measured) == 0.0
        assert ring_s(collective, num_bytes, np.array(size), (size - 1) * ALPHA, BETA) == 0.0
    assert domain_s(collective, 1e9, group(1, 1), measured) == 0.0
    assert tree_all_reduce_s(0.0, ALPHA, BETA) == 0.0


def test_point_to_point_by_hand(plain: ClusterSpec) -> None:
    # Inside: 2 us + 1e8/200e9 = 502 us; across: 10 us + 1e8/25e9 = 4010 us.
    stages = Group(members=(np.array([2, 1]), np.array([2, 2])))
    assert point_to_point_s(np.array(1e8), stages, plain) == pytest.approx([502e-6, 4010e-6])
    assert (point_to_point_s(np.array(0.0), stages, plain) == 0.0).all()


def test_inside_a_domain_without_fits_it_is_a_ring_at_its_efficiency(plain: ClusterSpec) -> None:
    # 2*7*2 us + 1.75 * 1e8 / 200e9 = 28 us + 875 us
    # Where its switches add: 2*2 us + 9/8 * 1e8 / 200e9 = 4 us + 562.5 us
    for adds, seconds in ((False, 903e-6), (True, 566.5e-6)):
        node = replace(plain.node, scale_up=_adding(plain, adds=adds))
        found = collective_s("all_reduce", 1e8, group(8, 8), replace(plain, node=node))
        assert found == pytest.approx(seconds)


def test_across_domains_the_local_members_ports_add_up(plain: ClusterSpec) -> None:
    # 4 local ports of 25 GB/s = 100; 8 of them = 200, the domain's own rate; never above it.
    assert fabric_bytes_per_s(group(16, 4), plain) == pytest.approx(100e9)
    assert fabric_bytes_per_s(group(32, 8), plain) == pytest.approx(200e9)
    slow_inside = replace(plain.node.scale_up, bytes_per_s=100e9)
    capped = replace(plain, node=replace(plain.node, scale_up=slow_inside))
    assert fabric_bytes_per_s(group(32, 8), capped) == pytest.approx(80e9)
    # Ports of 50 GB/s at one half: a ring limited to 50 has 25 for eight members too.
    one_port = replace(plain, fabric=replace(plain.fabric, ring_bytes_per_s=50e9))
    for local, expected in ((1, 25e9), (2, 25e9), (8, 25e9)):
        assert fabric_bytes_per_s(group(4 * local, local), one_port) == pytest.approx(expected)
    assert collective_s("all_to_all", 1e9, group(32, 8), plain) == collective_s(
        "all_to_all", 1e9, group(32, 8), one_port
    )


@pytest.mark.parametrize(
    ("collective", "num_bytes", "members", "seconds"),
    [
        # 32 ranks, 8 local: hops 3 * 10 us + 7 * 2 us = 44 us; 31/32 * 1e9 / 200e9 = 4843.75 us.
        ("reduce_scatter", 1e9, (32, 8), 44e-6 + 31 / 32 * 5e-3),
        # The remote share goes through one port: 3/4 leave: 10 us + 0.75e9/25e9 = 30.01 ms.
        ("all_to_all", 1e9, (32, 8), 30.01e-3),
        # 4 ranks on 4 nodes, 25 GB/s. Small: ring 2*3*10 us, tree 2*2*10 us.
        ("all_reduce", 1e3, (4, 1), 40e-6 + 2e3 / 25e9),
        # Large: ring 60 us + 1.5e9/25e9 = 60.06 ms; tree 40 us + 2e9/25e9 = 80.04 ms.
        ("all_reduce", 1e9, (4, 1), 60.06e-3),
    ],
)
def test_collectives_over_4_domains_by_hand(
    collective: Collective,
    num_bytes: float,
    members: tuple[int, int],
    seconds: float,
    plain: ClusterSpec,
) -> None:
    found = collective_s(collective, num_bytes, group(*members), plain)
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("domains", "adds", "ports", "capability", "seconds"),
    [
        # 1 GB, 8 local. Inside a ring has 200 GB/s, switches that add send 9/8 GB. Through the 8
        # ports of a domain 1 GB between two of Hopper, 2 GB of a tree or 31/16 of a ring of four.
        (2, True, 25e9, 9.0, 2 * 12e-6 + 5.625e-3),
        (2, False, 25e9, 9.0, 2 * 24e-6 + 9.375e-3),
        (2, True, 12.5e9, 9.0, 2 * 10e-6 + 10e-3),
        (2, False, 12.5e9, 8.0, 2 * 24e-6 + 18.75e-3),
        (4, True, 25e9, 9.0, 2 * 44e-6 + 9.6875e-3),
        (4, False, 12.5e9, 9.0, 2 * 44e-6 + 19.375e-3),
    ],
)
def test_all_reduce_through_the_ports_of_domains(
    domains: int, adds: bool, ports: float, capability: float, seconds: float, plain: ClusterSpec
) -> None:
    part = replace(plain.accelerator, compute_capability=capability)
    node = replace(plain.node, accelerator=part, scale_up=_adding(plain, adds=adds))
    fabric = replace(plain.fabric, bytes_per_s=2 * ports)
    cluster = replace(plain, node=node, fabric=fabric)
    assert collective_s("all_reduce", 1e9, group(8 * domains, 8), cluster) == pytest.approx(seconds)


def test_links_below_one_pcie_root_and_of_a_mesh_reach_what_was_measured() -> None:
    # Few members below one root reach more of their links.
    cluster = context_of(cluster="1xpcie-8x-rtx-pro-6000").cluster
    rates = [domain_bytes_per_s(group(n, n), cluster)[0] / 52e9 for n in (2, 4, 5, 8)]
    assert rates == pytest.approx([0.95, 0.95, 0.80, 0.80])
    # Chains that leave a mesh of links use one more than its rings.
    cluster = context_of(cluster="2xhgx-mi300x").cluster
    inside = cluster.domain.achieved_bytes_per_s
    assert fabric_bytes_per_s(group(16, 8), cluster) == pytest.approx(inside * 8 / 7)


def _adding(cluster: ClusterSpec, *, adds: bool) -> LevelSpec:
    return replace(cluster.node.scale_up, reduces_in_network=adds)


def test_a_domain_takes_the_measured_fit_of_its_accelerator(plain: ClusterSpec) -> None:
    fits = (CollectiveFit(num_ranks=8, latency_s=(10e-6,), busbw_bytes_per_s=(50e9,)),)
    accelerator = replace(plain.accelerator, collectives={"all_gather": fits})
    measured = replace(plain, node=replace(plain.node, accelerator=accelerator))
    # factor 7/8: 10 us + 0.875e6/50e9
    assert collective_s("all_gather", 1e6, group(8, 8), measured) == pytest.approx(27.5e-6)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_bytes_never_take_less_time(collective: Collective) -> None:
    measured = context_of(cluster="4xdgx-h100").cluster
    num_bytes = np.logspace(0, 11, 200)
    for size, local in ((2, 2), (8, 8), (16, 8), (32, 8), (4, 1)):
        many = Group(members=(np.full(200, local), np.full(200, size)))
        seconds = collective_s(collective, num_bytes, many, measured)
        assert (np.diff(seconds) >= 0).all()


def test_broadcasts_in_turn_wait_once_for_every_rank(plain: ClusterSpec) -> None:
    # 4 nodes of 8: one way round is 7 hops of 2 us inside and 3 of 10 us between nodes, 44 us
    size, ranks = 32e9, group(32, 8)
    extra = broadcasts_s(size, ranks, plain) - collective_s("all_gather", size, ranks, plain)
    assert extra == pytest.approx(31 * 44e-6)
    assert broadcasts_s(np.array(0.0), ranks, plain) == 0.0
    assert broadcasts_s(np.array(size), group(1, 1), plain) == 0.0
