"""Collectives over more than two levels, meshes and tori, by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from contexts import of_levels

from planner.catalog.clusters import load_cluster
from planner.collectives.cost import busbw_factor
from planner.cost.network import (
    collective_s,
    domain_bytes_per_s,
    domain_hops_s,
    fabric_bytes_per_s,
    link_share,
    num_rings,
    point_to_point_s,
)
from planner.cost.topology import Group
from planner.spec.cluster import Collective, LevelSpec


def level(name: str, size: int, rate: float, latency_us: float, **more: object) -> LevelSpec:
    return LevelSpec(
        name=name,
        num_accelerators=size,
        bytes_per_s=rate,
        latency_s=latency_us * 1e-6,
        efficiency_fraction=1.0,
        **more,  # type: ignore[arg-type]
    )


def group(*members: int, domain: int = 0, spans: tuple[int, ...] = ()) -> Group:
    return Group(
        members=tuple(np.array([n]) for n in members),
        domain=domain,
        spans=tuple(np.array([n]) for n in spans),
    )


NVLINK = level("nvlink", 8, 200e9, 2)
LEAF = level("leaf", 64, 25e9, 5)
SPINE = level("spine", 512, 25e9, 7, oversubscription=4.0)
CLUSTER = of_levels(NVLINK, LEAF, SPINE)


@pytest.mark.parametrize(
    ("members", "rate"),
    [
        # One member per node: 25 GB/s. 8 nodes a leaf share 8 ports into a 4:1 spine: 50 GB/s.
        ((1, 8, 64), 25e9),
        # One member per leaf: its own share of the spine only.
        ((1, 1, 8), 6.25e9),
        # All 8 GPUs of a node: 200 GB/s up to the leaf; 64 a leaf fill the spine with 400.
        ((8, 64, 512), 200e9),
        ((1, 8, 8), 25e9),  # The spine is not crossed
    ],
)
def test_a_ring_is_as_fast_as_the_slowest_level_it_crosses(
    members: tuple[int, ...], rate: float
) -> None:
    assert fabric_bytes_per_s(group(*members), CLUSTER) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("collective", "num_bytes", "members", "seconds"),
    [
        # 7 x 2 us in the node, 7 x 5 us in the leaf, 7 x 7 us over the spine; 511/512 at 200 GB/s.
        ("all_gather", 1e9, (8, 64, 512), 98e-6 + 511 / 512 * 5e-3),
        # A tree of 8 nodes: 3 x 5 us; 8 leaves: 3 x 7 us; up and down.
        ("all_reduce", 1e3, (1, 8, 64), 72e-6 + 2e3 / 25e9),
        # Of 1 GB, what leaves the node goes at 25 GB/s, what leaves the leaf at 6.25.
        ("all_to_all", 1e9, (1, 8, 64), 7e-6 + 7 / 8 * 1e9 / 6.25e9),
        ("all_to_all", 1e9, (8, 64, 512), 7e-6 + 7 / 8 * 1e9 / 6.25e9),
    ],
)
def test_collectives_over_three_levels_by_hand(
    collective: Collective, num_bytes: float, members: tuple[int, ...], seconds: float
) -> None:
    found = collective_s(collective, num_bytes, group(*members), CLUSTER)
    assert found == pytest.approx(seconds)


def test_switches_that_add_carry_every_share_once() -> None:
    adding = of_levels(NVLINK, replace(LEAF, reduces_in_network=True))
    plain = of_levels(NVLINK, LEAF)
    # 8 nodes, one member each: 2 x 5 us + S / 25 GB/s instead of 2 x 7/8 S.
    one_each = group(1, 8)
    assert collective_s("all_reduce", 1e9, one_each, adding) == pytest.approx(10e-6 + 1 / 25)
    assert collective_s("all_reduce", 1e9, one_each, plain) == pytest.approx(70e-6 + 1.75 / 25)
    # All 8 of each node: NVLink's own scatter and gather, 1.75 S / 200 GB/s, is what counts.
    all_s = collective_s("all_reduce", 1e9, group(8, 64), adding)
    assert all_s == pytest.approx(38e-6 + 1.75 / 200)


def test_a_message_goes_over_the_innermost_level_that_holds_the_group() -> None:
    for members, seconds in (((2, 2, 2), 502e-6), ((1, 2, 2), 4005e-6), ((1, 1, 2), 16007e-6)):
        found = point_to_point_s(np.array(1e8), group(*members), CLUSTER)
        assert found == pytest.approx(seconds)


def test_pairs_of_a_package_use_its_link_and_its_way_out_together() -> None:
    package = level("package", 2, 300e9, 1, topology="fully_connected")
    cluster = of_levels(NVLINK, LEAF, package=package)
    # Two devices leave a package with 2 x 200 GB/s, but pass its 300 GB/s inside.
    for members, rate in (((2, 2, 2), 300e9), ((1, 4, 4), 200e9), ((2, 8, 8), 300e9)):
        assert domain_bytes_per_s(group(*members, domain=1), cluster) == pytest.approx(rate)
    assert domain_hops_s(group(2, 8, 8, domain=1), cluster) == pytest.approx(1e-6 + 3 * 2e-6)


def test_two_of_eight_fully_connected_share_one_of_seven_links() -> None:
    # MI300X: 448 GB/s over 7 links at 0.7; two reach 48 GB/s measured, eight 313.
    domain = load_cluster("1xhgx-mi300x").domain
    alone, two, eight = domain.achieved_bytes_per_s * link_share(domain, np.array([1, 2, 8]))
    assert two == pytest.approx(47.67e9, rel=0.07)
    assert eight == pytest.approx(312.9e9, rel=0.01)
    assert alone == eight  # the way to the network is not shared
    # A cube mesh has most links inside a quad.
    shares = link_share(load_cluster("1xdgx-1-v100").domain, np.array([2, 3, 4, 5, 8]))
    assert shares == pytest.approx([2 / 9, 4 / 9, 2 / 3, 1, 1])


TORUS = level("ici", 256, 90e9, 1, topology="torus_3d", dims=(4, 8, 8))
POD = of_levels(TORUS, level("dcn", 512, 6e9, 50))


@pytest.mark.parametrize(
    ("spans", "rings"),
    [
        ((4, 1, 1), 1.0),
        ((4, 8, 8), 3.0),
        ((4, 2, 1), 1.5),  # a part of a dimension is a line
        ((2, 1, 1), 0.5),
        ((1, 1, 1), 0.5),
    ],
)
def test_every_dimension_of_a_torus_is_a_ring_of_its_own(
    spans: tuple[int, ...], rings: float
) -> None:
    assert num_rings(TORUS, group(1, spans=spans).spans) == pytest.approx(rings)
    mesh = replace(TORUS, topology="mesh_2d", dims=(16, 16))
    assert num_rings(mesh, group(1, spans=(16, 16)).spans) == pytest.approx(1.0)


def test_collectives_on_a_torus_by_hand() -> None:
    everyone = group(256, 256, spans=(4, 8, 8))
    # Three rings of 90 GB/s; 3 + 7 + 7 hops of 1 us.
    gather_s = collective_s("all_gather", 1e9, everyone, POD)
    assert gather_s == pytest.approx(17e-6 + 255 / 256 * 1e9 / 270e9)
    # An exchange waits for the longest ring, of 8: a byte travels 2 links: S * 8 / (4 * 90 GB/s).
    exchange_s = collective_s("all_to_all", 1e9, everyone, POD)
    assert exchange_s == pytest.approx(17e-6 + 1e9 * 8 / 4 / 90e9)


def test_beyond_the_measured_ranks_latency_grows_and_bandwidth_stays() -> None:
    # GB200 has fits for 2 and 4 ranks only.
    rack = load_cluster("18xgb200-tray")
    two, four = rack.accelerator.collectives["all_gather"]
    assert (two.num_ranks, four.num_ranks) == (2, 4)
    a_rank_s = (four.latency_s[0] - two.latency_s[0]) / 2
    small, large = (collective_s("all_gather", size, group(72, 72), rack) for size in (1e3, 1e12))
    small_s = four.latency_s[0] + 68 * a_rank_s + 71 / 72 * 1e3 / four.busbw_bytes_per_s[0]
    assert a_rank_s > 1e-6
    assert small == pytest.approx(small_s)
    assert large == pytest.approx(71 / 72 * 1e12 / four.busbw_bytes_per_s[-1], rel=1e-3)
    # All-reduces whose switches add need no more steps for more ranks.
    assert rack.domain.reduces_in_network
    few, many = (collective_s("all_reduce", 1.0, group(n, n), rack) for n in (8, 72))
    assert many == pytest.approx(few, rel=1e-3)


def test_two_and_four_ranks_predict_the_latency_of_eight() -> None:
    # Within 8 % in five cases; B200's all-gather has its slowest start on 4 ranks.
    errors, names = [], ("all_reduce", "all_gather", "reduce_scatter")
    for full, name in product(map(load_cluster, ("1xdgx-b200", "1xdgx-b300")), names):
        fits = full.accelerator.collectives
        accelerator = replace(full.accelerator, collectives={**fits, name: fits[name][:2]})
        domain = replace(full.node.scale_up, reduces_in_network=False)
        node = replace(full.node, accelerator=accelerator, scale_up=domain)
        measured = collective_s(name, 1.0, group(8, 8), full)
        guessed = collective_s(name, 1.0, group(8, 8), replace(full, node=node))
        errors.append(abs(float((guessed / measured)[0]) - 1))
    *five, largest = sorted(errors)
    assert max(five) < 0.08
    assert largest < 0.15


def test_nvlink_must_be_seven_quarters_of_rdma_for_tensor_beside_pipeline_traffic() -> None:
    # An all-reduce over the 8 GPUs of a server moves 2 * 7/8 of the activations over NVLink;
    # the pipeline sends them once over RDMA to the next server.
    needed = busbw_factor("all_reduce", np.array(8))
    assert needed == 1.75
    a100, a800 = load_cluster("2xdgx-a100-640"), load_cluster("2xhgx-a800")
    nics = a100.node.nic_bytes_per_s
    assert nics == a800.node.nic_bytes_per_s == pytest.approx(8 * 25e9)
    # 80 % of 8 x 200 Gbit/s, the lower end of what nccl-tests reach.
    assert a100.domain.bytes_per_s / (0.8 * nics) == pytest.approx(1.875)
    assert a800.domain.bytes_per_s / (0.8 * nics) == pytest.approx(1.25)
    # Like with like an A100 misses it too. Achieved: 234 of 300 GB/s over 190 of 200, or over 160.
    assert a100.domain.bytes_per_s / nics == pytest.approx(1.5)
    achieved = a100.domain.achieved_bytes_per_s
    assert achieved / (a100.fabric.efficiency_fraction * nics) == pytest.approx(1.23, abs=0.005)
    assert achieved / (0.8 * nics) == pytest.approx(1.46, abs=0.005)
