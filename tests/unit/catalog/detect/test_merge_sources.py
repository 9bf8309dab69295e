"""Sources of one node against each other and against the catalog."""

from dataclasses import replace

import pytest

from planner.catalog.detect.merge import Choice, Machine, merge
from planner.catalog.detect.observation import Links, Nics, Observation, Slot
from planner.catalog.detect.recognise import Source
from planner.catalog.detect.sinfo import NodeGroup, SlurmNodes
from planner.errors import InputError

H100 = Observation(where="smi", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
L40S = Observation(where="smi", gpu="NVIDIA L40S", num_gpus=8)
NONE = Links(pairs=((0,) * 8,) * 8)


def every_pair(count: int, size: int = 8) -> Links:
    return Links(
        pairs=tuple(tuple(0 if i == j else count for j in range(size)) for i in range(size))
    )


def merged(*sources: Source, accelerator: str = "", partition: str = "") -> Machine:
    return merge(list(sources), Choice(accelerator=accelerator, partition=partition))


def overrides(machine: Machine) -> dict[str, float]:
    return {override.key: override.value for override in machine.overrides}


def groups(*given: tuple[str, int, int, str]) -> SlurmNodes:
    made = (
        NodeGroup(gpu=g, gpus_per_node=n, num_nodes=k, memory_mib=None, partitions=(p,))
        for g, n, k, p in given
    )
    return SlurmNodes(where="sinfo", groups=tuple(made))


def test_what_nothing_told_is_the_catalogs_and_said_to_be() -> None:
    machine = merged(H100)
    assert (machine.node, machine.num_nodes, overrides(machine)) == ("dgx-h100", 1, {})
    assert machine.kept[:4] == (
        "GPU memory",
        "links between GPUs (nvlink, 450 GB/s)",
        "network (8 x 400 Gbit/s, ib-ndr)",
        "host memory (2048 GiB)",
    )
    assert "count is 1" in machine.notes[-1]


@pytest.mark.parametrize(("mib", "expected"), [(81559, {}), (70000, {"hbm_gib": 68.359})])
def test_memory_is_overridden_only_beyond_three_percent(
    mib: float, expected: dict[str, float]
) -> None:
    machine = merged(replace(H100, memory_mib=mib))
    assert overrides(machine) == expected


SIZES = ("accelerators_per_node", "scale_up_domain_accelerators")


def test_another_number_of_gpus_shrinks_the_domain_too() -> None:
    given = overrides(merged(replace(H100, num_gpus=4)))
    assert [given[key] for key in SIZES] == [4, 4]


def test_a_part_of_a_node_has_its_share_of_ports_host_memory_and_price() -> None:
    machine = merged(replace(H100, num_gpus=3))
    given = {key: value for key, value in overrides(machine).items() if key not in SIZES}
    assert given == {"nics": 3, "host_memory_gib": 768, "usd_per_hour": 9.6}
    assert "network (3 x 400 Gbit/s, ib-ndr)" in machine.kept
    assert "host memory (768 GiB)" in machine.kept
    told = replace(
        H100,
        num_gpus=3,
        host_memory_mib=2048 * 1024,
        nics=Nics(count=8, gbit_per_s=400, kind="infiniband"),
    )
    assert set(overrides(merged(told))) == {*SIZES, "usd_per_hour"}


def test_the_domain_of_a_rack_stays() -> None:
    seen = Observation(where="smi", gpu="NVIDIA GB200", num_gpus=2)
    machine = merged(seen)
    assert machine.node == "gb200-tray"
    assert overrides(machine)["accelerators_per_node"] == 2
    assert "scale_up_domain_accelerators" not in overrides(machine)


def test_ports_choose_the_node_and_then_the_fabric() -> None:
    azure = merged(replace(H100, nics=Nics(count=8, gbit_per_s=400, kind="infiniband")))
    assert (azure.node, azure.fabric, overrides(azure)) == ("dgx-h100", None, {})
    google = merged(replace(H100, nics=Nics(count=8, gbit_per_s=200, kind="ethernet")))
    assert (google.node, google.fabric, overrides(google)) == ("gcp-a3-megagpu-8g", None, {})
    half = merged(replace(H100, nics=Nics(count=4, gbit_per_s=200, kind="infiniband")))
    assert (half.node, half.fabric) == ("dgx-h100", "ib-hdr")
    assert overrides(half) == {"nics": 4, "nic_gbit_per_s": 200}


def test_ethernet_that_no_node_has_takes_the_usual_node_and_not_a_clouds() -> None:
    machine = merged(replace(H100, nics=Nics(count=16, gbit_per_s=200, kind="ethernet")))
    assert (machine.node, machine.fabric) == ("dgx-h100", "eth-200g")


def test_two_gpus_of_a_switched_board_are_no_board_with_direct_links() -> None:
    links = Links(pairs=((0, 12), (12, 0)))
    machine = merged(Observation(where="topo", gpu="a100-sxm-80", num_gpus=2, links=links))
    assert (machine.node, machine.new_node) == ("dgx-a100-640", None)
    assert "scale_up_gb_per_s_per_direction" not in overrides(machine)


def test_ports_that_a_library_joins_are_the_same_ports() -> None:
    machine = merged(replace(H100, nics=Nics(count=8, gbit_per_s=400, kind="efa")))
    assert (machine.node, machine.fabric, overrides(machine)) == ("aws-p5.48xlarge", None, {})


def test_fewer_nvlinks_lower_the_rate() -> None:
    machine = merged(replace(H100, links=Links(pairs=NONE.pairs, to_switch=16)))
    assert overrides(machine) == {"scale_up_gb_per_s_per_direction": 400}


def test_a_matrix_without_nvlinks_does_not_take_them_from_a_board_that_has_them() -> None:
    machine = merged(replace(H100, links=NONE))
    assert (machine.node, machine.new_node, overrides(machine)) == ("dgx-h100", None, {})
    assert any("shows no NVLink" in note for note in machine.notes)


def test_links_of_no_known_shape_are_noted_and_left() -> None:
    links = Links(pairs=((0, 4, 0), (4, 0, 4), (0, 4, 0)))
    machine = merged(replace(H100, num_gpus=3, links=links))
    assert any("no shape known here" in note for note in machine.notes)
    assert machine.new_node is None


def test_two_meshes_of_four_become_a_package_over_pcie() -> None:
    pairs = tuple(
        tuple(2 if i != j and i // 4 == j // 4 else 0 for j in range(8)) for i in range(8)
    )
    seen = Observation(
        where="smi",
        gpu="Tesla V100-SXM2-32GB",
        num_gpus=8,
        links=Links(pairs=pairs),
        slot=Slot(generation=3, lanes=16),
    )
    raw = merged(seen).new_node
    assert raw is not None
    assert raw["package"]["accelerators"]["value"] == 4
    assert raw["package"]["gb_per_s_per_direction"]["value"] == 150
    assert raw["scale_up"]["kind"] == "pcie3"
    assert "price" not in raw


def test_a_mesh_where_the_catalog_has_switches_is_a_new_node() -> None:
    seen = Observation(where="smi", gpu="NVIDIA H100 80GB HBM3", num_gpus=4, links=every_pair(6, 4))
    machine = merged(seen)
    assert machine.new_node is not None
    section = machine.new_node["scale_up"]
    assert section["topology"] == "fully_connected"
    assert section["gb_per_s_per_direction"]["value"] == 450
    assert "reduces_in_network" not in section
    assert overrides(machine) == {}


def test_a_slow_slot_lowers_what_crosses_it() -> None:
    machine = merged(replace(L40S, slot=Slot(generation=4, lanes=8)))
    assert overrides(machine) == {
        "host_link_gb_per_s_per_direction": 13.14,
        "scale_up_gb_per_s_per_direction": 13.14,
    }


def test_a_fast_slot_changes_nothing() -> None:
    assert overrides(merged(replace(L40S, slot=Slot(generation=5, lanes=16)))) == {}


def test_sources_that_contradict_each_other_are_all_named() -> None:
    other = Observation(where="xml", gpu="10de:20b0", num_gpus=4)
    with pytest.raises(InputError) as error:
        merged(H100, other)
    told = [(problem.where, problem.key) for problem in error.value.problems]
    assert told == [("xml", "GPU"), ("xml", "GPUs per node")]
    assert "told 4 here and 8 by smi" in str(error.value)


def test_an_unknown_gpu_is_refused_with_the_option_that_helps() -> None:
    unknown = Observation(where="smi", gpu="NVIDIA L40", num_gpus=8)
    with pytest.raises(InputError, match="nearest are l40s, l4, choose with --accelerator NAME"):
        merged(unknown)
    assert merged(unknown, accelerator="l40s").accelerator == "l40s"
    with pytest.raises(InputError, match="command line::--accelerator: no accelerator"):
        merged(unknown, accelerator="nothing")


def test_without_any_name_the_gpus_must_be_named() -> None:
    with pytest.raises(InputError, match="no source names the GPUs"):
        merged(groups(("", 8, 4, "p")))
    machine = merged(groups(("", 8, 4, "p")), accelerator="h100")
    assert (machine.node, machine.num_nodes) == ("dgx-h100", 4)


def test_the_largest_kind_is_taken_and_others_named() -> None:
    machine = merged(groups(("h100", 8, 16, "gpu"), ("v100", 4, 4, "old")))
    assert (machine.accelerator, machine.num_nodes) == ("h100-sxm", 16)
    assert "left out: 4 nodes of 4 x v100 (old)" in machine.notes[0]


def test_a_partition_or_an_accelerator_chooses_another_kind() -> None:
    slurm = groups(("h100", 8, 16, "gpu"), ("v100", 4, 4, "old"))
    assert merged(slurm, partition="old").accelerator == "v100-sxm2-32"
    assert merged(slurm, accelerator="v100-sxm2-32").num_nodes == 4
    with pytest.raises(InputError, match="no GPUs in partition 'new'; allowed gpu, old"):
        merged(slurm, partition="new")
    with pytest.raises(InputError, match="--accelerator: no nodes with l40s"):
        merged(slurm, accelerator="l40s")


def test_what_another_source_saw_chooses_the_kind_whatever_the_site_calls_it() -> None:
    seen = Observation(where="smi", gpu="NVIDIA A100-SXM4-40GB", num_gpus=4)
    machine = merged(seen, groups(("h100", 8, 16, "gpu"), ("a100", 4, 4, "old")))
    assert (machine.accelerator, machine.num_nodes) == ("a100-sxm-40", 4)
    named = merged(seen, groups(("h100", 8, 16, "gpu"), ("site-special", 4, 2, "old")))
    assert (named.accelerator, named.num_nodes) == ("a100-sxm-40", 2)


def test_a_partition_without_sinfo_is_refused() -> None:
    with pytest.raises(InputError, match="--partition: partitions are told by sinfo"):
        merged(H100, partition="gpu")


def test_figures_of_a_wrong_size_are_refused_not_written() -> None:
    with pytest.raises(InputError, match="implausible magnitude"):
        merged(replace(H100, memory_mib=1.0))
