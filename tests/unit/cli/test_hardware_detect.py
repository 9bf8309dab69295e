"""``planner show hardware --from`` and ``--detect`` from files to plans."""

from pathlib import Path
from typing import Any

import pytest

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
    planner: Any, tmp_path: Path, names: tuple[str, ...], gpus: str
) -> None:
    out = tmp_path / "found.yaml"
    run = planner("show", "hardware", "--from", *sample(*names), "--out", str(out))
    assert (run.code, run.err) == (0, run.err)
    assert gpus in run.out
    assert f"wrote {out}" in run.err
    plan = planner("plan", "gpt2-xl", str(out), "--top", "1", "--precision", "fp16", "-v")
    assert plan.code == 0, plan.err
    assert gpus in " ".join(plan.out.split())


def test_without_out_the_cluster_file_is_printed(planner: Any, tmp_path: Path) -> None:
    run = planner("show", "hardware", "--from", *sample("l40s.smi.csv"))
    assert run.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(run.out)
    assert planner("show", "hardware", str(path)).code == 0


def test_files_stay_without_force(planner: Any, tmp_path: Path) -> None:
    out = tmp_path / "c.yaml"
    out.write_text("mine")
    write = ("show", "hardware", "--from", *sample("l40s.smi.csv"), "--out", str(out))
    run = planner(*write)
    assert (run.code, out.read_text()) == (2, "mine")
    assert "exists already; use --force" in run.err
    assert planner(*write, "--force").code == 0


def test_problems_of_all_files_come_at_once(planner: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("name, memory.total [MiB]\nA\n")
    run = planner("show", "hardware", "--from", str(tmp_path / "bad.csv"), str(tmp_path / "none"))
    assert run.code == 2
    assert "bad.csv::line 2" in run.err
    assert "none::file: no such file" in run.err
    assert "Traceback" not in run.err


def test_from_may_be_repeated(planner: Any) -> None:
    smi, nodes = sample("dgx-h100.smi.csv", "slurm.sinfo.txt")
    run = planner("show", "hardware", "--from", smi, "--from", nodes)
    assert run.code == 0
    assert "# Seen: 8 x h100-sxm; " in run.out
    assert "count: 16" in run.out


def test_detect_without_tools_ends_with_two_and_says_what_to_do(
    planner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = planner("show", "hardware", "--detect")
    assert (run.code, run.out) == (2, "")
    assert "nvidia-smi and sinfo not on PATH" in " ".join(run.err.split())
    assert "--from FILE" in run.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accelerator", "h100"), "--accelerator: needs --detect or --from FILE"),
        (("--out", "c.yaml"), "--out: needs --detect or --from FILE"),
        (("h100", "nosuch"), "WORDS: 'nosuch' is the name of nothing"),
        (("--detect", "dgx-h100"), "--detect takes no name; given dgx-h100"),
        (("--from", "x", "--out", "c.txt"), "must be a name that ends in .yaml"),
        (("--from", "x", "--out", "/nowhere/c.yaml"), "no writable folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    planner: Any, arguments: tuple[str, ...], message: str
) -> None:
    run = planner("show", "hardware", *arguments)
    assert run.code == 2
    assert message in run.err
