import re
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import hwdb_dir
from planner.catalog.clusters import node_of_catalog
from planner.catalog.figures import validate
from planner.catalog.hardware import (
    SCHEMAS,
    aliases,
    figure_rows,
    host_rules,
    list_names,
    load_accelerator,
    load_entry,
    texts_of,
)
from planner.catalog.hardware_convert import fabric_levels
from planner.catalog.hardware_file import AcceleratorFile, FabricFile, NodeFile
from planner.documents.tree import load_yaml
from planner.errors import InputError
from planner.spec.cluster import AcceleratorSpec, LevelSpec
from planner.units import GIB

FILES = {"accelerators": AcceleratorFile, "nodes": NodeFile, "fabrics": FabricFile}
BROKEN = load_yaml(Path(__file__).with_name("broken_hardware.yaml"))


def load_fabric(name: str) -> LevelSpec:
    path = hwdb_dir() / "fabrics" / f"{name}.yaml"
    file = validate(FabricFile, load_yaml(path), str(path))
    return fabric_levels(file, name, 8, node_of_catalog("dgx-h100")[0], 1e9)[-1]


@pytest.mark.parametrize("name", list_names("accelerators"))
def test_every_accelerator_loads_and_knows_its_node(name: str) -> None:
    accelerator = load_accelerator(name)
    assert accelerator.peak_flops_per_s.keys() & {"bf16", "fp16"}
    assert accelerator.usual_node is not None
    assert node_of_catalog(accelerator.usual_node)[0].accelerator.name == name


@pytest.mark.parametrize("name", list_names("nodes"))
def test_every_node_loads_with_its_accelerator_and_fabric(name: str) -> None:
    node = node_of_catalog(name)[0]
    assert node.nic_bytes_per_s > 0
    assert node.scale_up.num_accelerators >= node.num_accelerators
    assert load_fabric(node.fabric).efficiency_fraction <= 1
    assert node.host_memory_bytes is not None
    if node.host_memory_note == host_rules()[1].times_accelerator_memory.note:
        held = node.num_accelerators * node.accelerator.hbm_bytes
        assert 2.0 * held <= node.host_memory_bytes <= 2.0 * held + 64 * GIB


@pytest.mark.parametrize("name", list_names("fabrics"))
def test_every_fabric_loads(name: str) -> None:
    assert load_fabric(name).latency_s > 0


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_figure_has_a_citation_and_no_catalog_figure_is_given_by_a_user(kind: str) -> None:
    for name in list_names(kind):  # type: ignore[arg-type]
        for row in figure_rows(load_entry(name)[2]):
            assert row.source, (name, row.name)
            assert row.basis in {"read", "recalled", "derived", "assumed", "measured"}


def test_no_file_lists_a_source_that_no_figure_uses() -> None:
    listing = [path for path in hwdb_dir().glob("*/*.yaml") if path.parent.name != "recipes"]
    assert len(listing) > 100
    for path in [*listing, hwdb_dir() / "host_memory.yaml", hwdb_dir() / "detection.yaml"]:
        used = set(re.findall(r"\bsource: ([\w-]+)", path.read_text(encoding="utf-8")))
        assert used == set(load_yaml(path)["sources"]), path


def test_names_and_aliases_are_unique_and_lead_somewhere() -> None:
    seen: set[str] = set()
    for kind in SCHEMAS:
        names = list_names(kind)
        assert set(aliases()[kind].values()) <= set(names)
        for name in [*names, *aliases()[kind]]:
            assert name == name.lower()
            assert name not in seen
            seen.add(name)


def test_a_ring_on_omni_path_has_one_port_of_a_node() -> None:
    assert load_fabric("omni-path-100").ring_bytes_per_s == 12.5e9
    assert load_fabric("ib-hdr").ring_bytes_per_s == float("inf")


def test_collectives_follow_the_scale_up_rate_of_the_node() -> None:
    full, third = node_of_catalog("dgx-a100")[0], node_of_catalog("jean-zay-a100")[0]
    fast = full.accelerator.collectives["all_reduce"][0].busbw_bytes_per_s
    slow = third.accelerator.collectives["all_reduce"][0].busbw_bytes_per_s
    assert slow == pytest.approx([rate / 3 for rate in fast])
    assert any("times 0.33" in text for text in third.assumptions)


def test_aliases_ignore_case_and_unknown_names_offer_the_nearest() -> None:
    assert load_accelerator("A100-80GB").name == "a100-sxm-80"
    with pytest.raises(InputError, match=r"unknown accelerator 'h10o'; did you mean h100"):
        load_accelerator("h10o")
    with pytest.raises(InputError, match=r"unknown hardware 'dgxh100'; did you mean dgx-h100"):
        load_entry("dgxh100")


def test_assumed_figures_are_named_with_their_reason() -> None:
    t4: AcceleratorSpec = load_accelerator("t4")
    assert any("gemm.sustained_fraction" in text for text in t4.assumptions)
    a100 = load_accelerator("a100-sxm-80")
    assert a100.assumptions == ()
    assert "fp8" not in a100.peak_flops_per_s


def test_rows_show_vendor_units_and_sources() -> None:
    rows = {row.name: row for row in figure_rows(load_entry("h100-sxm")[2])}
    row = rows["hbm_gb_per_s"]
    assert (row.value, row.unit, row.basis) == (3350, "GB/s", "read")
    assert row.source.startswith("stas00/ml-engineering compute/accelerator/README.md @744d01e")
    assert rows["collectives.all_reduce[0].busbw_gb_per_s"].value == (132, 301.4)
    node = load_entry("dgx-h100")[2]
    assert texts_of(node)["accelerator"] == "h100-sxm"
    units = {row.name: row.unit for row in figure_rows(node)}
    assert units["scale_up.gb_per_s_per_direction"] == "GB/s per direction"
    assert units["price.usd_per_hour"] == "USD/h"


def test_a_precision_without_offsets_of_its_own_takes_those_of_16_bits() -> None:
    gaudi = load_accelerator("gaudi3").gemm
    low = gaudi.low_precision["fp8"]
    for name in ("m0", "n0", "k0", "launch_s"):
        assert getattr(low, name) == getattr(gaudi, name)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_its_keys(name: str) -> None:
    case = BROKEN[name]
    raw = load_yaml(hwdb_dir() / f"{case['file']}.yaml")
    for path, value in case["set"].items():
        *above, last = path.split(".")
        part: Any = raw
        for key in above:
            part = part[int(key) if isinstance(part, list) else key]
        part[last] = value
        if value is None:
            del part[last]
    with pytest.raises(InputError) as caught:
        validate(FILES[case["file"].partition("/")[0]], raw, "mine.yaml")
    found = {problem.key: problem.message for problem in caught.value.problems}
    for key, text in case["says"].items():
        assert text in found.get(key, ""), found
