"""``planner show hardware --from`` and ``--detect`` from files to plans."""

from pathlib import Path

import pytest
from in_process import planner

SAMPLES = Path(__file__).parents[2] / "examples" / "hardware" / "positive"


def sample(*names: str) -> list[str]:
    return [str(SAMPLES / name) for name in names]


@pytest.mark.parametrize(
    ("names", "gpus"),
    [
        (("dgx-h100.smi.csv", "slurm.sinfo.txt"), "128 x h100-sxm"),
        (("a100-40.smi.csv",), "8 x a100-sxm-40"),
        (("v100-mesh.smi.csv",), "4 x v100-sxm2-32"),
        (("l40s.smi.csv",), "4 x l40s"),
    ],
)
def test_the_file_written_can_be_planned_on_at_once(
    tmp_path: Path, names: tuple[str, ...], gpus: str
) -> None:
    out = tmp_path / "found.yaml"
    run = planner("show", "hardware", "--from", *sample(*names), "--out", str(out))
    assert (run.code, run.err) == (0, run.err)
    assert gpus in run.out
    assert f"wrote {out}" in run.err
    plan = planner("plan", "gpt2-xl", str(out), "--top", "1", "--precision", "fp16", "-v")
    assert plan.code == 0, plan.err
    assert gpus in " ".join(plan.out.split())


def test_without_out_the_cluster_file_is_printed(tmp_path: Path) -> None:
    run = planner("show", "hardware", "--from", *sample("l40s.smi.csv"))
    assert run.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(run.out)
    assert planner("show", "hardware", str(path)).code == 0


def test_files_stay_without_force(tmp_path: Path) -> None:
    out = tmp_path / "c.yaml"
    out.write_text("mine")
    write = ("show", "hardware", "--from", *sample("l40s.smi.csv"), "--out", str(out))
    run = planner(*write)
    assert (run.code, out.read_text()) == (2, "mine")
    assert "exists already; use --force" in run.err
    assert planner(*write, "--force").code == 0


def test_detect_without_tools_ends_with_two_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = planner("show", "hardware", "--detect")
    assert (run.code, run.out) == (2, "")
    assert "nvidia-smi and sinfo not on PATH" in " ".join(run.err.split())
    assert "--from FILE" in run.err
