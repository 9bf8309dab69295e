"""The pre-commit hooks and the GitHub action: well-formed, and what they run runs."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
PLAN = ROOT / "docs" / "emit.md"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan file that the documentation shows, in the present folder."""
    shown = PLAN.read_text(encoding="utf-8").partition("$ cat best.yaml\n")[2].partition("```")[0]
    (tmp_path / "best plan.yaml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    return shown


@pytest.fixture
def hook() -> dict[str, Any]:
    (found,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return dict(found)


@pytest.fixture
def action() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8")))


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", list(arguments))
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_the_hook_has_what_pre_commit_asks_for(hook: dict[str, Any]) -> None:
    assert {"id", "name", "entry", "language"} <= hook.keys()
    assert hook["language"] == "python"


OURS = """
ds_config.json configs/deepspeed_zero3.json configs/accelerate-fsdp.yaml zero2.json plan.yaml
examples/ds_z3_offload_config.json zero_stage3_config.json deepspeed_configs/bf16.json
recipes/accelerate_configs/ddp.yaml fsdp2_config_offload.yaml runs/llama.plan.yml
"""
OTHERS = """
zero_shot.json qlora-fsdp.yml package.json planets.yaml ds_config.py deepspeed/notes.json
"""


@pytest.mark.parametrize("path", [*OURS.split(), *OTHERS.split()])
def test_the_hook_is_given_configurations_only(hook: dict[str, Any], path: str) -> None:
    assert bool(re.search(hook["files"], path)) is (path in OURS.split())


def test_the_hooks_entry_passes_a_sound_plan_and_stops_a_broken_one(
    hook: dict[str, Any], plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(hook["entry"])
    assert exit_code(monkeypatch, *words, "best plan.yaml") == 0
    Path("broken.yaml").write_text(plan.replace("tp: 1", "tp: 3"))
    assert exit_code(monkeypatch, *words, "best plan.yaml", "broken.yaml") == 1


def test_this_repositorys_own_hooks_fetch_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (local,) = yaml.safe_load(text)["repos"]
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        program, tool, *rest = shlex.split(hook["entry"])
        assert (hook["language"], program) == ("system", ".venv/bin/python")
        assert (tool == "-m" and find_spec(rest[0])) or (ROOT / tool).is_file()


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.txt", "text\n", 0),
        ("a.txt", "", 0),
        ("a.txt", "text", 1),
        ("a.txt", "text\n\n", 1),
        ("a.yaml", "a: [1]\n", 0),
        ("a.yaml", "a: [1\n", 1),
    ],
)
def test_files_end_with_a_newline_and_yaml_is_readable(
    tmp_path: Path, name: str, text: str, code: int
) -> None:
    (tmp_path / name).write_text(text)
    command = [sys.executable, ROOT / "scripts" / "text_files.py", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, name in done.stdout) == (code, bool(code))


def test_the_action_is_composite_and_uses_only_inputs_it_has(action: dict[str, Any]) -> None:
    assert {"name", "description", "inputs", "runs"} <= action.keys()
    assert action["runs"]["using"] == "composite"
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])


def test_no_input_of_the_action_is_pasted_into_a_script(action: dict[str, Any]) -> None:
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"] if "run" in step)


@pytest.fixture
def run_action(tmp_path: Path, action: dict[str, Any]) -> Callable[..., tuple[int, str]]:
    """Run the action's last script with this tree's program, inputs given."""
    program = tmp_path / "bin" / "planner"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m planner.cli.app "$@"\n')
    program.chmod(0o755)
    step = action["runs"]["steps"][-1]

    def run(**inputs: str) -> tuple[int, str]:
        given = {name: entry.get("default", "") for name, entry in action["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        variables = {
            name: given[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)[1]]  # type: ignore[index]
            for name, text in step["env"].items()
        }
        environment = os.environ | {
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_action_annotates_what_is_wrong(
    run_action: Callable[..., tuple[int, str]], plan: str
) -> None:
    Path("a.yaml").write_text(plan)
    changed = plan.replace("zero_stage: 1", "zero_stage: 2")
    Path("b.yaml").write_text(changed)
    line = next(i for i, text in enumerate(changed.splitlines(), 1) if "zero_stage: 2" in text)
    code, output = run_action(files="[ab].yaml", options="--no-advice")
    assert code == 1
    assert f"::error file=b.yaml,line={line},title=legality.zero_stage_offered::" in output


def test_the_action_hands_its_inputs_on(
    run_action: Callable[..., tuple[int, str]], plan: str
) -> None:
    Path("a.yaml").write_text(plan)
    code, output = run_action(
        files="a.yaml", cluster="1xdgx-h100", fail_on="error", options="--no-advice"
    )
    assert code == 1
    assert "legality.within_cluster" in output
    assert run_action(files="a.yaml", cluster="2xdgx-h100", options="--no-advice") == (0, "")
