"""The lists of known keys are those of the installed packages."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import deepspeed.runtime.config as deepspeed_config
import pytest

from planner.formats.deepspeed.keys import schema
from planner.formats.megatron.options import load_options

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / name))


def test_the_files_of_keys_are_what_the_packages_give() -> None:
    for path, text in load("launcher_keys.py")["texts"]().items():
        assert path.read_text(encoding="utf-8") == text, "run scripts/launcher_keys.py"


@pytest.mark.parametrize("script", ["megatron_options.py", "torchtitan_keys"])
def test_what_a_script_writes_is_not_old(script: str, megatron_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), "--check"]
    own = {"MEGATRON_PATH": str(megatron_path), "PYTHONPATH": str(SCRIPTS.parent)}
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert len(load_options()) > 800


def test_known_keys_are_those_of_the_installed_deepspeed() -> None:
    script = load("deepspeed_keys.py")
    written = script["TARGET"].read_text(encoding="utf-8")
    assert written == script["text"](), "run `python scripts/deepspeed_keys.py`"
    package = Path(deepspeed_config.__file__).parents[1]
    for key, source in script["READ_ELSEWHERE"].items():
        assert key in (package.parent / source).read_text(encoding="utf-8"), key
    assert "training_script" in schema()["properties"]
    assert "training_script" not in script["asked_keys"]()[0]
