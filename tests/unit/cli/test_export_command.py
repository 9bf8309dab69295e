"""``planner export``: from a plan or a question to a page, a trace, or an error."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import planner
from page_text import read_page
from plan_document import plan_document

from planner.cli.export import export
from planner.query.options import OPTIONS

ROOT = Path(__file__).resolve().parents[3]
QUESTION = ("llama3-8b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "4096")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A plan in two stages, which no search made."""
    halves = {"layers_per_stage": [16, 16], "selective_layers_per_stage": [0, 0]}
    layout = {"dp": 4, "pp": 2, "num_micro_batches": 32, "recompute_layers_per_stage": [0, 0]}
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(plan_document(**halves, **layout)))
    return str(path)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Make a page and read it."""

    def write(*arguments: str) -> str:
        out = tmp_path / "page.html"
        run = planner("export", "--to", "html", *arguments, "-o", str(out))
        assert run.code == 0, run.err
        assert (run.out, run.err.splitlines()[-1]) == ("", f"wrote the page to {out}")
        return out.read_text(encoding="utf-8")

    return write


def test_a_saved_plan_becomes_a_page_with_others_around_it(saved: str, written: Any) -> None:
    page = read_page(written(saved, "--top", "2"))
    assert "PP 2" in page.text
    assert "Other layouts" in page.text
    assert "Time over GPUs" in page.text
    assert "--pipeline-model-parallel-size 2" in page.text, "its files"


def test_without_a_search_the_page_has_the_plan_alone(saved: str, written: Any) -> None:
    page = read_page(written(saved, "--no-search"))
    assert "PP 2" in page.text
    assert "Other layouts" not in page.text


def test_a_question_becomes_the_page_of_its_best_plan(written: Any) -> None:
    page = read_page(written(*QUESTION, "--tp", "4", "--top", "2", "--emit", "bridge"))
    assert "TP 4" in page.text
    assert "Defaults of the question" in page.text
    assert "megatron.args" not in page.text, "the files are those of the format asked for"


def test_a_page_takes_every_option_of_a_question() -> None:
    taken = inspect.signature(export).parameters
    assert set(OPTIONS) <= set(taken)
    assert not {"save", "space", "output_format"} & set(taken)


def test_a_folder_for_astra_sim_has_a_trace_per_rank(saved: str, tmp_path: Path) -> None:
    out = tmp_path / "astra"
    run = planner("export", saved, "--to", "astra-sim", "-o", str(out))
    assert (run.code, run.out) == (0, ""), run.err
    beside = {"README.md", "comm_group.json", "network.yml", "remote_memory.json", "system.json"}
    assert {path.name for path in out.iterdir()} == beside | {f"trace.{n}.et" for n in range(16)}
    again = planner("export", saved, "--to", "astra-sim", "-o", str(out))
    assert again.code == 2
    assert "--force" in again.err
    assert planner("export", saved, "--to", "astra-sim", "-o", str(out), "--force").code == 0
    alone = tmp_path / "chakra"
    assert planner("export", saved, "--to", "chakra", "-o", str(alone)).code == 0
    assert {path.name for path in alone.iterdir()} == {path.name for path in out.glob("*.et")}
