"""``planner emit`` and ``planner plan --emit``: what is written, refused, and with which code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import planner

PLAN = (
    "plan",
    "llama3-8b",
    "2xdgx-h100",
    "--fix",
    "pp=1",
    "--fix",
    "zero=3",
    "--global-batch",
    "64",
    "--seq-len",
    "4096",
    "--top",
    "1",
)
CONFIG = '{"price": "$$5 $(HOME) ${HOME} `id`"}\n'
WRITTEN = {"config.json", "more/extra.txt", "launch.sh", "plan.yaml", "README.md"}
pytestmark = pytest.mark.usefixtures("fake_format")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Save a plan for the framework of the fake format."""

    def save(*options: str, framework: str = "deepspeed") -> str:
        path = str(tmp_path / f"{framework}.yaml")
        run = planner(*PLAN, "--framework", framework, *options, "--save", path)
        assert run.code == 0, run.err
        return path

    return save


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_without_a_folder_the_configuration_goes_to_standard_output(saved: Any) -> None:
    run = planner("emit", saved(), "--to", "fake")
    assert (run.code, run.out) == (0, CONFIG)
    assert run.err == "note: this is config.json; --out writes more/extra.txt too\n"


def test_a_folder_gets_everything(saved: Any, tmp_path: Path) -> None:
    plan, out = saved(), tmp_path / "out"
    run = planner("emit", plan, "--to", "fake", "--out", str(out))
    assert (run.code, run.out) == (0, "")
    assert names(out) == WRITTEN
    assert (out / "config.json").read_text() == CONFIG
    assert (out / "plan.yaml").read_text() == Path(plan).read_text()


@pytest.mark.parametrize(
    ("launcher", "files"),
    [
        ("torchrun", set()),
        ("slurm", {"launch.sbatch"}),
        ("kubernetes", {"trainjob.yaml"}),
        ("skypilot", {"task.yaml"}),
    ],
)
def test_every_launcher_writes_its_files_and_says_how_to_start(
    saved: Any, tmp_path: Path, launcher: str, files: set[str]
) -> None:
    out = tmp_path / "out"
    run = planner("emit", saved(), "--to", "fake", "--out", str(out), "--launcher", launcher)
    assert run.code == 0
    assert names(out) == WRITTEN | files
    start = (out / "README.md").read_text().partition("## Start")[2].partition("##")[0]
    assert all(f"{name}`" in start for name in files or {"./launch.sh"})


def test_the_readme_says_what_was_decided(saved: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    planner("emit", saved(), "--to", "fake", "--out", str(out))
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


def test_the_same_plan_gives_the_same_bytes(saved: Any, tmp_path: Path) -> None:
    plan = saved()
    for name in ("one", "two"):
        out = str(tmp_path / name)
        planner("emit", plan, "--to", "fake", "--out", out, "--launcher", "kubernetes")
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_existing_files_are_kept_without_force(saved: Any, tmp_path: Path) -> None:
    plan, out = saved(), tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("mine")
    arguments = ("emit", plan, "--to", "fake", "--out", str(out))
    run = planner(*arguments)
    assert run.code == 2
    assert run.err == f"{out / 'README.md'}::--out: exists already; use --force to replace it\n"
    assert names(out) == {"README.md"}
    assert planner(*arguments, "--force").code == 0
    assert names(out) == WRITTEN


def test_a_plan_the_format_cannot_express_ends_with_4_and_every_reason(
    saved: Any, tmp_path: Path
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


def test_a_launcher_that_cannot_start_the_plan_ends_with_4(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.yaml", tmp_path / "out"
    made = ("--framework", "deepspeed", "--fix", "pp=1", "--save", str(path))
    assert planner("plan", "llama3-8b", "1xhgx-h800", *made).code == 0
    target = ("--to", "fake", "--out", str(out), "--launcher", "skypilot")
    run = planner("emit", str(path), *target)
    assert run.code == 4
    assert "h800-sxm" in run.err
    assert not out.exists()


def test_reasons_of_format_and_launcher_are_told_together(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.yaml", tmp_path / "out"
    assert (
        planner("plan", "llama3-8b", "2xhgx-h800", "--fix", "pp=2", "--save", str(path)).code == 0
    )
    target = ("--to", "fake", "--out", str(out), "--launcher", "skypilot")
    run = planner("emit", str(path), *target)
    assert run.code == 4
    reasons = run.err.splitlines()
    assert reasons[:2] == ["fake: no pipelines", "fake: no stages"]
    assert "h800-sxm" in reasons[2]


def test_an_illegal_plan_is_bad_input(saved: Any, tmp_path: Path) -> None:
    content = yaml.safe_load(Path(saved()).read_text())
    content["strategy"]["num_micro_batches"] += 1
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(content))
    run = planner("emit", str(path), "--to", "fake", "--out", str(tmp_path / "out"))
    assert run.code == 2
    assert "strategy.num_micro_batches" in run.err
    assert not (tmp_path / "out").exists()


def test_all_wrong_names_are_told_at_once(saved: Any) -> None:
    run = planner("emit", saved(), "--to", "fkae", "--launcher", "slrum")
    assert run.code == 2
    assert run.err.splitlines()[0].startswith("command line::--to: unknown format 'fkae'; allowed")
    assert "did you mean fake?" in run.err
    assert "command line::--launcher: writes files, which needs --out; given slrum" in run.err
    assert "command line::--launcher: unknown launcher 'slrum'" in run.err


def test_a_file_for_a_folder_is_told_before_the_plan_is_read(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    run = planner("emit", "missing.yaml", "--to", "fake", "--out", str(tmp_path / "out"))
    assert run.code == 2
    assert "a folder is needed" in run.err


def test_a_plan_for_another_framework_is_written_with_a_warning(saved: Any, tmp_path: Path) -> None:
    path, out = tmp_path / "other.yaml", tmp_path / "out"
    run = planner("plan", "llama3-8b", "2xdgx-h100", "--fix", "pp=1", "--save", str(path))
    assert run.code == 0
    run = planner("emit", str(path), "--to", "fake", "--out", str(out))
    assert run.code == 0
    assert "note: planned for megatron, written for deepspeed" in run.err
    assert "**Planned for megatron, written for deepspeed" in (out / "README.md").read_text()


def test_a_plan_is_made_and_written_in_one_step(saved: Any, tmp_path: Path) -> None:
    plan, one, two = saved(), tmp_path / "one", tmp_path / "two"
    run = planner(*PLAN, "--emit", "fake", "--out", str(one), "--launcher", "slurm")
    assert run.code == 0, run.err
    assert "Best layouts on 16 GPUs" in run.out
    assert "deepspeed" in run.out.splitlines()[1] + run.out.splitlines()[0]
    planner("emit", plan, "--to", "fake", "--out", str(two), "--launcher", "slurm")
    assert names(one) == names(two)
    for name in names(one):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_files_in_the_way_are_told_before_a_search(tmp_path: Path) -> None:
    for name in ("README.md", "launch.sh"):
        (tmp_path / name).write_text("mine")
    run = planner(*PLAN, "--emit", "fake", "--out", str(tmp_path))
    assert (run.code, run.out) == (2, "")
    assert [line.partition("::")[0] for line in run.err.splitlines()] == [
        str(tmp_path / "launch.sh"),
        str(tmp_path / "README.md"),
    ]


def test_a_given_framework_is_not_replaced(tmp_path: Path) -> None:
    out = ("--emit", "fake", "--out", str(tmp_path / "out"))
    run = planner(
        "plan", "llama3-8b", "2xdgx-h100", "--fix", "pp=1", "--framework", "megatron", *out
    )
    assert run.code == 0
    assert "note: planned for megatron" in run.err


def test_a_plan_made_but_not_expressed_is_shown_and_ends_with_4(tmp_path: Path) -> None:
    options = ("--framework", "megatron", "--emit", "fake", "--out", str(tmp_path / "out"))
    run = planner("plan", "llama3-8b", "2xdgx-h100", "--fix", "pp=2", *options)
    assert run.code == 4
    assert "Best layouts" in run.out
    assert not (tmp_path / "out").exists()


def test_where_nothing_fits_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = planner("plan", "gpt3-175b", "1xl4", "--emit", "fake", "--out", str(out))
    assert run.code == 3
    assert not out.exists()
