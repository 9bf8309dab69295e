"""Network levels in hwdb and in cluster files, and machines by name."""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.hardware import list_names
from planner.errors import InputError
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


def test_a_superpod_is_leaf_and_spine_above_nvlink() -> None:
    pod = load_cluster("superpod-h100")
    nvlink, leaf, spine = pod.levels
    assert (nvlink.num_accelerators, leaf.num_accelerators) == (8, 32 * 8)
    assert spine.num_accelerators == 127 * 8
    assert leaf.bytes_per_s == spine.bytes_per_s == pytest.approx(50e9)
    assert leaf.reduces_in_network
    assert spine.reduces_in_network


def test_some_nodes_of_a_machine_end_at_the_level_that_holds_them() -> None:
    one_unit = load_cluster("16xsuperpod-h100")
    assert [level.name for level in one_unit.levels] == ["nvlink", "leaf"]
    assert one_unit.fabric.num_accelerators == 128
    with pytest.raises(InputError, match="has 127 nodes; given 128"):
        load_cluster("128xsuperpod-h100")


def test_a_level_inside_the_scale_up_domain_falls_away(tmp_path: Path) -> None:
    text = "node: gb200-tray\ncount: 36\nlevels:\n- {name: pair, num_nodes: 2}\n- {name: top}\n"
    assert [level.name for level in from_file(tmp_path, text).levels] == ["nvlink-nvl72", "top"]


def test_a_package_is_the_innermost_level() -> None:
    aurora = load_cluster("aurora")
    package = aurora.levels[0]
    assert (package.name, package.num_accelerators) == ("package", 2)
    assert package.bytes_per_s > 10 * aurora.domain.bytes_per_s


def test_the_hybrid_cube_mesh_is_one() -> None:
    assert load_cluster("1xdgx-1-v100").domain.topology == "hybrid_cube_mesh"


def test_a_cluster_file_gives_levels(tmp_path: Path) -> None:
    text = (
        "node: dgx-h100\ncount: 64\nlevels:\n"
        "- {name: leaf, num_nodes: 16, reduces_in_network: true}\n"
        "- {name: spine, oversubscription: 2.0, latency_us: 7.0}\n"
    )
    cluster = from_file(tmp_path, text)
    _, leaf, spine = cluster.levels
    assert (leaf.num_accelerators, spine.num_accelerators) == (128, 512)
    assert (leaf.oversubscription, spine.oversubscription) == (1.0, 2.0)
    assert spine.latency_s == pytest.approx(7e-6)
    assert leaf.reduces_in_network
    assert not spine.reduces_in_network
    assert "given: network level leaf" in map(str, cluster.assumptions)
