from planner.catalog.detect.merge import Choice, merge
from planner.catalog.detect.observation import Observation
from planner.catalog.detect.write import cluster_text, node_text


def test_every_figure_says_where_it_was_seen() -> None:
    seen = Observation(where="a/smi.csv", gpu="NVIDIA L40S", num_gpus=4, memory_mib=40960)
    text = cluster_text(merge([seen], Choice()), None, "planner hardware --from a/smi.csv")
    assert text.startswith("# Written by `planner hardware --from a/smi.csv`; edit what is wrong.")
    assert "#   GPU: NVIDIA L40S (l40s) (smi.csv)\n" in text
    assert "  hbm_gib: 40  # smi.csv; catalog: 44.4\n" in text
    assert "  accelerators_per_node: 4  # smi.csv; catalog: 8\n" in text


def test_names_of_files_cannot_leave_their_comment() -> None:
    seen = Observation(where="smi\nnode: other", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
    text = cluster_text(merge([seen], Choice()), None, "planner\nhardware")
    assert "\nnode: other" not in text
    assert "# Written by `planner\\nhardware`" in text


def test_a_node_of_the_catalog_needs_no_file() -> None:
    seen = Observation(where="smi", gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
    assert node_text(merge([seen], Choice())) is None
