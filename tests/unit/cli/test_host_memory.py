"""Host memory: what is assumed of nodes that publish none, and what a user gives."""

import pytest

from planner.catalog.clusters import load_cluster, load_cluster_of, node_of_catalog
from planner.catalog.hardware import host_rules, list_names
from planner.units import GIB


@pytest.mark.parametrize("name", list_names("nodes"))
def test_every_node_has_host_memory_and_says_where_it_is_assumed(name: str) -> None:
    node = node_of_catalog(name)[0]
    assert node.host_memory_bytes is not None
    if node.host_memory_note == host_rules()[1].times_accelerator_memory.note:
        held = node.num_accelerators * node.accelerator.hbm_bytes
        assert 2.0 * held <= node.host_memory_bytes <= 2.0 * held + 64 * GIB


def test_a_cluster_says_its_host_memory_too() -> None:
    assert load_cluster("2xpcie-8x-rtx4090@512GiB").node.host_memory_bytes == 512 * GIB
    assert load_cluster("1xrtx4090@128GiB").node.host_memory_bytes == 128 * GIB
    assert load_cluster("1xrtx4090").node.host_memory_bytes == 384 / 8 * GIB
    assert load_cluster_of("rtx4090@512GiB", 2).node.host_memory_bytes == 128 * GIB
