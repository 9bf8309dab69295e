from pathlib import Path

import pytest

from planner.catalog.detect.observation import Observation
from planner.catalog.detect.recognise import clean, parse, read_source
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES

SAMPLES = Path(__file__).parents[3] / "examples" / "hardware" / "positive"


@pytest.mark.parametrize("name", ["dgx-h100.smi.csv", "dgx-h100.topo.txt", "dgx-h100.nccl.xml"])
def test_byte_order_marks_foreign_line_ends_and_colours_change_nothing(
    name: str, tmp_path: Path
) -> None:
    plain = (SAMPLES / name).read_bytes()
    coloured = plain.replace(b"GPU0", b"\x1b[4mGPU0\x1b[0m") if name.endswith("txt") else plain
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + coloured.replace(b"\n", b"\r\n"))
    read, expected = read_source(path), read_source(SAMPLES / name)
    assert isinstance(read, Observation)
    assert isinstance(expected, Observation)
    assert read.links == expected.links
    assert (read.gpu, read.num_gpus, read.nics) == (expected.gpu, expected.num_gpus, expected.nics)


def test_colours_without_their_escape_character_are_dropped() -> None:
    text = "\t[4mGPU0\tGPU1\tCPU Affinity[0m\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    read = parse(clean(text.encode(), "topo"), "topo")
    assert isinstance(read, Observation)
    assert read.num_gpus == 2


def test_a_table_below_the_command_that_printed_it_is_read() -> None:
    command = "$ nvidia-smi --query-gpu=name,memory.total --format=csv\n"
    read = parse(command + "name, memory.total [MiB]\nNVIDIA L4, 23034 MiB\n", "smi")
    assert isinstance(read, Observation)
    assert (read.gpu, read.num_gpus) == ("NVIDIA L4", 1)
    with pytest.raises(InputError, match=r"line 3: memory\.total"):
        parse(command + "name, memory.total [MiB]\nNVIDIA L4, much\n", "smi")


def test_a_huge_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(
        InputError, match=f"104,857,600 bytes are too many; allowed are {MAX_LOG_BYTES:,}"
    ):
        read_source(path)


def test_a_missing_file_and_a_folder_are_problems(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_source(tmp_path / "nothing")
    with pytest.raises(InputError, match="a folder"):
        read_source(tmp_path)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InputError, match="is not UTF-8 text"):
        clean(b"name\xff", "x")
    with pytest.raises(InputError, match="control character"):
        clean(b"name\x00", "x")
