"""What tools print, from files and from executables of ours in place of the tools."""

import sys
from pathlib import Path

import pytest

from planner.catalog import observe
from planner.catalog.observe import Observation, Slot, Source, ask_host, clean, parse, read_source
from planner.errors import InputError

SMI_HEADER = (
    "name, memory.total [MiB], memory.reserved [MiB], pcie.link.gen.max, pcie.link.width.max"
)
SINFO_HEADER = "NODELIST|CPUS|MEMORY|GRES|PARTITION\n"
SAMPLES = Path(__file__).parents[2] / "examples" / "hardware" / "positive"
MEMINFO = "MemFree: 1 kB\nMemTotal:       2113634304 kB\n"


def smi(text: str) -> Observation:
    (read,) = parse(text, "smi")
    return read


def sinfo(text: str) -> Source:
    return parse(text, "sinfo")


def test_rows_are_counted_and_reserved_memory_is_taken_off() -> None:
    row = "NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 5, 16"
    seen = smi("\n".join([SMI_HEADER, row, row]))
    assert (seen.gpu, seen.num_gpus) == ("NVIDIA H100 80GB HBM3", 2)
    assert seen.memory_mib == 81559 - 551
    assert seen.slot == Slot(generation=5, lanes=16)


def test_the_smallest_memory_and_the_slowest_slot_count() -> None:
    rows = ["NVIDIA L40S, 46068 MiB, 0 MiB, 4, 16", "NVIDIA L40S, 45000 MiB, 0 MiB, 4, 8"]
    seen = smi("\n".join([SMI_HEADER, *rows]))
    assert seen.memory_mib == 45000
    assert seen.slot == Slot(generation=4, lanes=8)


@pytest.mark.parametrize("slot", ["0, 16", "4, 0", "[N/A], [N/A]"])
def test_a_slot_of_width_or_generation_zero_is_not_told(slot: str) -> None:
    assert smi(f"{SMI_HEADER}\nNVIDIA L40S, 1 MiB, 0 MiB, {slot}").slot is None


def test_of_very_many_problems_the_first_are_told() -> None:
    with pytest.raises(InputError) as error:
        smi("name, memory.total [MiB]\n" + "A, x\n" * 100)
    assert len(error.value.problems) == observe.MAX_PROBLEMS


@pytest.mark.parametrize("why", ["[N/A]", "[Not Supported]", "[GPU is lost]", "n/a", ""])
def test_a_figure_that_is_not_given_is_not_told_whatever_the_reason(why: str) -> None:
    seen = smi(f"name, memory.total [MiB], pcie.link.gen.max\nNVIDIA A10, {why}, {why}\n")
    assert (seen.memory_mib, seen.slot) == (None, None)
    assert seen.notes == ("memory.total is not told",)


def test_a_node_of_two_partitions_is_counted_once() -> None:
    text = SINFO_HEADER + "n1|64|515000|gpu:a100:4|a*\nn1|64|515000|gpu:a100:4|b\n"
    (group,) = sinfo(text)
    assert (group.num_nodes, group.num_gpus, group.gpu) == (1, 4, "a100")


@pytest.mark.parametrize(
    ("rows", "gpu"),
    [
        (("n1|64|515000|lustre:1,gpu:h100:8(S:0,1),shard:80|a",), "h100"),
        (("n1|64|1|gpu:8|a",), ""),
        (("n1|1|1|gpu:h100:4(S:0),gpu:h100:4(S:1)|x",), "h100"),
        (("n1|1|1|(null)|x", "n2|1|1|gpu:h100:0|x", "n3|1|1|gpu:h100:8|x"), "h100"),
    ],
    ids=["other resources", "no kind", "two entries", "nodes without GPUs"],
)
def test_resources_that_are_eight_gpus_of_one_node(rows: tuple[str, ...], gpu: str) -> None:
    (group,) = sinfo(SINFO_HEADER + "\n".join(rows))
    assert (group.gpu, group.num_gpus, group.num_nodes) == (gpu, 8, 1)


def test_the_kind_with_most_gpus_comes_first_and_its_smallest_memory_counts() -> None:
    text = SINFO_HEADER + "a|1|900|gpu:v100:4|x\nb|1|800|gpu:h100:8|x\nc|1|700+|gpu:h100:8|x\n"
    first, second = sinfo(text)
    told = (first.gpu, first.num_gpus, first.num_nodes, first.host_memory_mib)
    assert told == ("h100", 8, 2, 700)
    assert (second.gpu, second.num_gpus) == ("v100", 4)


@pytest.mark.parametrize("gres", ["gpu", "gpu:h100", "gpu:h100:eight", "gpu:a:b:2"])
def test_a_resource_that_cannot_be_read_is_refused(gres: str) -> None:
    with pytest.raises(InputError, match="must be gpu:KIND:COUNT"):
        sinfo(SINFO_HEADER + f"n1|1|1|{gres}|x\n")


def test_nodes_that_plans_do_not_use_are_left_out_and_named() -> None:
    text = SINFO_HEADER + (
        "n1|1|1|gpu:h100:8|x\n"
        "n2|1|1|gpu:1g.10gb:7|x\nn2|1|1|gpu:1g.10gb:7|y\n"
        "n3|1|1|gpu:h100:2,gpu:v100:2|x\n"
    )
    seen = sinfo(text)
    assert [(group.gpu, group.num_gpus) for group in seen] == [("h100", 8)]
    assert seen[0].notes == (
        "left out: 1 node with parts of GPUs (MIG): 'gpu:1g.10gb:7'",
        "left out: 1 node with several kinds of GPU: 'gpu:h100:2,gpu:v100:2'",
    )


def test_byte_order_marks_foreign_line_ends_and_colours_change_nothing(tmp_path: Path) -> None:
    plain = (SAMPLES / "dgx-h100.smi.csv").read_bytes()
    coloured = plain.replace(b"NVIDIA", b"\x1b[4mNVIDIA\x1b[0m")
    path = tmp_path / "smi.csv"
    path.write_bytes(b"\xef\xbb\xbf" + coloured.replace(b"\n", b"\r\n"))
    assert read_source(path) == parse(plain.decode(), str(path))


def test_colours_without_their_escape_character_are_dropped() -> None:
    read = smi(clean("[4mname, index[0m\nNVIDIA L4, 0\n", "smi"))
    assert (read.gpu, read.num_gpus) == ("NVIDIA L4", 1)


def test_a_table_below_the_command_that_printed_it_is_read() -> None:
    command = "$ nvidia-smi --query-gpu=name,memory.total --format=csv\n"
    read = smi(command + "name, memory.total [MiB]\nNVIDIA L4, 23034 MiB\n")
    assert (read.gpu, read.num_gpus) == ("NVIDIA L4", 1)
    with pytest.raises(InputError, match=r"line 3: memory\.total"):
        parse(command + "name, memory.total [MiB]\nNVIDIA L4, much\n", "smi")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, code: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(0o755)


def install_nvidia_smi(folder: Path) -> None:
    sample = str(SAMPLES / "dgx-h100.smi.csv")
    code = f'assert sys.argv[2:] == ["--format=csv"], sys.argv\nprint(open({sample!r}).read())'
    install(folder, "nvidia-smi", code)


def test_all_tools_are_asked_and_the_host_memory_read(tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (gpus,), slurm, (memory,) = ask_host(meminfo)
    assert slurm[0].num_nodes == 16
    assert (gpus.gpu, gpus.where) == ("NVIDIA H100 80GB HBM3", "nvidia-smi --query-gpu")
    assert memory.host_memory_mib == 2113634304 / 1024


def test_a_login_node_without_gpus_does_not_give_its_memory(tools: Path, tmp_path: Path) -> None:
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (slurm,) = ask_host(meminfo)
    assert slurm[0].num_nodes == 16


def test_a_tool_that_fails_is_quoted(tools: Path) -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the driver."
    install(tools, "nvidia-smi", f"sys.exit({message!r})")
    with pytest.raises(InputError, match=r"exit status 1\. NVIDIA-SMI has failed"):
        ask_host()


def test_a_tool_that_hangs_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "sinfo", "import time; time.sleep(60)")
    monkeypatch.setattr(observe, "TIMEOUT_S", 0.2)
    with pytest.raises(InputError, match=r"timed out after 0\.2 seconds"):
        ask_host()


@pytest.mark.parametrize("text", ["", "MemTotal: much kB\n", "MemTotal:\n", "MemTotal: 0 kB\n"])
def test_a_meminfo_that_tells_nothing_is_left_out(text: str, tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text)
    assert len(ask_host(meminfo)) == 1
    assert len(ask_host(tmp_path / "nothing")) == 1
