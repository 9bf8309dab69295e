import pytest

from planner.catalog.detect.accelerator import accelerator_of, may_mean, nearest_accelerators
from planner.catalog.hardware import aliases, list_names


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("A100-SXM-80GB", "a100-sxm-80"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA GH200 120GB", "gh200-96"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("Quadro RTX 5000", "rtx5000-quadro"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2-16"),
        ("AMD Instinct MI300X", "mi300x"),
        ("nvidia_h100_80gb_hbm3", "h100-sxm"),
        ("a100", "a100-sxm-80"),
        ("10de:2330", "h100-sxm"),
        ("1002:74a1", "mi300x"),
    ],
)
def test_what_tools_print_is_known(printed: str, name: str) -> None:
    assert accelerator_of(printed) == name


@pytest.mark.parametrize(
    "printed", ["NVIDIA A30", "NVIDIA L40", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA", "", "H"]
)
def test_what_is_not_in_the_catalog_is_not_guessed(printed: str) -> None:
    assert accelerator_of(printed) is None


def test_names_spelled_alike_are_offered() -> None:
    assert nearest_accelerators("NVIDIA L40") == ["l40s", "l4"]


def test_a_site_label_may_mean_every_accelerator_whose_name_has_its_words() -> None:
    assert may_mean("a100", "a100-sxm-40")
    assert not may_mean("a100", "h100-sxm")
    assert not may_mean("", "h100-sxm")


def test_every_alias_of_an_accelerator_leads_to_one() -> None:
    assert set(aliases()["accelerators"].values()) <= set(list_names("accelerators"))
