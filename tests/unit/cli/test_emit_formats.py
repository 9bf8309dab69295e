"""Every real format under every launcher: what is written parses, and starts with all its words."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from in_process import planner

from planner.answers.plan_file import load_plan
from planner.formats.registry import load_format, written_names
from planner.launchers import LAUNCH_VARIABLES, LAUNCHERS, user_variables

SHOW = "#!/usr/bin/env bash\nprintf '%s\\0' \"$@\"\n"


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """The best plan on two nodes for a format's framework."""

    def save(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        words = ("--framework", load_format(name).framework, "--top", "1", "--save", str(path))
        run = planner("plan", "llama3-8b", "2xdgx-h100", *words)
        assert run.code == 0, run.err
        return path

    return save


def bash(script: Path, folder: Path, environment: dict[str, str]) -> Any:
    given = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **environment}
    return subprocess.run(
        ["bash", str(script)], env=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_format_is_written_and_its_scripts_parse(
    saved: Any, tmp_path: Path, launcher: str
) -> None:
    for name in written_names():
        out = tmp_path / "out" / name
        target = ("--to", name, "--out", str(out), "--launcher", launcher)
        run = planner("emit", str(saved(name)), *target)
        assert run.code == 0, run.err
        assert "note:" not in run.err
        for script in (*out.glob("*.sh"), *out.glob("*.sbatch")):
            checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, b""), script


def test_every_format_starts_with_all_its_words(saved: Any, tmp_path: Path) -> None:
    for name in written_names():
        plan, out = saved(name), tmp_path / "out" / name
        emitted = load_format(name).emit(*load_plan(plan)[:2])
        assert planner("emit", str(plan), "--to", name, "--out", str(out)).code == 0
        own = emitted.own_launcher or ("torchrun",)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / own[0]).write_text(SHOW)
        (tmp_path / "bin" / own[0]).chmod(0o755)
        node = {"NODE_RANK": "1", "MASTER_ADDR": "first"}
        variables = user_variables(emitted.variables)
        stopped = bash(out / "launch.sh", tmp_path, node)
        asked = [*variables, *(each.key for each in emitted.open_keys)]
        assert stopped.returncode == (2 if asked else 0)
        assert all(f"launch.sh: {name} is not set" in stopped.stderr for name in asked)
        assert len(stopped.stderr.splitlines()) == len(asked)
        for each in emitted.open_keys:
            text = (out / each.file).read_text()
            (out / each.file).write_text(text.replace("{", f'{{"{each.key}": 1e-4,', 1))
        values = {variable: f"a {variable}" for variable in variables}
        done = bash(out / "launch.sh", tmp_path, {**node, **values})
        assert (done.returncode, done.stderr) == (0, "")
        words = list(emitted.words)
        for variable, value in values.items():
            words = [word.replace(f"${{{variable}}}", value) for word in words]
        given = done.stdout.split("\0")[:-1]
        assert given[-len(words) :] == words
        assert {*re.findall(r"\$\{(\w+)\}", " ".join(own))} <= set(LAUNCH_VARIABLES)


def test_a_format_that_is_only_read_is_refused_by_name(saved: Any) -> None:
    run = planner("emit", str(saved("megatron")), "--to", "axolotl")
    assert run.code == 2
    message = "axolotl is read, checked and repaired, not written; allowed are accelerate, bridge, "
    assert message in run.err
