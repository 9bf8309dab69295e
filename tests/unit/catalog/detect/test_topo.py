import pytest

from planner.catalog.detect.observation import Links
from planner.catalog.detect.topo import parse_topo
from planner.errors import InputError

PAIR = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV4\tPIX\t0-7\nGPU1\tNV4\t X \tSYS\t0-7\n"


def test_bonds_of_nvlinks_are_read_and_ports_only_counted() -> None:
    seen = parse_topo(PAIR + "NIC0\tPIX\tSYS\t X \n", "topo")
    assert seen.num_gpus == 2
    assert seen.links == Links(pairs=((0, 4), (4, 0)), to_switch=None)
    assert seen.nics is None
    assert seen.notes == ("1 network port, rates not told (an NCCL topology file tells them)",)


def test_pcie_paths_are_no_nvlinks() -> None:
    seen = parse_topo(PAIR.replace("NV4", "PHB"), "topo")
    assert seen.links == Links(pairs=((0, 0), (0, 0)))


def test_text_before_the_matrix_and_the_legend_are_left_out() -> None:
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection\n"
    assert parse_topo("$ nvidia-smi topo -m\n" + PAIR + legend, "topo").num_gpus == 2


def test_a_missing_row_is_named() -> None:
    with pytest.raises(InputError, match="has no row of GPU1; is it cut off"):
        parse_topo("\n".join(PAIR.splitlines()[:2]), "topo")


def test_a_row_that_is_cut_off_is_named() -> None:
    with pytest.raises(InputError, match="line 3: GPU1: has 1 of 2 columns"):
        parse_topo("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4", "topo")


def test_a_gpu_named_twice_is_refused() -> None:
    with pytest.raises(InputError, match="names a GPU twice"):
        parse_topo("\tGPU0\tGPU0\nGPU0\tX\tX\n", "topo")


def test_a_header_whose_indent_was_lost_is_found() -> None:
    assert parse_topo(PAIR.lstrip(), "topo") == parse_topo(PAIR, "topo")


def test_ports_of_omni_path_and_slingshot_are_counted() -> None:
    text = PAIR.replace("NIC0", "hfi1_0").replace("CPU Aff", "cxi0\tCPU Aff")
    assert parse_topo(text, "topo").notes[0].startswith("2 network ports")
