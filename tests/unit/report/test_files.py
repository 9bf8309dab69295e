"""A folder of files: all or nothing, never outside, nothing replaced unasked."""

import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.formats.format import OutputFile
from planner.report import files as module
from planner.report.files import write_folder

FILES = (
    OutputFile(name="a.json", text="new a\n"),
    OutputFile(name="sub/b.sh", text="new b\r\nü", is_executable=True),
    OutputFile(name="c.md", text="new c\n"),
)


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


WHOLE = {file.name: file.text.encode() for file in FILES}


def test_all_files_are_written_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep"
    write_folder(out, FILES, force=False)
    assert tree(out) == WHOLE
    assert stat.S_IMODE((out / "sub/b.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "a.json").stat().st_mode) == 0o644


def test_force_replaces_files_and_others_of_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    write_folder(tmp_path, FILES, force=False)
    (tmp_path / "a.json").write_text("old a")
    write_folder(tmp_path, FILES, force=True)
    assert tree(tmp_path) == {**WHOLE, "mine": b"mine"}


def test_every_file_in_the_way_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old a")
    (tmp_path / "c.md").write_text("old c")
    with pytest.raises(InputError) as caught:
        write_folder(tmp_path, FILES, force=False)
    assert [Path(problem.where).name for problem in caught.value.problems] == ["a.json", "c.md"]
    assert all("--force" in problem.message for problem in caught.value.problems)
    assert tree(tmp_path) == {"a.json": b"old a", "c.md": b"old c"}


def test_force_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.write_text("outside")
    out.mkdir()
    (out / "a.json").symlink_to(outside)
    with pytest.raises(InputError, match="exists already"):
        write_folder(out, FILES, force=False)
    write_folder(out, FILES, force=True)
    assert outside.read_text() == "outside"
    assert not (out / "a.json").is_symlink()
    assert tree(out) == WHOLE


def test_a_folder_linked_from_inside_is_not_written_through(tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "sub").symlink_to(outside)
    with pytest.raises(InputError, match="because of a link"):
        write_folder(out, FILES, force=True)
    assert tree(outside) == tree(out) == {}


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    write_folder(tmp_path / "out", FILES, force=False)
    assert tree(tmp_path / "real") == WHOLE


@pytest.mark.parametrize(
    ("name", "make", "folder", "said"),
    [
        ("a.json", lambda path: path.symlink_to("nowhere"), "", "exists already"),
        ("c.md", Path.mkdir, "", "exists already"),
        ("sub", Path.touch, "", "is no folder"),
        ("out", Path.touch, "out", "a folder is needed"),
        ("out", Path.touch, "out/deeper", "cannot be written"),
    ],
)
def test_what_stands_in_the_way_stays(
    tmp_path: Path, name: str, make: Callable[[Path], object], folder: str, said: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(InputError, match=said):
        write_folder(tmp_path / folder, FILES, force=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if (tmp_path / name).is_dir():
        with pytest.raises(InputError, match="no regular file"):
            write_folder(tmp_path, FILES, force=True)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a\\b", "a\0b"])
def test_names_that_lead_outside_or_are_given_twice_are_a_defect(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="inside the output folder"):
        write_folder(tmp_path, (OutputFile(name=name, text=""),), force=True)
    with pytest.raises(ValueError, match="one name"):
        write_folder(tmp_path, (FILES[0], FILES[0]), force=True)


@pytest.fixture
def full_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The disk is full when so many files have been put in their places."""

    def fill(number: int) -> None:
        calls, replace = itertools.count(1), Path.replace

        def failing(path: Path, target: str | os.PathLike[str]) -> Path:
            if next(calls) == number:
                raise OSError(28, "No space left on device")
            return replace(path, target)

        monkeypatch.setattr(module.Path, "replace", failing)

    return fill


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
def test_a_failure_in_the_middle_leaves_everything_as_it_was(
    tmp_path: Path, full_at: Callable[[int], None], broken: int
) -> None:
    old = {"a.json": b"old a", "c.md": b"old c"}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    full_at(broken)
    with pytest.raises(InputError, match="No space left"):
        write_folder(tmp_path, FILES, force=True)
    assert tree(tmp_path) == old


def test_a_failure_leaves_no_new_folder(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    full_at(1)
    with pytest.raises(InputError):
        write_folder(tmp_path / "new" / "deep", FILES, force=False)
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_writing_left_of_a_kind_goes_with_it(tmp_path: Path) -> None:
    for name in ("trace.0.et", "trace.9.et", "notes.et"):
        (tmp_path / name).write_text("old")
    files = (OutputFile(name="trace.0.et", text="new"),)
    with pytest.raises(InputError, match=r"trace\.9\.et"):
        write_folder(tmp_path, files, force=False, replaces="trace.*.et")
    write_folder(tmp_path, files, force=True, replaces="trace.*.et")
    assert tree(tmp_path) == {"trace.0.et": b"new", "notes.et": b"old"}


def test_a_failure_brings_back_what_was_to_go(
    tmp_path: Path, full_at: Callable[[int], None]
) -> None:
    (tmp_path / "trace.9.et").write_text("old")
    full_at(2)
    with pytest.raises(InputError, match="No space left"):
        write_folder(tmp_path, FILES, force=True, replaces="trace.*.et")
    assert tree(tmp_path) == {"trace.9.et": b"old"}
