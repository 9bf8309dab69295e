"""``planner emit`` and ``planner plan --emit``: what is written, refused, and with which code."""

from pathlib import Path

import pytest
from in_process import planner

PLAN = (
    *("plan", "llama3-8b", "2xdgx-h100", "--fix", "pp=1", "--fix", "zero=3"),
    *("--global-batch", "64", "--seq-len", "4096", "--top", "1"),
)
CONFIG = '{"price": "$$5 $(HOME) ${HOME} `id`"}\n'
WRITTEN = {"config.json", "more/extra.txt", "launch.sh", "plan.yaml", "README.md"}
pytestmark = pytest.mark.usefixtures("fake_format")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A saved plan for the framework of the fake format."""
    path = str(tmp_path / "saved.yaml")
    run = planner(*PLAN, "--framework", "deepspeed", "--save", path)
    assert run.code == 0, run.err
    return path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_without_a_folder_the_configuration_goes_to_standard_output(saved: str) -> None:
    run = planner("emit", saved, "--to", "fake")
    assert (run.code, run.out) == (0, CONFIG)
    assert run.err == "note: this is config.json; --out writes more/extra.txt too\n"


def test_a_folder_gets_everything(saved: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = planner("emit", saved, "--to", "fake", "--out", str(out))
    assert (run.code, run.out) == (0, "")
    assert names(out) == WRITTEN
    assert (out / "config.json").read_text() == CONFIG
    assert (out / "plan.yaml").read_text() == Path(saved).read_text()


FILES = {
    "torchrun": set(),
    "slurm": {"launch.sbatch"},
    "kubernetes": {"trainjob.yaml"},
    "skypilot": {"task.yaml"},
}


@pytest.mark.parametrize("launcher", FILES)
def test_every_launcher_writes_its_files_and_says_how_to_start(
    saved: str, tmp_path: Path, launcher: str
) -> None:
    out, files = tmp_path / "out", FILES[launcher]
    run = planner("emit", saved, "--to", "fake", "--out", str(out), "--launcher", launcher)
    assert run.code == 0
    assert names(out) == WRITTEN | files
    start = (out / "README.md").read_text().partition("## Start")[2].partition("##")[0]
    assert all(f"{name}`" in start for name in files or {"./launch.sh"})


def test_the_readme_says_what_was_decided(saved: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    planner("emit", saved, "--to", "fake", "--out", str(out))
    text = (out / "README.md").read_text()
    assert text.startswith("# llama3-8b on 2xdgx-h100 with Fake\n")
    assert "Checked against Fake 1.2." in text
    assert "| `tp` | `1` | one \\| two |" in text
    assert "| `DATA` | folder of the data |" in text
    assert "| degrees | dp 16 (replicas 1), tp 1, pp 1 (chunks 1), cp 1, ep 1, ZeRO 3 |" in text
    assert "Node k runs ranks 8·k to 8·k + 7, for k from 0 to 1." in text
    assert "planner check config.json --model llama3-8b --cluster 2xdgx-h100" in text
    assert all(f"| {what} |" in text for what in ("MFU", "memory per GPU", "time of an iteration"))
    assert "planned for" not in text


def test_a_plan_the_format_cannot_express_ends_with_4_and_every_reason(
    saved: str, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    run = planner("plan", "llama3-8b", "2xdgx-h100", "--fix", "pp=2", "--save", str(path))
    assert run.code == 0
    out = tmp_path / "out"
    for arguments in (("--out", str(out)), ()):
        run = planner("emit", str(path), "--to", "fake", *arguments)
        assert (run.code, run.out) == (4, "")
        assert run.err == "fake: no pipelines\nfake: no stages\n"
    assert not out.exists()


def test_a_plan_is_made_and_written_in_one_step(saved: str, tmp_path: Path) -> None:
    plan, one, two = saved, tmp_path / "one", tmp_path / "two"
    run = planner(*PLAN, "--emit", "fake", "--out", str(one), "--launcher", "slurm")
    assert run.code == 0, run.err
    assert "Best layouts on 16 GPUs" in run.out
    assert "deepspeed" in run.out.splitlines()[1] + run.out.splitlines()[0]
    planner("emit", plan, "--to", "fake", "--out", str(two), "--launcher", "slurm")
    assert names(one) == names(two)
    for name in names(one):
        assert (one / name).read_bytes() == (two / name).read_bytes()
