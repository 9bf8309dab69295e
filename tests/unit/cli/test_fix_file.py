"""``planner check FILE --fix``: every format, what is written, exit codes."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from broken_files import BROKEN, CLUSTER, MODEL, BrokenFile
from in_process import Run, planner
from plan_document import plan_document

from planner.formats.format import Format

JOB = ("--model", MODEL, "--cluster", CLUSTER)
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


def fix(broken: BrokenFile, *options: str) -> Run:
    return planner("check", broken.name, "--fix", *JOB, *broken.options, *options)


def check(broken: BrokenFile) -> Run:
    return planner("check", broken.name, "--no-advice", *JOB, *broken.options)


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


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepspeed-batch", [("num_micro_batches", 5, 8, "gradient_accumulation_steps", 5)]),
        (
            "accelerate-degree",
            [
                ("tp", 3, 2, "parallelism_config.parallelism_config_tp_size", 16),
                ("dp", 5, 8, "parallelism_config.parallelism_config_dp_shard_size", 15),
            ],
        ),
        ("bridge-degree", [("tp", 3, 2, "model.tensor_model_parallel_size", 1)]),
    ],
)
def test_changes_name_the_files_own_keys_and_lines(name: str, changes: list[Any]) -> None:
    put(BROKEN[name])
    found = json.loads(fix(BROKEN[name], "--format", "json").out)["repair"]["changes"]
    keys = ("field", "before", "after", "key", "line")
    told = [tuple(one[key] for key in keys) for one in found if one["counts"] or one["line"]]
    assert told == changes


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


@pytest.mark.parametrize("command", [("check", "--no-advice"), ("check", "--fix"), ("repair",)])
def test_what_is_assumed_holds_for_check_and_fix(command: tuple[str, ...]) -> None:
    broken = BROKEN["deepspeed-batch"]
    Path(broken.name).write_text(broken.text.replace(": 5,", ": 8,"))
    run = planner(command[0], broken.name, *command[1:], *JOB, "--assume", "recompute=full")
    assert run.code == 0
    assert "nothing recomputed" not in run.out


def test_other_repairs_have_as_many_changes_and_come_fastest_first() -> None:
    Path("plan.yaml").write_text(yaml.safe_dump(plan_document({"margin_fraction": 0.02})))
    half = ("--fix", "--cluster", "1xdgx-h100", "--format", "json")
    answer = json.loads(planner("check", "plan.yaml", *half).out)
    assert answer["before"]["iter_time_s"] > 0
    assert answer["repair"]["peak_bytes"] <= answer["repair"]["usable_bytes"]
    times = [one["iter_time_s"] for one in (answer["repair"], *answer["alternatives"])]
    assert times == sorted(times)
    assert len(answer["alternatives"]) <= 3
    for one in answer["alternatives"]:
        assert sum(change["counts"] for change in one["changes"]) == answer["num_changes"]


def test_what_the_format_cannot_say_ends_with_4(demo_format: Format) -> None:
    text = "# demo\ntp 3\nzero 1\nmicro 1\nbatch 128\nsequence_parallel true\n"
    Path("run.demo").write_text(text)
    run = planner("check", "run.demo", "--fix", *JOB, "--apply")
    assert (run.code, run.out) == (4, "")
    assert "the demo format writes nothing" in run.err
    assert Path("run.demo").read_text() == text
