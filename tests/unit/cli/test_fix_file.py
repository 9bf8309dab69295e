"""``planner check FILE --fix``: every format, what is written, exit codes."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from broken_files import BROKEN, CLUSTER, MODEL, BrokenFile
from in_process import planner

from planner.formats.format import Format

CASES = pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder; none above it has settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planner.toml").write_text("")
    return tmp_path


def put(broken: BrokenFile) -> Path:
    path = Path(broken.name)
    path.write_text(broken.text)
    return path


def fix(broken: BrokenFile, *options: str) -> Any:
    job = ("--model", MODEL, "--cluster", CLUSTER)
    return planner("check", broken.name, "--fix", *job, *broken.options, *options)


def check(broken: BrokenFile, *options: str) -> Any:
    job = ("--model", MODEL, "--cluster", CLUSTER, "--no-advice")
    return planner("check", broken.name, *job, *broken.options, *options)


@CASES
def test_after_apply_the_file_checks_clean_and_what_is_not_ours_stays(broken: BrokenFile) -> None:
    path = put(broken)
    before = check(broken)
    assert before.code == 1 or "note memory.fits" in before.out
    run = fix(broken, "--apply")
    assert (run.code, run.err) == (0, f"wrote the repair to {path}\n")
    after = path.read_text()
    checked = check(broken)
    assert checked.code == 0, checked.out
    places = [after.index(text) for text in broken.foreign]
    assert places == sorted(places)
    assert "Nothing is wrong" in fix(broken).out


@CASES
def test_without_apply_nothing_is_written_and_the_difference_is_shown(
    broken: BrokenFile, folder: Path
) -> None:
    path = put(broken)
    names = sorted(folder.iterdir())
    run = fix(broken, "--format", "json")
    assert run.code == 0
    assert path.read_text() == broken.text
    assert sorted(folder.iterdir()) == names
    answer = json.loads(run.out)
    assert answer["num_gpus"] == 16
    removed = [line[1:] for line in answer["diff"][2:] if line.startswith("-")]
    assert [line for line in answer["diff"][2:] if line.startswith("+")]
    assert set(removed) <= set(broken.text.splitlines())


def changes_of(run: Any) -> list[tuple[str, Any, Any, str, int]]:
    changes = json.loads(run.out)["repair"]["changes"]
    return [
        (one["field"], one["before"], one["after"], one["key"], one["line"])
        for one in changes
        if one["counts"] or one["line"]
    ]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "deepspeed-batch",
            [("num_micro_batches", 5, 8, "gradient_accumulation_steps", 5)],
        ),
        (
            "accelerate-degree",
            [
                ("tp", 3, 2, "parallelism_config.parallelism_config_tp_size", 16),
                ("dp", 5, 8, "parallelism_config.parallelism_config_dp_shard_size", 15),
            ],
        ),
        (
            "bridge-degree",
            [("tp", 3, 2, "model.tensor_model_parallel_size", 1)],
        ),
    ],
)
def test_changes_name_the_files_own_keys_and_lines(name: str, changes: list[Any]) -> None:
    put(BROKEN[name])
    assert changes_of(fix(BROKEN[name], "--format", "json")) == changes


def test_an_edited_copy_replaces_nothing_without_force() -> None:
    broken = BROKEN["megatron-memory"]
    path = put(broken)
    path.chmod(0o755)
    assert fix(broken, "--out", "new.sh").code == 0
    assert path.read_text() == broken.text
    first = Path("new.sh").read_text()
    assert "--micro-batch-size 8 " not in first
    assert stat.S_IMODE(Path("new.sh").stat().st_mode) == 0o755
    Path("new.sh").write_text("mine")
    refused = fix(broken, "--out", "new.sh")
    assert refused.code == 2
    assert "--force" in refused.err
    assert Path("new.sh").read_text() == "mine"
    assert fix(broken, "--out", "new.sh", "--force").code == 0
    assert Path("new.sh").read_text() == first


def test_apply_keeps_permissions_line_ends_and_the_byte_order_mark() -> None:
    broken = BROKEN["trainer-memory"]
    path = Path(broken.name)
    path.write_bytes(b"\xef\xbb\xbf" + broken.text.replace("\n", "\r\n").encode())
    path.chmod(0o640)
    assert fix(broken, "--apply").code == 0
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf{\r\n")
    assert b'"learning_rate": 1e-4,\r\n' in data
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("name", "old", "new", "options", "said"),
    [
        ("deepspeed-batch", '"stage": 3', '"stage": "two"', (), "zero_optimization.stage"),
        ("megatron-batch", "--hidden-size 4096", "--hidden-size 5120", (), "hidden size"),
        ("trainer-batch", ": 4,", ": -4,", (), "per_device_train_batch_size"),
        ("bridge-batch", "micro", "micro", ("--framework", "no-such"), "unknown format"),
        ("bridge-batch", "micro", "micro", ("other.txt",), "--fix: one file at a time"),
        ("bridge-batch", "micro", "micro", ("--format", "sarif"), "sarif is of findings"),
        ("bridge-batch", "micro", "micro", ("--apply", "--out", "new"), "only one of"),
    ],
)
def test_what_cannot_be_read_or_meant_is_refused(
    name: str, old: str, new: str, options: tuple[str, ...], said: str
) -> None:
    broken = BROKEN[name]
    Path(broken.name).write_text(broken.text.replace(old, new))
    before = Path(broken.name).read_text()
    run = fix(broken, *options)
    assert (run.code, run.out) == (2, "")
    assert said in run.err
    assert Path(broken.name).read_text() == before


@pytest.mark.parametrize("command", [("check", "--no-advice"), ("check", "--fix"), ("repair",)])
def test_what_is_assumed_holds_for_check_and_fix(command: tuple[str, ...]) -> None:
    broken = BROKEN["deepspeed-batch"]
    Path(broken.name).write_text(broken.text.replace(": 5,", ": 8,"))
    job = ("--model", MODEL, "--cluster", CLUSTER, "--assume", "recompute=full")
    run = planner(command[0], broken.name, *command[1:], *job)
    assert run.code == 0
    assert "nothing recomputed" not in run.out


def test_what_the_format_cannot_say_ends_with_4(demo_format: Format) -> None:
    text = "# demo\ntp 3\nzero 1\nmicro 1\nbatch 128\nsequence_parallel true\n"
    Path("run.demo").write_text(text)
    run = planner("check", "run.demo", "--fix", "--cluster", CLUSTER, "--model", MODEL, "--apply")
    assert (run.code, run.out) == (4, "")
    assert "the demo format writes nothing" in run.err
    assert Path("run.demo").read_text() == text
