"""``planner check`` end to end: forms, files of others, odd names."""

from pathlib import Path

import pytest
from in_process import planner

from planner.formats.format import Format

SOUND = "# demo\ntp 2\nzero 1\nmicro 1\nbatch 128\nsequence_parallel true\n"
BROKEN = SOUND.replace("tp 2", "tp 3")
JOB = ("--model", "llama3-8b", "--cluster", "2xdgx-h100", "--no-advice")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_format: Format) -> Path:
    """The present folder, with a sound and a broken file."""
    for name, text in (("sound", SOUND), ("broken", BROKEN)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
def test_every_form_can_be_written_to_a_file(folder: Path, form: str) -> None:
    on_screen = planner("check", "broken", *JOB, "--format", form)
    run = planner("check", "broken", *JOB, "--format", form, "--out", "found")
    assert (run.code, run.out) == (1, "")
    written = (folder / "found").read_text()
    assert written.split() == on_screen.out.split()
    assert "gpus.divide" in written


def test_names_that_are_no_utf8_are_printed_escaped(folder: Path) -> None:
    for form in ("text", "json", "sarif", "github", "junit"):
        run = planner("check", "a\udcff\x1b", *JOB, "--format", form)
        assert run.code == 2
        assert "\x1b" not in run.out
        run.out.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", b'{"name": "a"}'),
        ("tsconfig.json", b'{"a": 1, // why\n}'),
        ("ci.yaml", b"on: push\njobs: {a: !reference [b]}\n"),
        ("lock.json", b'{"a": "' + b"a" * 300_000 + b'"}'),
        ("logo.png", b"\x89PNG\0"),
    ],
)
def test_files_of_no_format_can_be_passed_over(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert planner("check", "sound", name, *JOB).code == 2
    run = planner("check", "sound", name, *JOB, "--skip-unknown")
    assert run.code == 0
    assert name not in run.out
    assert planner("check", "broken", name, *JOB, "--skip-unknown").code == 1
