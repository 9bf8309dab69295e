import pytest

from planner.catalog.detect.sinfo import parse_sinfo
from planner.errors import InputError

HEADER = "NODELIST|CPUS|MEMORY|GRES|PARTITION\n"


def test_a_node_of_two_partitions_is_counted_once() -> None:
    text = HEADER + "n1|64|515000|gpu:a100:4|a*\nn1|64|515000|gpu:a100:4|b\n"
    (group,) = parse_sinfo(text, "sinfo").groups
    assert (group.num_nodes, group.gpus_per_node, group.gpu) == (1, 4, "a100")
    assert group.partitions == ("a", "b")


def test_sockets_and_other_resources_are_left_out() -> None:
    text = HEADER + "n1|64|515000|lustre:1,gpu:h100:8(S:0,1),shard:80|a\n"
    (group,) = parse_sinfo(text, "sinfo").groups
    assert (group.gpu, group.gpus_per_node) == ("h100", 8)


def test_a_resource_without_kind_is_a_gpu_of_no_name() -> None:
    (group,) = parse_sinfo(HEADER + "n1|64|1|gpu:8|a\n", "sinfo").groups
    assert (group.gpu, group.gpus_per_node) == ("", 8)


def test_the_kind_with_most_gpus_comes_first_and_its_smallest_memory_counts() -> None:
    text = HEADER + "a|1|900|gpu:v100:4|x\nb|1|800|gpu:h100:8|x\nc|1|700+|gpu:h100:8|x\n"
    first, second = parse_sinfo(text, "sinfo").groups
    assert (first.gpu, first.num_gpus, first.memory_mib) == ("h100", 16, 700)
    assert str(second) == "1 node of 4 x v100 (x)"


def test_columns_are_found_by_their_header() -> None:
    (group,) = parse_sinfo("GRES|NODELIST\ngpu:h100:8|n1\n", "sinfo").groups
    assert (group.num_nodes, group.memory_mib, group.partitions) == (1, None, ())


@pytest.mark.parametrize("gres", ["gpu", "gpu:h100", "gpu:h100:eight", "gpu:a:b:2"])
def test_a_resource_that_cannot_be_read_is_refused(gres: str) -> None:
    with pytest.raises(InputError, match="must be gpu:KIND:COUNT"):
        parse_sinfo(HEADER + f"n1|1|1|{gres}|x\n", "sinfo")


def test_nodes_without_gpus_are_no_problem_beside_others() -> None:
    text = HEADER + "n1|1|1|(null)|x\nn2|1|1|gpu:h100:0|x\nn3|1|1|gpu:h100:8|x\n"
    (group,) = parse_sinfo(text, "sinfo").groups
    assert group.num_nodes == 1


def test_nodes_that_plans_do_not_use_are_left_out_and_named() -> None:
    text = HEADER + (
        "n1|1|1|gpu:h100:8|x\n"
        "n2|1|1|gpu:1g.10gb:7|x\nn2|1|1|gpu:1g.10gb:7|y\n"
        "n3|1|1|gpu:h100:2,gpu:v100:2|x\n"
    )
    seen = parse_sinfo(text, "sinfo")
    assert [str(group) for group in seen.groups] == ["1 node of 8 x h100 (x)"]
    assert seen.notes == (
        "left out: 1 node with parts of GPUs (MIG): 'gpu:1g.10gb:7'",
        "left out: 1 node with several kinds of GPU: 'gpu:h100:2,gpu:v100:2'",
    )


def test_one_kind_in_two_entries_adds() -> None:
    (group,) = parse_sinfo(HEADER + "n1|1|1|gpu:h100:4(S:0),gpu:h100:4(S:1)|x\n", "x").groups
    assert (group.gpu, group.gpus_per_node) == ("h100", 8)


def test_the_command_above_the_table_and_empty_lines_are_left_out() -> None:
    text = "$ sinfo -N\n\n" + HEADER + "\nn1|1|1|gpu:h100:8|x\nn2|1|1|gpu:h100|x\n"
    with pytest.raises(InputError, match="line 6: GRES: must be gpu:KIND:COUNT"):
        parse_sinfo(text, "sinfo")
