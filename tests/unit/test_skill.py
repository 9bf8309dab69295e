"""The agent skill: its front matter is what agents read first, its fields are in the JSON."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import docs
from tools.commands import run

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills" / "planner" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+(?: --\w+)?)` \| (`.*?`) \|", re.MULTILINE)
COMMANDS = [step.command for step in docs.steps_of(TEXT)]
FIELDS = {
    command: [
        field
        for name, cell in ROW.findall(TEXT)
        if name == command
        for field in re.findall(r"`([^`]+)`", cell)
    ]
    for command in dict(ROW.findall(TEXT))
}


def document_of(command: str) -> str:
    """The command whose document it is, with the option that makes another one of it."""
    name, *words = command.split()[1:]
    makes_another = {
        "plan": ("--versus", "--maximize"),
        "check": ("--fix",),
        "size": ("--gpus",),
        "explain": ("memory",),
    }
    another = [word for word in makes_another.get(name, ()) if word in words]
    return " ".join([name, *another])


def has(document: Any, path: str) -> bool:
    """Whether something stands at a dotted path."""
    for name in path.split("."):
        if name.isdigit():
            document = dict(enumerate(document))
        key = int(name) if name.isdigit() else name
        if key not in document:
            return False
        document = document[key]
    return True


def test_front_matter_names_the_folder_and_says_when_to_use_it() -> None:
    head = yaml.safe_load(TEXT.split("---\n")[1])
    assert set(head) == {"name", "description"}
    assert head["name"] == SKILL.parent.name
    assert "Use for" in head["description"]
    assert len(head["description"]) <= 1024


def test_every_command_with_fields_has_an_example_in_json() -> None:
    shown = {document_of(line) for line in COMMANDS if line.endswith("--format json")}
    assert len(FIELDS) > 5
    assert FIELDS.keys() <= shown


def test_examples_run_and_every_field_named_is_in_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = set()
    for command in COMMANDS:
        code, output = run(command)
        assert code == 0, f"{command}\n{output}"
        fields = FIELDS.get(document_of(command), []) if command.endswith("--format json") else []
        answer = json.loads(output[: output.rindex("}") + 1]) if fields else {}
        missing |= {(command, path) for path in fields if not has(answer, path)}
    assert not missing
