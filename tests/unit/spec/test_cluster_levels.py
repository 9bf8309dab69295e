"""Levels of a cluster, innermost to outermost, and slices of a torus."""

from dataclasses import replace

import pytest

from planner.catalog.clusters import load_cluster
from planner.spec.cluster import slice_dims


def test_levels_go_from_the_innermost_to_the_whole_cluster() -> None:
    frontier = load_cluster("frontier")
    sizes = {level.name: level.num_accelerators for level in frontier.levels}
    levels = {
        "package": 2,
        "infinity-fabric": 8,
        "group": 1024,
        "global": frontier.num_accelerators,
    }
    assert [*sizes.items()] == [*levels.items()]
    assert frontier.domain.num_accelerators == 8
    assert frontier.levels[-1] is frontier.fabric
    # No level is larger than the cluster.
    tray = load_cluster("1xgb200-tray")
    assert tray.node.scale_up.num_accelerators == 72
    assert [level.num_accelerators for level in tray.levels] == [4, 4]


def test_oversubscription_and_efficiency_lower_what_all_ports_reach() -> None:
    level = load_cluster("2xdgx-h100").fabric
    tapered = replace(level, bytes_per_s=50e9, efficiency_fraction=0.8, oversubscription=2.0)
    assert tapered.achieved_bytes_per_s == pytest.approx(20e9)


CUBE = (16, 16, 16)


@pytest.mark.parametrize(
    ("chips", "torus", "dims"),
    [
        (8, CUBE, (2, 2, 2)),
        (64, CUBE, (4, 4, 4)),
        (256, CUBE, (4, 8, 8)),
        (3072, CUBE, (12, 16, 16)),
        (7, CUBE, (1, 1, 7)),
        (4096, CUBE, CUBE),
        # No dimension is longer than that of the torus; without such a shape it is a line.
        (1280, (4, 16, 20), (4, 16, 20)),
        (512, (16, 16), (1, 512)),
        (8, (), ()),
    ],
)
def test_a_slice_is_as_cubic_as_the_torus_allows(
    chips: int, torus: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    assert slice_dims(chips, torus) == dims


def test_a_cluster_of_part_of_a_pod_is_a_slice() -> None:
    assert load_cluster("16xtpu-v4-host").domain.dims == (4, 4, 4)
    assert load_cluster("tpu-v4-pod").domain.dims == (16, 16, 16)
