"""The documentation: generated parts are current, commands run, links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from planner.cli.app import app
from tools import docs
from tools.docs_site import slug
from tools.formulas import trait_meanings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOR_CONTRIBUTORS = ("architecture.md", "extending.md")
FOR_USERS = [
    path
    for path in (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "formats").glob("*.md"))
    if path.name not in FOR_CONTRIBUTORS
]
MOST_PAGES, MOST_WORDS = 18, 40_000
LEAST_LINES = 20
SKILL = ROOT / "skills" / "planner" / "SKILL.md"  # Its commands are run by test_skill.py
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    without_code = re.sub(r"```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in HEADING.findall(without_code)}


@pytest.mark.parametrize("path", list(docs.generated()), ids=page_name)
def test_generated_part_is_up_to_date(path: Path) -> None:
    assert path.read_text() == docs.generated()[path](), "run `python -m tools.docs`"


def test_every_trait_has_a_meaning() -> None:
    assert all(trait_meanings().values())


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_commands_print_what_the_page_shows_and_end_with_the_exit_code_it_states(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in docs.steps_of(path.read_text()):
        if step.file:
            (tmp_path / step.file).write_text(step.text)
        elif docs.is_ours(step.command):
            code, output = docs.run(step.command)
            assert code == step.exit_code, f"{step.command}\n{output}"
            assert "Traceback" not in output
            if step.output:
                assert docs.excerpt(output, step.output) == step.output, step.command


@pytest.mark.parametrize("name", docs.PRINTED)
def test_tables_are_printed_on_demand(name: str) -> None:
    assert docs.PRINTED[name]().count("\n") > LEAST_LINES


def test_pages_for_users_stay_few_and_short() -> None:
    assert len(FOR_USERS) <= MOST_PAGES
    assert sum(len(path.read_text().split()) for path in FOR_USERS) <= MOST_WORDS


IN_TABLES = [
    command
    for path in PAGES
    for command in re.findall(r"^\|.*\| `(planner [^`]+)` \|$", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("command", IN_TABLES)
def test_commands_in_tables_have_the_options_they_name(command: str) -> None:
    _, name, *words = shlex.split(command)
    known = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    known.make_context(name, words)


@pytest.mark.parametrize("path", [*PAGES, SKILL], ids=page_name)
def test_links_inside_the_repository_resolve(path: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", path.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_pages_name_no_absolute_path() -> None:
    assert not [
        p.name for p in [*PAGES, SKILL] if re.search(r"(?<![\w.])/(work|home|root)/", p.read_text())
    ]
