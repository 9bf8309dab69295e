"""Cluster files with pools: what they say, and what is wrong with them."""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.catalog.pools import is_mixed, load_mixed
from planner.cli.inputs import argument_for_file
from planner.errors import InputError
from planner.units import GBIT_PER_S, US

TWO = """\
pools:
  fast: {node: dgx-h100, count: 2}
  slow: {node: dgx-a100-640, count: 3, overrides: {hbm_gib: 60}}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mixed.yaml"
    path.write_text(text)
    return str(path)


def test_pools_are_clusters_with_the_slower_network_between_them(tmp_path: Path) -> None:
    mixed = load_mixed(written(tmp_path, TWO), load_cluster)
    assert [(pool.name, pool.num_accelerators) for pool in mixed.pools] == [
        ("fast", 16),
        ("slow", 24),
    ]
    slow = mixed.pools[1].cluster
    assert slow.accelerator.hbm_bytes == 60 * 2**30
    assert mixed.between.bytes_per_s == slow.fabric.bytes_per_s == 200 * GBIT_PER_S
    assert mixed.num_accelerators == mixed.between.num_accelerators == 40


def test_a_network_between_pools_is_no_faster_than_their_ports(tmp_path: Path) -> None:
    for given, gbit in ((800, 100), (64_000, 200)):
        text = f"{TWO}between: {{node_gbit_per_s: {given}, latency_us: 40}}\n"
        between = load_mixed(written(tmp_path, text), load_cluster).between
        assert between.bytes_per_s == gbit * GBIT_PER_S
        assert between.latency_s == 40 * US


def test_one_pool_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    argument = f"{written(tmp_path, TWO)}:slow"
    assert load_cluster(argument).num_nodes == 3
    assert load_cluster(f"{argument}@512GiB").node.host_memory_bytes == 512 * 2**30
    assert load_cluster_of(argument, 8).num_nodes == 1
    assert argument_for_file(argument) == argument
    assert not is_mixed(argument)


def test_pools_are_never_taken_for_equal_machines(tmp_path: Path) -> None:
    argument = written(tmp_path, TWO)
    assert is_mixed(argument)
    for load in (load_cluster, lambda name: load_cluster_of(name, 16)):
        with pytest.raises(InputError, match=r"2 pools.*mixed\.yaml:fast or .*mixed\.yaml:slow"):
            load(argument)
    with pytest.raises(InputError, match="no pool 'medium'; allowed are fast, slow"):
        load_cluster(f"{argument}:medium")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {node: dgx-h100, count: 0}\n  b: {node: dgx-h100, count: 1}", "pools.a.count: a pool"),
        ("a: {node: dgx-h100, count: 1}\n  b:", "pools.b: a pool without GPUs; given None"),
        (
            "b: {node: dgx-h100, count: 1, overrides: {accelerators_per_node: 0}}",
            "pools.b.overrides.accelerators_per_node: a pool without GPUs",
        ),
        ("a: {node: dgx-h100, count: 1}", "2 to 4 pools are allowed; given 1"),
        (
            "a: {node: dgx-h100, count: 1}\n  b: {node: dgx-h1000, count: 1}",
            "pools.b.node: unknown node",
        ),
        (
            "a: {node: dgx-h100, count: 1}\n  b: {node: hgx-mi300x, count: 1}",
            "accelerators of AMD and NVIDIA",
        ),
        (
            "a: {node: dgx-h100, count: 1}\n  b: {node: dgx-h100, nodes: 1}",
            "pools.b.nodes: unknown key",
        ),
    ],
)
def test_what_is_wrong_with_a_pool_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        load_mixed(written(tmp_path, f"pools:\n  {text}\n"), load_cluster)
    assert message in str(raised.value)
