import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from planner.formats.format import OutputFile

VARIABLES = {"SCRIPT": "my train.py", "DATA": "/data"}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Sequence[OutputFile]], Path]:
    """Write files into a folder with a space in its name."""

    def write(files: Sequence[OutputFile]) -> Path:
        folder = tmp_path / "out put"
        for file in files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
        return folder

    return write


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], None]:
    """Put a program of that name on the PATH of scripts."""

    def put(name: str, body: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return put


@pytest.fixture
def bash(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run bash with the programs of the test and nothing of this environment but PATH."""

    def run(
        *words: str, environment: dict[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        given = VARIABLES if environment is None else environment
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", *words],
            env={"PATH": path, "HOME": str(tmp_path), **given},
            cwd=folder or tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
