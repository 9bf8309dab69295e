"""What the pages for contributors name is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("CONTRIBUTING.md", "docs/extending.md")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?<![\w./-])(?:[\w.-]+/)+[\w.*-]*|(?<![\w./-])[\w-]+\.(?:py|ya?ml|md|toml)\b")
PLACEHOLDER = re.compile(r"\b(?:NAME|RULE|KIND)\b")
CONSTANT = re.compile(r"`([A-Z][A-Z_]+)`\s+(?:in\s+|\()`([\w/]+\.py)`")
MADE = (".venv/", ".fuzz/")  # Folders that commands make


def code_of(page: str) -> Iterator[str]:
    """Code spans that are no line of YAML, and lines of shell."""
    yield from (text for language, text in BLOCK.findall(page) if language == "sh")
    yield from (text for text in SPAN.findall(BLOCK.sub("", page)) if ": " not in text)


def named_paths(page: str) -> Iterator[str]:
    """Paths and files that a page names, a pattern where it leaves a name open."""
    for code in code_of(page):
        for path in PATH.findall(code):
            if not path.startswith(MADE):
                yield PLACEHOLDER.sub("*", path).rstrip("/")


def is_there(path: str) -> bool:
    """By its path from the root; a file without a folder, anywhere."""
    return any(ROOT.glob(path if "/" in path else f"**/{path}")) or (ROOT / path).exists()


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_path_a_page_names_exists(name: str) -> None:
    paths = set(named_paths(text_of(name)))
    assert len(paths) > 15
    assert not {path for path in paths if not is_there(path)}


@pytest.mark.parametrize("name", PAGES)
def test_every_table_a_page_names_is_in_the_file_it_names(name: str) -> None:
    named = CONSTANT.findall(text_of(name))
    assert not [one for one in named if not re.search(rf"^{one[0]}\b", text_of(one[1]), re.M)]


def test_paths_are_found_in_spans_and_shell_and_names_left_open_are_patterns() -> None:
    page = "in `planner/x/NAME.yaml`, see (`gone.py`)\n```sh\npython scripts/run --a b/c.py\n```\n"
    assert list(named_paths(page)) == ["scripts/run", "b/c.py", "planner/x/*.yaml", "gone.py"]
    assert not is_there("gone.py")
    assert CONSTANT.findall("`TABLE` (`a/b.py`) and `ONE` in\n`c.py`") == [
        ("TABLE", "a/b.py"),
        ("ONE", "c.py"),
    ]
