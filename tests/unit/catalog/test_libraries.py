"""Library files: every rule names an algorithm that can do it, and figures have sources."""

import pytest

from planner.catalog.figures import validate
from planner.catalog.libraries import LibraryFile, list_libraries, load_library, usual_library
from planner.catalog.paths import hwdb_dir
from planner.collectives.algorithms import BY_NAME
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError


@pytest.mark.parametrize("name", list_libraries())
def test_every_rule_names_an_algorithm_that_does_it_and_a_source(name: str) -> None:
    path = hwdb_dir() / "libraries" / f"{name}.yaml"
    file = validate(LibraryFile, load_yaml(path), str(path))
    for rule in file.rules:
        assert rule.source in file.sources
        for kind in rule.kinds:
            assert kind in BY_NAME[rule.algorithm].flat
    if file.tuning is not None:
        assert file.tuning.source in file.sources


def test_nccl_is_converted_to_base_units() -> None:
    tuning = load_library("nccl").tuning
    assert tuning is not None
    hopper = next(g for g in tuning.generations if g.name == "hopper")
    assert hopper.ll_bytes_per_s == pytest.approx(141e9)
    assert hopper.nvls_fraction == 0.85
    assert tuning.base_latency_s["ring"]["LL128"] == pytest.approx(14e-6)
    assert tuning.hardware_latency_s["net"]["tree"]["Simple"] == pytest.approx(14e-6)
    assert tuning.generations[-1].nvls_fraction == 0


def test_an_unknown_library_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="given 'ncl', allowed are gloo, hccl, mpi, nccl"):
        load_library("ncl")


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("NVIDIA", "nccl"),
        ("AMD", "rccl"),
        ("Intel", "oneccl"),
        ("Huawei", "hccl"),
        ("Google", "mpi"),
    ],
)
def test_every_vendor_has_its_library(vendor: str, name: str) -> None:
    assert usual_library(vendor) == name
