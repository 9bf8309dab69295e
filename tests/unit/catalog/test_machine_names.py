"""Machines as people write them: what is meant, and what is not guessed."""

from pathlib import Path

import pytest
import yaml

from planner.catalog.clusters import largest_cluster_of, load_cluster, load_cluster_of
from planner.catalog.hardware import list_names, normalised_machine
from planner.spec.cluster import ClusterSpec
from planner.units import GIB

NAMES = yaml.safe_load((Path(__file__).parents[2] / "examples" / "names.yaml").read_text())


@pytest.mark.parametrize(("given", "meant"), NAMES["machines"].items())
def test_what_can_mean_one_machine_is_read_as_it_and_said(given: str, meant: str) -> None:
    cluster = load_cluster(given)
    assert cluster.node == load_cluster(meant).node
    assert cluster.num_accelerators == load_cluster(meant).num_accelerators
    assert f"{given} is read as {meant}" in map(str, cluster.assumptions)


@pytest.mark.parametrize(
    "given", ["16xdgx-h100", "8xh100", "frontier", "2xp5.48xlarge", "banana", "3xbanana", "100"]
)
def test_usual_and_unknown_words_stay_as_they_are(given: str) -> None:
    assert normalised_machine(given) == given


def test_every_name_alone_is_one_of_it() -> None:
    for name in (*list_names("nodes"), *list_names("accelerators")):
        assert normalised_machine(name) == f"1x{name}"


def test_commands_that_count_themselves_take_the_same_words() -> None:
    assert load_cluster_of("H100x8", 16).name == "16xh100-sxm"
    assert largest_cluster_of("DGX H100", 20).num_accelerators == 16


@pytest.mark.parametrize(
    ("cluster", "gib"),
    [
        (load_cluster("8 h100@512GiB"), 512),
        (load_cluster("2xpcie-8x-rtx4090@512GiB"), 512),
        (load_cluster("1xrtx4090@128GiB"), 128),
        (load_cluster("1xrtx4090"), 384 / 8),
        (load_cluster_of("rtx4090@512GiB", 2), 128),
    ],
)
def test_a_cluster_says_its_host_memory_too(cluster: ClusterSpec, gib: float) -> None:
    assert cluster.node.host_memory_bytes == gib * GIB
