"""What libraries take: NCCL by its model, the others by their rules."""

from dataclasses import replace

import pytest

from planner.catalog.libraries import list_libraries, load_library
from planner.collectives.algorithms import BY_NAME
from planner.collectives.choice import Situation, choose, nccl_candidates
from planner.spec.library import NcclTuning

H100 = Situation(
    kind="all_reduce",
    num_bytes=2.0**30,
    num_ranks=8,
    num_nodes=1,
    architecture="Hopper",
    compute_capability=9.0,
    link="nvlink",
    scale_up_bytes_per_s=450e9,
    network_bytes_per_s=50e9,
    reduces_in_network=True,
)
A100 = replace(
    H100,
    architecture="Ampere",
    compute_capability=8.0,
    scale_up_bytes_per_s=300e9,
    network_bytes_per_s=25e9,
    reduces_in_network=False,
)
MIB = 2.0**20


def nccl_takes(at: Situation) -> tuple[str, str]:
    choice = choose(load_library("nccl"), at)
    return choice.algorithm, choice.protocol


def tuning() -> NcclTuning:
    found = load_library("nccl").tuning
    assert found is not None
    return found


def candidate_s(at: Situation, algorithm: str, protocol: str) -> float:
    return next(
        c.time_s
        for c in nccl_candidates(tuning(), at)
        if (c.algorithm, c.protocol) == (algorithm, protocol)
    )


@pytest.mark.parametrize(
    ("num_bytes", "expected"), [(MIB, ("ring", "LL")), (2 * MIB, ("in-network", "Simple"))]
)
def test_nvls_takes_over_between_1_and_2_mib_on_h200_as_published(
    num_bytes: float, expected: tuple[str, str]
) -> None:
    # stas00/ml-engineering, network/README.md: 8 x H200, Ring LL up to 1 MiB, NVLS from 2 MiB.
    assert nccl_takes(replace(H100, num_bytes=num_bytes)) == expected


@pytest.mark.parametrize(("num_ranks", "algorithm"), [(4, "ring"), (5, "in-network")])
def test_nvls_needs_more_than_four_h200_as_published(num_ranks: int, algorithm: str) -> None:
    # The same page: 8 GiB on 4 GPUs by a ring, on 5 to 8 by NVLS.
    at = replace(H100, num_bytes=2.0**33, num_ranks=num_ranks)
    assert nccl_takes(at)[0] == algorithm


def test_a100_has_no_nvls() -> None:
    assert nccl_takes(A100) == ("ring", "Simple")
    assert nccl_takes(replace(A100, num_bytes=4 * MIB)) == ("ring", "LL128")
    assert nccl_takes(replace(A100, num_bytes=1024.0)) == ("ring", "LL")


def test_many_nodes_take_trees_for_small_and_rings_for_large_messages() -> None:
    many = replace(A100, num_ranks=512, num_nodes=64)
    assert nccl_takes(replace(many, num_bytes=MIB)) == ("double-tree", "LL128")
    assert nccl_takes(replace(many, num_bytes=2.0**36)) == ("ring", "Simple")


def test_ring_times_by_hand() -> None:
    # A100, 8 ranks: bus 240 GB/s; Simple: 8.4 + 14 * 3.4 us + S / (240 * 8/14 GB/s).
    simple = candidate_s(A100, "ring", "Simple")
    assert simple == pytest.approx(56e-6 + 2.0**30 / (240e9 * 8 / 14))
    # LL: min(87.7, 120) GB/s; 6.6 + 14 * 0.6 us.
    low = candidate_s(A100, "ring", "LL")
    assert low == pytest.approx(15e-6 + 2.0**30 / (87.7e9 * 8 / 14))


def test_multi_node_ring_by_hand() -> None:
    # 2 x 8 A100, HDR: bus min(240, 0.96 * 8 * 25 = 192). 28 steps inside at max(3.4, 3 us), 2
    # across at 14 us, 8.4 us, times 1.4 for its plateau.
    at = replace(A100, num_ranks=16, num_nodes=2)
    seconds = candidate_s(at, "ring", "Simple")
    expected = 1.4 * (8.4e-6 + 28 * 3.4e-6 + 2 * 14e-6) + 2.0**30 / (192e9 * 16 / 30)
    assert seconds == pytest.approx(expected)


def test_tree_by_hand() -> None:
    # 64 x 8 A100, 1 MiB, LL128: min(.92 * 192, 12 * 17.8) = 176.64; * 120/128 = 165.6, 12 * 20
    # is more. 14 + 2 (7 * 1.25 + 6 * 8.5) us; factor 0.6 at log2(2**20 / 64) = 14.
    at = replace(A100, num_ranks=512, num_nodes=64, num_bytes=MIB)
    expected = (14 + 2 * (7 * 1.25 + 6 * 8.5)) * 1e-6 + MIB / (0.5 * 165.6e9 * 0.6)
    assert candidate_s(at, "double-tree", "LL128") == pytest.approx(expected)


def test_nvls_by_hand() -> None:
    # 8 channels of min(60, 360/8 = 45): 360 * 0.85 * 7/8 * 2 * 8/14 = 306 GB/s.
    expected = 25e-6 + 2.0**30 / (360e9 * 0.85 * 7 / 8 * 2 * 8 / 14)
    assert candidate_s(H100, "in-network", "Simple") == pytest.approx(expected)


def test_pci_has_no_ll128() -> None:
    at = replace(A100, architecture="Ada", compute_capability=8.9, link="pci")
    assert "LL128" not in {c.protocol for c in nccl_candidates(tuning(), at)}


def test_unknown_accelerators_are_the_oldest_generation() -> None:
    volta = replace(A100, compute_capability=7.0, scale_up_bytes_per_s=150e9)
    assert candidate_s(volta, "ring", "LL") == pytest.approx(15e-6 + 2.0**30 / (39e9 * 8 / 14))


@pytest.mark.parametrize(
    ("library", "changes", "algorithm"),
    [
        ("mpi", {"num_bytes": 2048.0}, "butterfly"),
        ("mpi", {"num_bytes": 2049.0}, "rabenseifner"),
        ("mpi", {"kind": "all_gather", "num_bytes": 4e5}, "halving-doubling"),
        ("mpi", {"kind": "all_gather", "num_bytes": 4e5, "num_ranks": 6}, "ring"),
        ("mpi", {"kind": "broadcast", "num_bytes": 1e6, "num_ranks": 7}, "tree"),
        ("mpi", {"kind": "broadcast", "num_bytes": 1e6}, "scatter-gather"),
        ("mpi", {"kind": "all_to_all", "num_bytes": 2048.0}, "bruck"),
        ("oneccl", {"num_bytes": 16384.0, "architecture": ""}, "butterfly"),
        ("oneccl", {"num_bytes": 1e9, "architecture": ""}, "ring"),
        ("oneccl", {"num_bytes": 1e9, "architecture": "Xe-HPC"}, "hierarchical"),
        ("gloo", {"num_bytes": 8.0}, "ring"),
        ("rccl", {"kind": "all_gather", "num_bytes": 4e6, "architecture": "CDNA3"}, "direct"),
        ("rccl", {"kind": "all_gather", "num_bytes": 5e6, "architecture": "CDNA3"}, "ring"),
        ("hccl", {"num_ranks": 32, "num_nodes": 4}, "multi-dimensional"),
        ("hccl", {"num_ranks": 24, "num_nodes": 3}, "hierarchical"),
    ],
)
def test_rules_by_message_and_group(library: str, changes: dict, algorithm: str) -> None:
    assert choose(load_library(library), replace(H100, **changes)).algorithm == algorithm


def test_gloo_is_refused_beyond_a_thousand_ranks() -> None:
    gloo = load_library("gloo")
    choose(gloo, replace(H100, num_ranks=1000, num_nodes=125))
    with pytest.raises(ValueError, match="not made for more than 1,000 ranks; given 1,008"):
        choose(gloo, replace(H100, num_ranks=1008, num_nodes=126))


@pytest.mark.parametrize("library", list_libraries())
@pytest.mark.parametrize(
    "kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "p2p"]
)
@pytest.mark.parametrize("num_bytes", [1.0, 1e5, 1e7, 1e12])
@pytest.mark.parametrize(("num_ranks", "num_nodes"), [(2, 1), (8, 1), (24, 3), (512, 64)])
def test_every_library_takes_an_algorithm_that_can_do_it(
    library: str, kind: str, num_bytes: float, num_ranks: int, num_nodes: int
) -> None:
    at = replace(
        H100,
        kind=kind,  # type: ignore[arg-type]
        num_bytes=num_bytes,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
    )
    assert kind in BY_NAME[choose(load_library(library), at).algorithm].flat
