import re
from pathlib import Path

import pytest
import yaml
from places import assert_places

from planner.catalog import hwdb_dir
from planner.catalog.clusters import (
    largest_cluster_of,
    load_cluster,
    load_cluster_of,
    node_of_catalog,
)
from planner.catalog.hardware import aliases, list_names
from planner.documents import tree
from planner.documents.file import read_text
from planner.errors import InputError

FILES = Path(__file__).with_name("cluster_files.yaml")
OF_FILES = yaml.safe_load(FILES.read_text("utf-8"))
LOADED = yaml.safe_load(Path(__file__).with_name("loaded.yaml").read_text("utf-8"))


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(argument: str | Path) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load_cluster(argument)
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("name", LOADED)
def test_a_cluster_is_loaded_in_base_units(name: str) -> None:
    assert_places(load_cluster(name), LOADED[name])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("12xh100", "^12 is not a multiple of 8, the h100-sxm in one .*nearest are 8 and 16$"),
        *((f"{n}xdgx-h100", "number of 1 to 10,000,000") for n in ("0", "-2", "1.5", "1,000")),
        *((words, "16xdgx-h100") for words in ("", "x", "8", "8x")),
        ("16xdgx-h10", "did you mean dgx-h100"),
        ("8xmi250x", "mi250x-gcd"),
        ("128xsuperpod-h100", "has 127 nodes; given 128"),
    ],
)
def test_what_is_no_cluster_is_refused_with_what_is(argument: str, said: str) -> None:
    (message,) = problems_of(argument).values()
    assert re.search(said, message)


@pytest.mark.parametrize("claim", OF_FILES)
def test_a_file_is_the_cluster_that_it_states(tmp_path: Path, claim: str) -> None:
    text, places, note = OF_FILES[claim]
    cluster = load_cluster(written(tmp_path, text))
    assert_places(cluster, places)
    assert note in map(str, cluster.assumptions)


def test_published_machines_give_a_range_of_products() -> None:
    gemm = load_cluster("1xdgx-b200").accelerator.gemm
    assert gemm.has_range
    assert gemm.slowest <= gemm.sustained_fraction <= gemm.fastest


def test_a_file_can_bring_its_own_accelerator_beside_it(tmp_path: Path) -> None:
    text = (hwdb_dir() / "accelerators" / "h100-sxm.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("989", "500"), encoding="utf-8")
    path = written(tmp_path, "node: dgx-h100\ncount: 1\naccelerator: ./mine.yaml\n")
    accelerator = load_cluster(path).accelerator
    assert accelerator.name == "mine"
    assert accelerator.peak_flops_per_s["bf16"] == pytest.approx(500e12)


def test_a_node_without_ports_makes_no_cluster_but_stands_alone(tmp_path: Path) -> None:
    lines = (hwdb_dir() / "nodes" / "dgx-h100.yaml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("nics:", "nic_gbit_per_s:"))]
    (tmp_path / "node.yaml").write_text("\n".join(kept), encoding="utf-8")
    one = load_cluster(written(tmp_path, "node: ./node.yaml\ncount: 1\n"))
    assert one.fabric.bytes_per_s > 0
    message = problems_of(written(tmp_path, "node: ./node.yaml\ncount: 2\n"))["cluster"]
    assert "no network ports are known" in message


def test_loading_a_cluster_reads_only_the_files_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def read_and_note(path: Path) -> str:
        read.append(path.relative_to(hwdb_dir()).as_posix())
        return read_text(path)

    monkeypatch.setattr(tree, "read_text", read_and_note)
    for kept in (tree.load_trusted, aliases, node_of_catalog):
        kept.cache_clear()
    load_cluster("512xh100-sxm")
    assert set(read) == {
        "aliases.yaml",
        "accelerators/h100-sxm.yaml",
        "nodes/dgx-h100.yaml",
        "fabrics/ib-ndr.yaml",
    }
    assert len(read) == len(set(read))


@pytest.mark.parametrize(
    ("argument", "gpus", "same"),
    [
        *((f"{n}dgx-h100", 128, "16xdgx-h100") for n in ("", "64x")),
        *((f"{n}h100-sxm", 128, "16xdgx-h100") for n in ("", "16x")),
        ("dgx-h100", 4, "4xh100-sxm"),
        ("h100-sxm", 4, "4xh100-sxm"),
        ("frontier", 8192, "1024xfrontier"),
    ],
)
def test_so_many_accelerators_whatever_the_count(argument: str, gpus: int, same: str) -> None:
    cluster, other = load_cluster_of(argument, gpus), load_cluster(same)
    assert (cluster.node, cluster.fabric) == (other.node, other.fabric)
    assert cluster.num_accelerators == other.num_accelerators == gpus


def test_a_size_that_fills_no_nodes_and_what_is_unknown_is_refused() -> None:
    with pytest.raises(InputError, match="12 is not a multiple of 8"):
        load_cluster_of("dgx-h100", 12)
    with pytest.raises(InputError, match="did you mean dgx-h100"):
        largest_cluster_of("dgx-h1000", 64)


def test_a_file_gives_node_and_overrides_at_any_size(tmp_path: Path) -> None:
    path = written(tmp_path, "node: dgx-h100\ncount: 2\noverrides:\n  nic_gbit_per_s: 100\n")
    cluster = load_cluster_of(str(path), 64)
    assert (cluster.num_nodes, cluster.num_accelerators) == (8, 64)
    assert cluster.fabric.num_accelerators == 64
    assert cluster.fabric.bytes_per_s == load_cluster(path).fabric.bytes_per_s


def test_a_file_gives_the_levels_that_so_many_nodes_reach(tmp_path: Path) -> None:
    text = "node: dgx-h100\ncount: 2\nlevels:\n  - {name: leaf, num_nodes: 4}\n  - {name: spine}\n"
    path = written(tmp_path, text)
    assert [level.name for level in load_cluster_of(str(path), 16).levels] == ["nvlink", "leaf"]
    levels = [level.name for level in load_cluster_of(str(path), 64).levels]
    assert levels == ["nvlink", "leaf", "spine"]


@pytest.mark.parametrize(
    ("argument", "most", "accelerators"),
    [
        ("dgx-h100", 100, 96),
        ("16xdgx-h100", 65536, 65536),
        ("h100-sxm", 100, 96),
        ("summit", 100, 96),
        ("dgx-h100", 5, 5),
        ("tpu-v4-pod", 65536, 4096),
    ],
)
def test_the_largest_cluster_of_whole_nodes(argument: str, most: int, accelerators: int) -> None:
    assert largest_cluster_of(argument, most).num_accelerators == accelerators


def test_everyday_keys_that_say_nothing_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="network: unknown key"):
        load_cluster(written(tmp_path, "nodes: 4\ngpu: H100\nnetwork: fast\n"))


@pytest.mark.parametrize("name", list_names("clusters"))
def test_every_machine_loads_and_its_levels_grow(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    sizes = [level.num_accelerators for level in cluster.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] == cluster.num_accelerators


def test_a_package_is_the_fastest_level() -> None:
    aurora = load_cluster("aurora")
    assert aurora.levels[0].bytes_per_s > 10 * aurora.domain.bytes_per_s
