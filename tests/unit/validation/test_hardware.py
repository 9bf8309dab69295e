"""The cluster of a published run."""

from planner.catalog.clusters import load_cluster
from planner.validation.hardware import PROCESSOR, to_cluster
from planner.validation.records import Hardware


def test_a_run_on_a_part_of_a_node_has_its_whole_processor() -> None:
    whole = load_cluster("1xdgx-a100-320").node
    one = to_cluster(Hardware(gpu="a100", gpus=1, node="dgx-a100-320")).node
    assert one.num_accelerators == 1
    for name in PROCESSOR:
        assert getattr(one, name) == getattr(whole, name)
    assert one.nic_bytes_per_s == whole.nic_bytes_per_s / whole.num_accelerators
