from pathlib import Path

import pytest

from planner.catalog.detect.observation import Observation
from planner.catalog.detect.recognise import MAX_BYTES, clean, read_source
from planner.errors import InputError

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


def test_a_huge_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(
        InputError, match=f"104,857,600 bytes are too many; allowed are {MAX_BYTES:,}"
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
