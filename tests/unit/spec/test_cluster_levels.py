"""Levels of a cluster, innermost to outermost, and slices of a torus."""

from dataclasses import replace
from math import prod

import pytest

from planner.catalog.clusters import load_cluster
from planner.spec.cluster import slice_dims


def test_levels_go_from_the_innermost_to_the_whole_cluster() -> None:
    frontier = load_cluster("frontier")
    assert [level.name for level in frontier.levels] == [
        "package",
        "infinity-fabric",
        "group",
        "global",
    ]
    sizes = [level.num_accelerators for level in frontier.levels]
    assert sizes == [2, 8, 1024, frontier.num_accelerators]
    assert frontier.domain.num_accelerators == 8
    assert frontier.levels[-1] is frontier.fabric


def test_no_level_is_larger_than_the_cluster() -> None:
    tray = load_cluster("1xgb200-tray")
    assert tray.node.scale_up.num_accelerators == 72
    assert [level.num_accelerators for level in tray.levels] == [4, 4]


def test_oversubscription_and_efficiency_lower_what_all_ports_reach() -> None:
    level = load_cluster("2xdgx-h100").fabric
    tapered = replace(level, bytes_per_s=50e9, efficiency_fraction=0.8, oversubscription=2.0)
    assert tapered.achieved_bytes_per_s == pytest.approx(20e9)


@pytest.mark.parametrize(
    ("chips", "dims"),
    [
        (8, (2, 2, 2)),
        (64, (4, 4, 4)),
        (256, (4, 8, 8)),
        (3072, (12, 16, 16)),
        (7, (1, 1, 7)),
        (4096, (16, 16, 16)),
    ],
)
def test_a_slice_is_as_cubic_as_the_torus_allows(chips: int, dims: tuple[int, ...]) -> None:
    assert slice_dims(chips, (16, 16, 16)) == dims
    assert prod(dims) == chips


def test_no_dimension_of_a_slice_is_longer_than_that_of_the_torus() -> None:
    assert slice_dims(1280, (4, 16, 20)) == (4, 16, 20)


def test_a_slice_without_such_a_shape_is_a_line() -> None:
    assert slice_dims(512, (16, 16)) == (1, 512)
    assert slice_dims(8, ()) == ()


def test_a_cluster_of_part_of_a_pod_is_a_slice() -> None:
    assert load_cluster("16xtpu-v4-host").domain.dims == (4, 4, 4)
    assert load_cluster("tpu-v4-pod").domain.dims == (16, 16, 16)
