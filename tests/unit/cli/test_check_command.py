"""``planner check`` end to end: settings, forms, files, exit codes."""

import json
from pathlib import Path

import pytest
from in_process import planner

from planner.formats.format import Format

SOUND = "# demo\ntp 2\nzero 1\nmicro 1\nbatch 128\nsequence_parallel true\n"
WARNED = SOUND + "log_every 0\n"
BROKEN = SOUND.replace("tp 2", "tp 3")
JOB = ("--model", "llama3-8b", "--cluster", "2xdgx-h100", "--no-advice")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_format: Format) -> Path:
    """The present folder, with a sound, a warned and a broken file."""
    for name, text in (("sound", SOUND), ("warned", WARNED), ("broken", BROKEN)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "options", "code"),
    [
        (("sound",), (), 0),
        (("warned",), (), 0),
        (("warned",), ("--fail-on", "warning"), 1),
        (("warned",), ("--fail-on", "note"), 1),
        (("broken",), (), 1),
        (("sound", "broken"), (), 1),
        (("none",), (), 2),
        (("broken", "none"), (), 2),
        ((".",), (), 1),
    ],
)
def test_exit_codes(
    folder: Path, names: tuple[str, ...], options: tuple[str, ...], code: int
) -> None:
    assert planner("check", *names, *JOB, *options).code == code


def test_an_imbalance_that_cannot_be_is_refused(folder: Path) -> None:
    assert planner("check", "sound", *JOB, "--imbalance", "30").code == 0
    run = planner("check", "sound", *JOB, "--imbalance", "-1")
    assert run.code == 2
    assert "--imbalance: must be from 0 to 10000 percent; given -1" in run.err


def test_text_names_file_line_rule_and_key(folder: Path) -> None:
    run = planner("check", "broken", *JOB)
    assert "broken:2 error gpus.divide tp" in run.out
    assert "1 finding in 1 file: 1 error" in run.out
    assert run.err == ""


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
def test_every_form_can_be_written_to_a_file(folder: Path, form: str) -> None:
    on_screen = planner("check", "broken", *JOB, "--format", form)
    run = planner("check", "broken", *JOB, "--format", form, "--out", "found")
    assert (run.code, run.out) == (1, "")
    written = (folder / "found").read_text()
    assert written.split() == on_screen.out.split()
    assert "gpus.divide" in written


def test_a_file_is_replaced_only_with_force(folder: Path) -> None:
    (folder / "found").write_text("mine")
    run = planner("check", "sound", *JOB, "--out", "found")
    assert run.code == 2
    assert "--force" in run.err
    assert (folder / "found").read_text() == "mine"
    assert planner("check", "sound", *JOB, "--out", "found", "--force").code == 0
    assert "nothing found" in (folder / "found").read_text()


def test_settings_stand_in_for_options(folder: Path) -> None:
    (folder / "planner.toml").write_text(
        'model = "llama3-8b"\ncluster = "2xdgx-h100"\nfail-on = "warning"\n'
    )
    assert planner("check", "sound", "--no-advice").code == 0
    assert planner("check", "warned", "--no-advice").code == 1
    assert planner("check", "warned", "--no-advice", "--fail-on", "error").code == 0


def test_settings_ignore_rules(folder: Path) -> None:
    (folder / "planner.toml").write_text('ignore = ["demo.log_every_is_positive"]')
    run = planner("check", "warned", *JOB, "--fail-on", "note")
    assert run.code == 0
    assert "nothing found in 1 file; 1 ignored" in run.out


def test_options_come_before_settings(folder: Path) -> None:
    (folder / "planner.toml").write_text('model = "none"\ncluster = "none"\ngpus = 4\n')
    run = planner("check", "sound", *JOB, "--gpus", "8", "--format", "json")
    (result,) = json.loads(run.out)["files"]
    assert (result["model"], result["num_gpus"]) == ("llama3-8b", 8)


def test_a_settings_file_with_an_unknown_key_is_refused(folder: Path) -> None:
    (folder / "planner.toml").write_text('modell = "llama3-8b"')
    run = planner("check", "sound", *JOB)
    assert run.code == 2
    assert "did you mean model?" in run.err


def test_each_file_has_the_settings_nearest_to_it(folder: Path) -> None:
    for name, gpus in (("a", 8), ("b", 16)):
        (folder / name).mkdir()
        (folder / name / "run").write_text(SOUND)
        (folder / name / "planner.toml").write_text(f"gpus = {gpus}\n")
    run = planner("check", "a/run", "b/run", *JOB, "--format", "json")
    assert [one["num_gpus"] for one in json.loads(run.out)["files"]] == [8, 16]


def test_job_options_are_compared_with_the_file(folder: Path) -> None:
    run = planner("check", "sound", *JOB, "--global-batch", "64", "--seq-len", "4096")
    assert run.code == 1
    assert "job.global_batch" in run.out
    assert "the job's is 64" in run.out


def test_advice_is_a_note_and_can_be_left_out(folder: Path) -> None:
    (folder / "slow").write_text(SOUND.replace("tp 2", "tp 8"))
    asked = ("check", "slow", *JOB[:4], "--fail-on", "note")
    found = planner(*asked, "--time-limit", "60")
    assert found.code == 1
    assert "advice.better_plan" in found.out
    assert planner(*asked, "--no-advice").code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--framework", "demi"), "did you mean demo?"),
        (("--model", "llama9"), "did you mean"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--gpus", "0"), "--gpus"),
        (("--format", "xml"), "--format"),
    ],
)
def test_wrong_options_are_refused(folder: Path, options: tuple[str, ...], said: str) -> None:
    run = planner("check", "sound", *JOB, *options)
    assert run.code == 2
    assert said in run.err


def test_github_says_nothing_where_nothing_is_found(folder: Path) -> None:
    run = planner("check", "sound", *JOB, "--format", "github")
    assert (run.code, run.out) == (0, "")


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


@pytest.mark.parametrize("name", ["none"])
def test_what_is_no_file_is_never_passed_over(folder: Path, name: str) -> None:
    assert planner("check", name, *JOB, "--skip-unknown").code == 2


def test_a_file_that_lacks_its_model_is_linted(folder: Path) -> None:
    run = planner("check", "sound", "--skip-unknown", "--no-advice")
    assert run.code == 0
    assert "memory, network and time are not" in " ".join(run.out.split())


@pytest.mark.parametrize("given", ["recompute", "recompute=some", "dp=8", "tp=x", ""])
def test_what_cannot_be_assumed_is_refused(given: str) -> None:
    run = planner("check", "x.json", "--assume", given)
    assert run.code == 2
    assert "recompute=none, recompute=selective, recompute=full" in run.err
