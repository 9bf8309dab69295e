"""What is malformed, huge, endless or ambiguous is refused, at once, with its place."""

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.catalog.hf.reader import read_config
from planner.documents.tree import load_json, load_yaml
from planner.errors import InputError
from planner.formats.format import read_source
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_FILE_BYTES, MAX_VALUES

READERS = {"yaml": load_yaml, "json": load_json}
MAX_SECONDS = 20.0  # of CPU: what is refused late takes minutes; each text takes less than one here
MAX_MEMORY = 2**26
DIGITS = "9" * (MAX_DIGITS + 1)
BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "m: &m {}\nl: &l [" + "*m, " * 9000 + "*m]\n" + "a: {<<: *l}\n" * 9000
CHAIN = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}}}\n" for i in range(1, 2000))
REPEATED = "".join(f"k{i}: 1\n" for i in range(9000)) * 2
DEEPER = f"nested deeper than {MAX_DEPTH}"
TWICE = "line 9001: key 'k0' is given twice"
TEXTS = {
    "yaml": {
        "deep lists": ("a:\n  " + "[" * (MAX_FILE_BYTES - 20), f"line 2: {DEEPER}"),
        "deep mappings": ("{a: " * 60_000, f"line 1: {DEEPER}"),
        "number": (f"a: 1\nb: {DIGITS}\n", "line 2: a number of 302 digits"),
        "many numbers": (f"a: {'9' * 200_000}\n", "line 1: a number of 200,000 digits"),
        "hexadecimal": (f"a: 0x{'f' * 299}\n", "line 1: a number of 301 digits"),
        "values": ("- a\n" * 60_000, f"more than {MAX_VALUES:,} keys and values"),
        "bomb": (BOMB, "aliases written out"),
        "merges": (MERGES, "aliases written out"),
        "merges in a chain": (CHAIN, "nested deeper"),
        "itself": ("a: &a [*a]", "line 1: refers to itself through an alias"),
        "repeated": (REPEATED, TWICE),
        "not closed": ("a: [\n" + "1,\n" * 40_000, "not YAML"),
        "quoted": ("a: '" + "x\n\n" * 80_000, "not YAML"),
        "list": ("a: [1", "not YAML"),
        "documents": ("a: 1\n---\nb: 2\n", "second document"),
        "object": ("a: !!python/object/apply:os.system [ls]", "asks for an object"),
        "name": ("a: !!python/name:os.system", "cannot be read"),
        "date": ("a: 2001-99-99", "cannot be read"),
        "bell": ("a: \x07\n", "not YAML"),
        "key": ("{[1]: 2}", "as key"),
        "alias": ("a: *a", "stands for nothing"),
        "merge": ("a: 1\n<<: 3\n", "merge key takes"),
        "line": ("a: 1\nb: 2\n  c: [\n", "line 3: "),
    },
    "json": {
        "deep lists": ("\n" + "[" * (MAX_FILE_BYTES - 1), "line 2: not JSON: nested deeper"),
        "deep objects": ('{"a":' * 50_000, DEEPER),
        "number": (f'{{\n"a": {DIGITS}}}', "line 2: not JSON: a number of 302 digits"),
        "fraction": (f'{{"a": 0.{DIGITS}}}', "line 1: not JSON: a number of 304 digits"),
        "values": ("[" + "1," * 60_000 + "1]", f"more than {MAX_VALUES:,} values"),
        "repeated": ("{" + ",\n".join(f'"k{i % 9000}": 1' for i in range(18_000)) + "}", TWICE),
        "not closed": ("[" + "1,\n" * 40_000, "not JSON"),
        "spaces": (" " * 200_000 + "!", "not JSON"),
        "nothing": ("", "line 1: not JSON"),
        "torn": ('{\n"a": 1,\n"b', "line 3: not JSON"),
        "inner": ('{"b": {"a": 1, "a": 1}}', "line 1: key 'a' is given twice in one object"),
        "list": ("[1, 2]", "line 1: must be an object of keys, is a list"),
        "surrogate": ('{"a": "\\ud800"}', "line 1: not JSON: a string has no end"),
        "documents": ("{}\n{}", "line 2: not JSON: one value is allowed"),
        "null": ("null", "line 1: must be an object of keys, is a NoneType"),
    },
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, texts in TEXTS.items() for name in texts]
)
def test_a_hostile_text_is_refused_with_its_line_at_once(
    tmp_path: Path, kind: str, name: str
) -> None:
    text, said = TEXTS[kind][name]
    path = tmp_path / f"file.{kind}"
    path.write_text(text)
    assert path.stat().st_size <= MAX_FILE_BYTES
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        READERS[kind](path)
    assert time.process_time() - start < MAX_SECONDS
    problem = caught.value.problems[0]
    assert problem.where == str(path)
    assert said in f"{problem.key}: {problem.message}"


@pytest.mark.parametrize("name", ["bomb", "deep lists"])
def test_memory_does_not_grow(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(TEXTS["yaml"][name][0])
    tracemalloc.start()
    with pytest.raises(InputError):
        load_yaml(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_MEMORY


def test_nesting_is_accepted_up_to_the_limit(tmp_path: Path) -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    (tmp_path / "config.json").write_text(f'{{"a": {inner}}}')
    assert load_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("word", "value"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf")]
)
def test_what_python_writes_for_no_number_is_read(tmp_path: Path, word: str, value: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"a": {word}}}')
    assert repr(load_json(tmp_path / "config.json")["a"]) == value


def test_folder_without_a_config_says_what_it_misses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the folder {tmp_path} holds no config.json"):
        read_config(tmp_path)


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
