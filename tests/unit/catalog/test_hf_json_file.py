"""Reading JSON: what is malformed, huge, endless or ambiguous is one clear error."""

import os
from pathlib import Path

import pytest

from planner.catalog.hf.json_file import MAX_BYTES, MAX_DEPTH, config_path, load_json
from planner.errors import InputError


def message_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_json(path)
    (problem,) = caught.value.problems
    assert problem.where == str(path)
    return f"{problem.key}: {problem.message}"


def written(folder: Path, data: bytes) -> Path:
    path = folder / "config.json"
    path.write_bytes(data)
    return path


def nested(levels: int) -> bytes:
    return b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = written(tmp_path, b'\xef\xbb\xbf{\r\n"a": 1\r\n}\r\n')
    assert load_json(path) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: not JSON"),
        (b'{\n"a": 1,\n"b', "line 3: not JSON"),
        (b'{"a": 1, "a": 2}', "file: key 'a' is given twice in one object"),
        (b'{"b": {"a": 1, "a": 1}}', "file: key 'a' is given twice in one object"),
        (b'{"a": "\xff"}', "file: cannot be read as text"),
        ('{"a": 1}'.encode("utf-16"), "file: cannot be read as text"),
        (b"[1, 2]", "line 1: must be an object of keys, is a list"),
        (b"null", "at most 32 levels"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "file: holds a number of thousands of digits"),
        (nested(MAX_DEPTH + 2), "at most 32 levels"),
        (nested(100_000), "at most 32 levels"),
    ],
)
def test_bad_contents_are_named(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in message_of(written(tmp_path, data))


def test_nesting_is_accepted_up_to_the_limit(tmp_path: Path) -> None:
    assert load_json(written(tmp_path, nested(MAX_DEPTH)))


def test_huge_file_is_refused_by_its_size_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    monkeypatch.setattr(Path, "open", None)
    assert f"104,857,600 bytes are too many, allowed are {MAX_BYTES:,}" in message_of(path)


def test_folder_means_the_config_in_it(tmp_path: Path) -> None:
    written(tmp_path, b"{}")
    assert load_json(config_path(tmp_path)) == {}


def test_folder_without_a_config_says_what_it_misses(tmp_path: Path) -> None:
    assert f"the folder {tmp_path} holds no config.json" in message_of(config_path(tmp_path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert message_of(tmp_path / "other.json") == "file: no such file"


def test_loop_of_links_is_an_error(tmp_path: Path) -> None:
    first, second = tmp_path / "config.json", tmp_path / "other.json"
    first.symlink_to(second)
    second.symlink_to(first)
    assert "cannot be read as text" in message_of(first)
    assert "cannot be read as text" in message_of(config_path(tmp_path))


def test_folder_that_is_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read as text" in message_of(config_path(loop))


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    os.mkfifo(path)
    assert "not a regular file" in message_of(path)
    assert "not a regular file" in message_of(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["a\0b.json", f"{'a' * 5000}.json"])
def test_names_that_cannot_be_are_errors(name: str) -> None:
    assert "cannot be read as text" in message_of(config_path(Path(name)))
