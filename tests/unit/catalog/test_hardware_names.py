"""Accelerators and nodes stand in hwdb: code asks for their fields and knows none by name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner
from planner.catalog import hwdb_dir
from planner.catalog.hardware import aliases, list_names
from planner.documents.tree import load_yaml

ROOT = Path(planner.__file__).parent
NAMES = {*list_names("accelerators"), *list_names("nodes"), *list_names("fabrics")}
NAMES |= {*aliases()["accelerators"], *aliases()["nodes"]}
GENERATIONS = {
    str(load_yaml(path).get(key))
    for path in (hwdb_dir() / "accelerators").glob("*.yaml")
    for key in ("vendor", "architecture")
}
ALLOWED = {
    "catalog/__init__.py": "examples of names, for help, messages and tables of the documentation",
    "search/ranking/penalties.py": "which published runs a factor rests on, in words",
}


def texts(source: str) -> Iterator[str]:
    """String constants of a source, also parts of f-strings, but no docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def named(source: str) -> set[str]:
    """Names of accelerators and nodes among the words, generations among whole constants.

    A count before a name belongs to its word: ``16xdgx-h100``.
    """
    every = set(texts(source))
    found = every & GENERATIONS
    for text in every:
        words = re.findall(r"[a-z0-9][a-z0-9.:-]*", text.lower())
        parts = {part for word in words for part in (word.rstrip(".:-"), *word.split(":"))}
        found |= {re.sub(r"^\d*x(?=\w)", "", part) for part in parts} & NAMES | parts & NAMES
    return found


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('NEWER = ("b100", "B200")', {"b100", "b200"}),
        ('name = f"{count}xdgx-h100"', {"dgx-h100"}),
        ('raise ValueError("give 16xdgx-h100, or l4.")', {"dgx-h100", "l4"}),
        ('GPU = "gpu:a100:8"', {"a100"}),
        ('ID = "10de:2330"', {"10de:2330"}),
        ('FREE = ("Blackwell", "NVIDIA")', {"Blackwell", "NVIDIA"}),
        ('"""Docstring about h100."""\nX = 1\n"""Of dgx-h100."""', set()),
        ('X = "before Blackwell, at8, max4"', set()),
    ],
)
def test_a_name_is_found_where_one_stands(source: str, names: set[str]) -> None:
    assert named(source) == names


def test_no_code_knows_hardware_by_name() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] != "validation"
        and (names := named(path.read_text(encoding="utf-8")))
    }
    assert found.keys() == ALLOWED.keys(), {
        path: names for path, names in found.items() if path not in ALLOWED
    }
