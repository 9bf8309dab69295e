"""The notebook of the documentation runs from its first cell to its last."""

from pathlib import Path
from typing import Any

import pytest

from tools import notebook


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [notebook.run(text, names) for text in notebook.sources(notebook.read())]
    assert all(shown), "a cell shows nothing"
    assert names["answer"].best.strategy.num_gpus == 16
    assert names["slower"] > 0
    assert (tmp_path / "best.yaml").is_file()
    assert (tmp_path / "run" / "launch.sh").is_file()


def test_its_cells_are_stored_with_what_they_show() -> None:
    found = notebook.read()
    assert found["nbformat"] == 4
    for number, cell in enumerate(
        (cell for cell in found["cells"] if cell["cell_type"] == "code"), start=1
    ):
        assert cell["outputs"], "run `python -m tools.docs --outputs`"
        assert cell["execution_count"] == number


def test_a_cell_shows_what_it_prints_and_its_last_expression() -> None:
    printed, value = notebook.run("x = 2\nprint(x)\nx + 1", {})
    assert printed["text"] == ["2\n"]
    assert value["data"] == {"text/plain": ["3"]}
    assert notebook.run("y = 1", {}) == []
