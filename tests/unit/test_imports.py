"""Who may import whom, and that start-up stays light."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).parent
BASE = {"units", "errors", "limits", "notes"}
SPEC = BASE | {"spec", "documents", "expr"}
MODEL = SPEC | {"collectives", "layers", "schedules", "cost"}
INPUTS = {"catalog", "frameworks", "formats"}
QUESTION = {"search", "query"}
PLANS = QUESTION | {"answers"}
ANSWERS = PLANS | {"check", "sweep", "compare", "calibrate"}
ALLOWED: dict[str, set[str]] = {
    "limits": set(),
    "units": {"limits"},
    "errors": set(),
    "expr": {"errors", "limits"},
    "notes": {"units", "errors"},
    "documents": {"errors", "limits"},
    "spec": BASE,
    "collectives": SPEC,
    "layers": SPEC,
    "schedules": SPEC,
    "cost": SPEC | {"collectives", "layers", "schedules"},
    "search": MODEL,
    "catalog": SPEC,
    "frameworks": MODEL,
    "formats": MODEL | {"frameworks"},
    "query": MODEL | INPUTS | {"search"},
    "answers": MODEL | INPUTS | PLANS,
    "check": MODEL | INPUTS | PLANS,
    "launchers": MODEL | INPUTS,
    "sweep": MODEL | INPUTS | {"search", "answers", "query", "notes"},
    "compare": MODEL | INPUTS | PLANS | {"check"},
    "calibrate": MODEL | INPUTS | PLANS | {"check", "compare"},
    "report": MODEL | INPUTS | ANSWERS | {"launchers"},
    "cli": MODEL | INPUTS | ANSWERS | {"launchers", "report"},
    "api": {"check", "cli", "errors", "query", "report"},
}
"""What each package of planner may import besides itself."""
HEAVY = """
jsonschema ortools pandas planner.search.stages.cp_sat jinja2 polars ray torch tree_sitter
"""


@cache
def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def package_of(path: Path) -> str:
    """First name below planner: a package or a module."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def packages() -> frozenset[str]:
    return frozenset(map(package_of, modules()))


@cache
def imported_names(path: Path) -> set[str]:
    """Dotted names a file imports, relative ones resolved, at any depth of the code."""
    names: set[str] = set()
    package = ["planner", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {stem} | {f"{stem}.{alias.name}" for alias in node.names}
    return names


def planner_packages(path: Path) -> set[str]:
    ours = (name for name in imported_names(path) if name.startswith("planner."))
    return {name.split(".")[1] for name in ours} & packages()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_only(path: Path) -> None:
    own = package_of(path)
    if own in {"__init__", "__main__"}:
        return
    assert own in ALLOWED, f"{own} has no place among the layers yet"
    assert planner_packages(path) - {own} <= ALLOWED[own]


PARTS_OF_SEARCH = (*("space", "stages", "ranking", "search"), *("feasible", "conflicts", "near"))
"""Each imports those before it only."""


@pytest.mark.parametrize("part", PARTS_OF_SEARCH)
def test_the_parts_of_the_search_import_one_way(part: str) -> None:
    later = PARTS_OF_SEARCH[PARTS_OF_SEARCH.index(part) + 1 :]
    own = [path for path in modules() if f"search/{part}" in str(path.with_suffix(""))]
    assert own
    for path in own:
        used = {name.split(".")[2] for name in imported_names(path) if is_of_search(name)}
        assert not used & set(later), path


def is_of_search(name: str) -> bool:
    return name.startswith("planner.search.")


@pytest.mark.parametrize("package", ["spec", "collectives", "layers", "schedules", "cost"])
def test_the_model_reads_no_files_and_solves_nothing(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        roots = {name.split(".")[0] for name in imported_names(path)}
        assert not roots & {"yaml", "pydantic", "ortools", "typer", "rich", "pandas"}, path


def test_only_stages_and_the_proof_import_ortools() -> None:
    users = [
        path for path in modules() if any(n.startswith("ortools") for n in imported_names(path))
    ]
    names = [str(path.relative_to(ROOT)) for path in users]
    assert names == ["search/prove.py", "search/stages/cp_sat.py"]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("planner.cli.app", (*HEAVY.split(), "numpy")),
        # Help of a command needs its module alone.
        ("planner.cli.plan, planner.cli.answers", (*HEAVY.split(), "numpy", "pydantic")),
        ("planner.cli.check, planner.cli.export, planner.cli.explain", (*HEAVY.split(), "numpy")),
        ("planner.cli.measure, planner.cli.sweep, planner.cli.show", (*HEAVY.split(), "numpy")),
        ("planner.cost.estimate", HEAVY.split()),
        ("planner.catalog.models", HEAVY.split()),
    ],
)
def test_start_up_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
