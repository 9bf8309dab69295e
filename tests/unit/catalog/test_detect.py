"""Sources of one node against each other and against the catalog."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.catalog.detect import Machine, accelerator_of, cluster_text, merge
from planner.catalog.observe import Observation, Slot, Source
from planner.errors import InputError

NAMES = yaml.safe_load((Path(__file__).parents[2] / "examples" / "names.yaml").read_text())
H100 = Observation(where="smi", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
L40S = Observation(where="smi", gpu="NVIDIA L40S", num_gpus=8)


def merged(*seen: Observation | Source, accelerator: str = "") -> Machine:
    sources = [each if isinstance(each, tuple) else (each,) for each in seen]
    return merge(sources, accelerator)


def overrides(machine: Machine) -> dict[str, float]:
    return {override.key: override.value for override in machine.overrides}


def groups(*given: tuple[str, int, int]) -> Source:
    return tuple(Observation(where="sinfo", gpu=g, num_gpus=n, num_nodes=k) for g, n, k in given)


def test_what_nothing_told_is_the_catalogs() -> None:
    machine = merged(H100)
    assert (machine.node, machine.num_nodes, overrides(machine)) == ("dgx-h100", 1, {})
    assert "count is 1" in machine.notes[-1]


@pytest.mark.parametrize(("mib", "expected"), [(81559, {}), (70000, {"hbm_gib": 68.359})])
def test_memory_differs_only_beyond_three_percent(mib: float, expected: dict[str, float]) -> None:
    assert overrides(merged(replace(H100, memory_mib=mib))) == expected


SIZES = ("accelerators_per_node", "scale_up_domain_accelerators")


def test_another_number_of_gpus_shrinks_the_domain_too() -> None:
    given = overrides(merged(replace(H100, num_gpus=4)))
    assert [given[key] for key in SIZES] == [4, 4]


def test_a_part_of_a_node_has_its_share_of_ports_host_memory_and_price() -> None:
    machine = merged(replace(H100, num_gpus=3))
    given = {key: value for key, value in overrides(machine).items() if key not in SIZES}
    assert given == {"nics": 3, "host_memory_gib": 768, "usd_per_hour": 9.6}
    told = replace(H100, num_gpus=3, host_memory_mib=2048 * 1024)
    assert set(overrides(merged(told))) == {*SIZES, "nics", "usd_per_hour"}


def test_the_domain_of_a_rack_stays() -> None:
    seen = Observation(where="smi", gpu="NVIDIA GB200", num_gpus=2)
    machine = merged(seen)
    assert machine.node == "gb200-tray"
    assert overrides(machine)["accelerators_per_node"] == 2
    assert "scale_up_domain_accelerators" not in overrides(machine)


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
    with pytest.raises(
        InputError, match="nearest are l40s, l4, l20, choose with --accelerator NAME"
    ):
        merged(unknown)
    assert merged(unknown, accelerator="l40s").accelerator == "l40s"
    with pytest.raises(InputError, match="command line::--accelerator: no accelerator"):
        merged(unknown, accelerator="nothing")


def test_without_any_name_the_gpus_must_be_named() -> None:
    with pytest.raises(InputError, match="no source names the GPUs"):
        merged(groups(("", 8, 4)))
    machine = merged(groups(("", 8, 4)), accelerator="h100")
    assert (machine.node, machine.num_nodes) == ("dgx-h100", 4)


def test_the_largest_kind_is_taken_and_others_named() -> None:
    machine = merged(groups(("h100", 8, 16), ("v100", 4, 4)))
    assert (machine.accelerator, machine.num_nodes) == ("h100-sxm", 16)
    assert "left out: 4 nodes of 4 x v100;" in machine.notes[0]


def test_an_accelerator_chooses_another_kind() -> None:
    slurm = groups(("h100", 8, 16), ("v100", 4, 4))
    assert merged(slurm, accelerator="v100-sxm2-32").num_nodes == 4
    with pytest.raises(InputError, match="no nodes with l40s; there are 16 nodes of 8 x h100"):
        merged(slurm, accelerator="l40s")


def test_what_another_source_saw_chooses_the_kind_whatever_the_site_calls_it() -> None:
    seen = Observation(where="smi", gpu="NVIDIA A100-SXM4-40GB", num_gpus=4)
    machine = merged(seen, groups(("h100", 8, 16), ("a100", 4, 4)))
    assert (machine.accelerator, machine.num_nodes) == ("a100-sxm-40", 4)
    named = merged(seen, groups(("h100", 8, 16), ("site-special", 4, 2)))
    assert (named.accelerator, named.num_nodes) == ("a100-sxm-40", 2)


def test_figures_of_a_wrong_size_are_refused_not_written() -> None:
    with pytest.raises(InputError, match="implausible magnitude"):
        merged(replace(H100, memory_mib=1.0))


@pytest.mark.parametrize(("printed", "name"), NAMES["printed"].items())
def test_what_tools_print_is_known(printed: str, name: str) -> None:
    assert accelerator_of(printed) == name


@pytest.mark.parametrize(
    "printed", ["NVIDIA A30", "NVIDIA L40", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA", "", "H"]
)
def test_what_is_not_in_the_catalog_is_not_guessed(printed: str) -> None:
    assert accelerator_of(printed) is None


def test_every_figure_says_where_it_was_seen() -> None:
    seen = Observation(where="a/smi.csv", gpu="NVIDIA L40S", num_gpus=4, memory_mib=40960)
    text = cluster_text(merged(seen), "planner show hardware --from a/smi.csv")
    assert text.startswith(
        "# Written by `planner show hardware --from a/smi.csv`; edit what is wrong."
    )
    assert "# Seen: 4 x l40s; what is not overridden is the node's.\n" in text
    assert "  hbm_gib: 40  # smi.csv; catalog: 44.4\n" in text
    assert "  accelerators_per_node: 4  # smi.csv; catalog: 8\n" in text


def test_names_of_files_cannot_leave_their_comment() -> None:
    seen = Observation(where="smi\nnode: other", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
    text = cluster_text(merged(seen), "planner\nhardware")
    assert "\nnode: other" not in text
    assert "# Written by `planner\\nhardware`" in text
