"""Reading JSON: what is malformed, huge, endless or ambiguous is one clear error."""

from pathlib import Path

import pytest

from planner.catalog.hf.reader import read_config
from planner.documents.tree import load_json
from planner.errors import InputError
from planner.limits import MAX_DEPTH


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
        (b'{"a": 1,\n "a": 2}', "line 2: key 'a' is given twice in one object"),
        (b'{"b": {"a": 1, "a": 1}}', "line 1: key 'a' is given twice in one object"),
        (b'{"a": "\xff"}', "line 1: is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "line 1: is no text file"),
        (b"[1, 2]", "line 1: must be an object of keys, is a list"),
        (b'{"a": "\\ud800"}', "line 1: not JSON: a string has no end"),
        (b"{}\n{}", "line 2: not JSON: one value is allowed"),
        (b"null", "line 1: must be an object of keys, is a NoneType"),
    ],
)
def test_bad_contents_are_named(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in message_of(written(tmp_path, data))


def test_nesting_is_accepted_up_to_the_limit(tmp_path: Path) -> None:
    assert load_json(written(tmp_path, nested(MAX_DEPTH)))


def test_folder_without_a_config_says_what_it_misses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the folder {tmp_path} holds no config.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("word", "value"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf")]
)
def test_what_python_writes_for_no_number_is_read(tmp_path: Path, word: str, value: str) -> None:
    assert repr(load_json(written(tmp_path, b'{"a": %s}' % word.encode()))["a"]) == value
