"""``planner compare``: the verdict first, and one bad log loses nothing of the others."""

import json
from pathlib import Path

import pytest
from in_process import planner

LOGS = Path(__file__).resolve().parents[2] / "examples" / "logs"
MACHINE = ("--cluster", "16xjean-zay-v100")


@pytest.fixture
def log() -> str:
    return str(LOGS / "megatron-v100-n8.log")


def test_the_verdict_comes_first(log: str) -> None:
    run = planner("compare", log, *MACHINE)
    assert run.code == 0
    assert run.out.startswith(f"{log}: Slower than priced: +1")


def test_a_bad_log_is_said_behind_the_good_ones(log: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text("hello\n")
    run = planner("compare", str(bad), log, *MACHINE)
    assert run.code == 2
    assert "Slower than priced" in run.out
    assert f"{bad}::file: is of no known form" in run.err
    data = planner("compare", str(bad), log, *MACHINE, "--format", "json")
    assert data.code == 2
    assert [one["path"] for one in json.loads(data.out)["logs"]] == [log]
    none = planner("compare", str(bad), "--format", "json")
    assert (none.code, none.out) == (2, "")
