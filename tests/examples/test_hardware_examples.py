"""Sample outputs of tools: each becomes the cluster it describes, or is refused by name."""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.detect import Machine, cluster_text, merge
from planner.catalog.observe import read_source
from planner.errors import InputError

FOLDER = Path(__file__).parent / "hardware"
POSITIVE = FOLDER / "positive"

MACHINES: dict[tuple[str, ...], tuple[str, int, int, dict[str, float]]] = {
    ("dgx-h100.smi.csv",): ("dgx-h100", 1, 8, {}),
    ("dgx-h100.smi.csv", "slurm.sinfo.txt"): ("dgx-h100", 16, 8, {"host_memory_gib": 1006.8}),
    ("slurm.sinfo.txt",): ("dgx-h100", 16, 8, {"host_memory_gib": 1006.8}),
    ("a100-40.smi.csv",): ("dgx-a100-320", 1, 8, {}),
    ("v100-mesh.smi.csv",): ("jean-zay-v100", 1, 4, {}),
    ("dgx-1-v100.smi.csv",): ("dgx-1-v100", 1, 8, {}),
    ("l40s.smi.csv",): (
        "pcie-8x-l40s",
        1,
        4,
        {"accelerators_per_node": 4, "scale_up_domain_accelerators": 4},
    ),
}
"""Files of one machine to node, nodes, GPUs per node, overrides."""

REFUSED: dict[str, tuple[str, ...]] = {
    "bad-memory.smi.csv": ("line 2: memory.total: must be a number", "line 3: memory.total"),
    "control.txt": ("has the control character",),
    "empty.txt": ("no table of a known tool; known are `nvidia-smi --query-gpu",),
    "grouped.sinfo.txt": ("must be one node a row; given 'gpu[001-016]'",),
    "mig.smi.csv": ("line 2: name: 'NVIDIA H100 80GB HBM3' is cut into MIG", "line 3: name"),
    "no-devices.smi.csv": ("no table of a known tool",),
    "no-gpus.sinfo.txt": ("no node has GPUs; 2 rows read",),
    "no-gres.sinfo.txt": ("no table of a known tool", "`sinfo -N -o"),
    "no-header.smi.csv": ("no table of a known tool", "(keep the headers)"),
    "no-rows.smi.csv": ("lists no GPU",),
    "parts.sinfo.txt": (
        "no node has GPUs that plans use; left out: 2 nodes with parts of GPUs (MIG)",
        "left out: 1 node with several kinds of GPU: 'gpu:a100:4,gpu:v100:2'",
    ),
    "plain-nvidia-smi.txt": ("no table of a known tool", "`nvidia-smi --query-gpu="),
    "several.sinfo.txt": (
        "line 3: MEMORY: must be a number; given 'much'",
        "line 5: GRES: must be gpu:KIND:COUNT",
        "line 6: has 2 of 5 columns",
    ),
    "truncated.smi.csv": ("line 3: has 1 of 3 columns; is the file cut off?",),
    "two-kinds.smi.csv": ("several kinds of GPU ('NVIDIA A100-SXM4-40GB', 'NVIDIA H100",),
    "unknown-gpu.smi.csv": ("no accelerator of the catalog is 'NVIDIA A30'", "--accelerator NAME"),
    "utf16.smi.csv": ("line 1: is no text file",),
}


def machine_of(*names: str) -> Machine:
    return merge([read_source(POSITIVE / name) for name in names])


@pytest.mark.parametrize("names", MACHINES, ids="+".join)
def test_files_of_a_machine_give_the_node_it_is(names: tuple[str, ...], tmp_path: Path) -> None:
    node, count, size, overrides = MACHINES[names]
    machine = machine_of(*names)
    assert (machine.node, machine.num_nodes, machine.num_gpus) == (node, count, size)
    assert {override.key: override.value for override in machine.overrides} == overrides
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster_text(machine, "planner show hardware"))
    cluster = load_cluster(path)
    assert cluster.num_accelerators == count * size
    assert cluster.accelerator.name == machine.accelerator


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "negative").iterdir()), ids=lambda path: path.name
)
def test_a_file_that_tells_no_machine_is_refused_with_what_is_wrong(path: Path) -> None:
    with pytest.raises(InputError) as error:
        merge([read_source(path)])
    assert all(message in str(error.value) for message in REFUSED[path.name]), str(error.value)
    assert all(problem.where == str(path) for problem in error.value.problems)


def test_every_expectation_has_its_file() -> None:
    assert set(REFUSED) == {path.name for path in (FOLDER / "negative").iterdir()}
    assert {name for names in MACHINES for name in names} <= {p.name for p in POSITIVE.iterdir()}
