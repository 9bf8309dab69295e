"""Network levels in hwdb and in cluster files, and machines by name."""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.hardware import list_names
from planner.spec.cluster import ClusterSpec


def from_file(folder: Path, text: str) -> ClusterSpec:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return load_cluster(path)


@pytest.mark.parametrize("name", list_names("clusters"))
def test_every_machine_loads_and_its_levels_grow(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    sizes = [level.num_accelerators for level in cluster.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] == cluster.num_accelerators


def test_a_package_is_the_fastest_level() -> None:
    aurora = load_cluster("aurora")
    assert aurora.levels[0].bytes_per_s > 10 * aurora.domain.bytes_per_s


def test_a_level_inside_the_scale_up_domain_falls_away(tmp_path: Path) -> None:
    text = "node: gb200-tray\ncount: 36\nlevels:\n- {name: pair, num_nodes: 2}\n- {name: top}\n"
    assert [level.name for level in from_file(tmp_path, text).levels] == ["nvlink-nvl72", "top"]


def test_a_cluster_file_gives_levels(tmp_path: Path) -> None:
    text = (
        "node: dgx-h100\ncount: 64\nlevels:\n"
        "- {name: leaf, num_nodes: 16, reduces_in_network: true}\n"
        "- {name: spine, oversubscription: 2.0, latency_us: 7.0}\n"
    )
    cluster = from_file(tmp_path, text)
    fields = ("num_accelerators", "oversubscription", "reduces_in_network")
    leaf, spine = ([getattr(level, name) for name in fields] for level in cluster.levels[1:])
    assert (leaf, spine) == ([128, 1.0, True], [512, 2.0, False])
    assert cluster.levels[2].latency_s == pytest.approx(7e-6)
    assert "given: network level leaf" in map(str, cluster.assumptions)
