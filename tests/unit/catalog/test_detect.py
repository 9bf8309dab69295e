"""Sources of one node against each other and against the catalog."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import assert_places

from planner.catalog.detect import Machine, accelerator_of, cluster_text, merge
from planner.catalog.observe import Observation, Slot, Source
from planner.errors import InputError

NAMES = yaml.safe_load((Path(__file__).parents[2] / "examples" / "names.yaml").read_text())
CASES = yaml.safe_load(Path(__file__).with_name("detected.yaml").read_text("utf-8"))
H100 = Observation(where="smi", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)


def merged(*seen: Observation | Source, accelerator: str = "") -> Machine:
    sources = [each if isinstance(each, tuple) else (each,) for each in seen]
    return merge(sources, accelerator)


def observed(given: dict[str, Any]) -> Observation:
    slot = {"slot": Slot(*given["slot"])} if "slot" in given else {}
    return Observation(**{**given, **slot})


@pytest.mark.parametrize(
    ("sources", "places", "overrides"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_sources_make_a_machine(
    sources: list[Any], places: dict[str, Any], overrides: dict[str, float]
) -> None:
    groups = (source if isinstance(source, list) else [source] for source in sources)
    machine = merged(*(tuple(map(observed, group)) for group in groups))
    assert_places(machine, places)
    assert {override.key: override.value for override in machine.overrides} == overrides


def groups(*given: tuple[str, int, int]) -> Source:
    return tuple(Observation(where="sinfo", gpu=g, num_gpus=n, num_nodes=k) for g, n, k in given)


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


def test_an_accelerator_chooses_another_kind() -> None:
    slurm = groups(("h100", 8, 16), ("v100", 4, 4))
    assert merged(slurm, accelerator="v100-sxm2-32").num_nodes == 4
    with pytest.raises(InputError, match="no nodes with l40s; there are 16 nodes of 8 x h100"):
        merged(slurm, accelerator="l40s")


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
