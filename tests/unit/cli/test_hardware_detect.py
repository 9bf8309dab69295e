"""``planner show hardware --from`` and ``--detect`` from files to plans."""

from pathlib import Path

import pytest
from in_process import planner

SAMPLES = Path(__file__).parents[2] / "examples" / "hardware" / "positive"


def sample(*names: str) -> list[str]:
    return [str(SAMPLES / name) for name in names]


def test_without_out_the_cluster_file_is_printed(tmp_path: Path) -> None:
    run = planner("show", "hardware", "--from", *sample("l40s.smi.csv"))
    assert run.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(run.out)
    assert planner("show", "hardware", str(path)).code == 0


def test_detect_without_tools_ends_with_two_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = planner("show", "hardware", "--detect")
    assert (run.code, run.out) == (2, "")
    assert "nvidia-smi and sinfo not on PATH" in " ".join(run.err.split())
    assert "--from FILE" in run.err
