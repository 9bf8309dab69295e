"""Runs docs/notebook.ipynb as plain Python, cell by cell, and puts what the cells show in place."""

import ast
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from tools.pages import DOCS

NOTEBOOK = DOCS / "notebook.ipynb"
Cell = dict[str, Any]


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    """The notebook (nbformat 4): cells, each with a kind and its source."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def sources(notebook: dict[str, Any]) -> list[str]:
    """Text of the code cells, in order."""
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return ["".join(cell["source"]) for cell in cells]


def run(text: str, names: dict[str, Any]) -> list[Cell]:
    """Run one cell among names, and return its outputs: what it prints, and its last expression."""
    body = ast.parse(text).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[Cell] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        outputs.append(_shown(value))
    return outputs


def _shown(value: object) -> Cell:
    """A value as a notebook shows it."""
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    html = getattr(value, "_repr_html_", None)
    if html is not None:
        data["text/html"] = str(html()).splitlines(keepends=True)
    return {"output_type": "execute_result", "metadata": {}, "data": data}


def refresh() -> None:
    """Write the notebook with the present outputs of its cells."""
    notebook, names = read(), dict[str, Any]()
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells, start=1):
            cell["execution_count"] = number
            cell["outputs"] = run("".join(cell["source"]), names)
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = number
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    NOTEBOOK.write_text(text, encoding="utf-8")
