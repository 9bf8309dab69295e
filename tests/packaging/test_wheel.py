"""The wheel carries hwdb and models, and runs the main job in an environment of its own."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted(ROOT.glob("planner/report/schemas/*.json"))
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


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
    return next(folder.glob("planner-*.whl"))


def test_wheel_contains_every_catalog_file(wheel: Path) -> None:
    packed = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    catalog = [path for kind in ("yaml", "csv") for path in ROOT.glob(f"hwdb/**/*.{kind}")]
    catalog += ROOT.glob("models/*.yaml")
    tables = ROOT.glob("planner/**/*.yaml")
    assert {path.name for path in (*catalog, *tables)} <= packed


def test_wheel_contains_every_schema(wheel: Path) -> None:
    schemas = [f"planner/{path.relative_to(ROOT / 'planner')}" for path in SCHEMAS]
    assert len(schemas) > 20
    assert set(schemas) <= set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_the_program_and_nothing_else(wheel: Path) -> None:
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"planner"}


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
    schema = json.loads(run(scripts / "planner", "schema", "plan", cwd=tmp_path))
    Draft202012Validator(schema).validate(answer)
