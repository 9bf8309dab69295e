"""Reading a file as text: what is no bounded, regular, UTF-8 text is one error with its line."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.formats.format import read_source
from planner.limits import MAX_FILE_BYTES


def problem_of(path: Path | str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        read_source(path)
    (problem,) = caught.value.problems
    assert problem.where == str(path)
    return problem.key, problem.message


def test_text_is_kept_as_it_is_but_for_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf{\r\n \xc3\xa9}\n")
    (tmp_path / "link").symlink_to(path)
    for each in (path, tmp_path / "link"):
        source = read_source(each)
        assert (source.path, source.text) == (str(each), "{\r\n é}\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path, "no such file"),
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a named pipe"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "a")
    key, message = problem_of(tmp_path / "a")
    assert key == "file"
    assert said in message


def test_a_device_and_a_path_no_file_can_have_are_refused() -> None:
    assert "a device" in problem_of("/dev/zero")[1]
    assert "cannot be read" in problem_of("a\0b")[1]
    assert "cannot be read" in problem_of("a" * 5000)[1]


def test_the_largest_file_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * MAX_FILE_BYTES)
    assert len(read_source(path).text) == MAX_FILE_BYTES
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert f"{MAX_FILE_BYTES + 1:,} bytes are too many" in problem_of(path)[1]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a\r\nb\nc\xff\n", ("line 3", "is not UTF-8: byte 0xff (invalid start byte)")),
        (b"a\nb\0", ("line 2", "is no text file: it holds a NUL byte")),
    ],
)
def test_what_is_no_text_is_named_with_its_line(
    tmp_path: Path, data: bytes, problem: tuple[str, str]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    assert problem_of(path) == problem
