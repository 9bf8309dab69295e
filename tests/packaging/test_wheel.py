"""The wheel carries hwdb and models, and runs the main job in an environment of its own."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


NEEDED = {"planner", "hwdb", "models", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
"""What a wheel is built from, and what a reader of the source asks for."""
MOST_BYTES = 3_000_000


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    return next(folder.glob("parallel_planner-*.whl"))


def test_wheel_contains_every_catalog_file(wheel: Path) -> None:
    packed = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    catalog = [path for kind in ("yaml", "csv") for path in ROOT.glob(f"hwdb/**/*.{kind}")]
    catalog += ROOT.glob("models/*.yaml")
    tables = ROOT.glob("planner/**/*.yaml")
    assert {path.name for path in (*catalog, *tables)} <= packed


def test_wheel_says_that_it_is_typed(wheel: Path) -> None:
    assert "planner/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_the_program_and_nothing_else(wheel: Path) -> None:
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"planner"}


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES


def test_source_distribution_holds_what_the_wheel_is_built_from_and_no_tests(
    tmp_path: Path,
) -> None:
    backend, out = tmp_path / "backend", tmp_path / "out"
    run(
        sys.executable, "-m", "pip", "install", "-q", "--target", backend, "hatchling", cwd=tmp_path
    )
    build = "import sys; sys.path.insert(0, sys.argv[1]); import hatchling.build as b; "
    build += "print(b.build_sdist(sys.argv[2]))"
    name = run(sys.executable, "-c", build, backend, out, cwd=ROOT).strip()
    with tarfile.open(out / name) as archive:
        first = {member.partition("/")[2].partition("/")[0] for member in archive.getnames()}
    assert first - {"PKG-INFO", ".gitignore"} == NEEDED
    assert (out / name).stat().st_size < MOST_BYTES


def test_installed_wheel_runs_the_main_job_in_a_fresh_environment(
    wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    scripts = tmp_path / "env" / "bin"
    run(scripts / "pip", "install", "-q", wheel, cwd=tmp_path)
    output = run(
        scripts / "plan",
        "llama3-8b",
        "2xdgx-h100",
        "--format",
        "json",
        "--save",
        "best.yaml",
        cwd=tmp_path,
    )
    answer = json.loads(output)
    assert answer["plans"][0]["gpus"] == 16
    assert answer["search"]["proved_optimal"] is True
    tree = run(scripts / "planner", "explain", "best.yaml", "memory", cwd=tmp_path)
    assert "weights" in tree
    schema = json.loads(run(scripts / "planner", "show", "schema", "plan", cwd=tmp_path))
    Draft202012Validator(schema).validate(answer)
