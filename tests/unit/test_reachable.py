"""Nothing in the package is there for the tests alone."""

import tomllib
from pathlib import Path

import pytest
from reachable import Source, read_package, unreached

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "planner"
FOUND_BY_NAME = {"planner.formats.*.format": "FORMAT", "planner.launchers.*": "LAUNCHER"}
"""What the program imports by a name that it puts together."""
PUBLIC = "planner.api"
"""Called from Python by people."""
KEPT = {
    "planner.report.screen:Screen.render": "rich calls it",
    "planner:__getattr__": "Python calls it",
}
"""Definitions that nothing names, and why they stay."""


def programs() -> list[Path]:
    """Python files beside the package that a person starts, or that those import."""
    folders = [ROOT / name for name in ("scripts", "tools", "benchmarks")]
    found = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    texts = {path: path.read_text("utf-8") for path in found}
    return [
        path
        for path, text in texts.items()
        if path.suffix == ".py" or text.startswith("#!/usr/bin/env python")
    ]


def roots(sources: list[Source]) -> list[tuple[str, str]]:
    """The commands, what people call, what is found by its name, and all that programs name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    commands = [tuple(entry.split(":")) for entry in settings["project"]["scripts"].values()]
    found = [
        (source.module, name)
        for pattern, name in FOUND_BY_NAME.items()
        for source in sources
        if Path(source.module).match(pattern)
    ]
    started = [Source(path.stem, path.read_text("utf-8")) for path in programs()]
    named = [name for source in started for one in source.definitions for name in one.uses]
    named += [name for source in started for name in source.outside]
    public = [
        key
        for source in sources
        if source.module.startswith(PUBLIC)
        for one in source.definitions
        for key in one.keys
    ]
    return [*((module, name) for module, name in commands), *found, *named, *public]


def test_every_definition_is_reached_from_a_command_or_a_script() -> None:
    sources = read_package(PACKAGE)
    dead = {str(one): one.line for one in unreached(sources, roots(sources))}
    assert set(dead) - set(KEPT) == set(), "only tests reach these: delete them or move them there"
    assert set(KEPT) <= set(dead), "reached, so no exceptions"


def test_every_data_file_is_named_in_the_package() -> None:
    files = [
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in str(path)
    ]
    text = "\n".join(path.read_text("utf-8") for path in files if path.suffix in (".py", ".yaml"))
    data = [path for path in files if path.suffix != ".py"]
    assert data
    assert not [path for path in data if path.name not in text and path.stem not in text]


PLANTED = """
from functools import cache

import typer

app = typer.Typer()
LIMIT = 3
UNUSED = 4


@app.command()
def command() -> None:
    print(Shape(LIMIT).area, reached(), getattr(Shape(1), "by_name"))


@cache
def reached() -> int:
    return 1


def dead() -> int:
    return helper_of_the_dead() + dead()


def helper_of_the_dead() -> int:
    return UNUSED


class Shape:
    def __init__(self, side: int) -> None:
        self.side = side

    @property
    def area(self) -> int:
        return self.side**2

    @property
    def by_name(self) -> int:
        return 1

    def perimeter(self) -> int:
        return 4 * self.side
"""


def test_planted_dead_code_is_found_and_what_a_command_uses_is_not() -> None:
    dead = unreached([Source("planted", PLANTED)], [("planted", "app")])
    names = ["UNUSED", "dead", "helper_of_the_dead", "Shape.perimeter"]
    assert [str(one) for one in dead] == [f"planted:{name}" for name in names]


@pytest.mark.parametrize(
    ("user", "is_reached"),
    [
        ("from package.one import used\nprint(used())", True),
        ("from package.one import used as other\nprint(other())", True),
        ("from package import one\nprint(one.used())", True),
        ("from .one import used\nprint(used())", True),
        ("from package.one import used", False),
        ("def used(): ...\nprint(used())", False),
        ("print(object().used)", False),
    ],
)
def test_a_name_means_what_its_module_binds_it_to(user: str, is_reached: bool) -> None:
    one, two = Source("package.one", "def used(): ..."), Source("package.two", user)
    assert ("package.one:used" not in map(str, unreached([one, two], []))) is is_reached
