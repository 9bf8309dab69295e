"""Every command's JSON is what its schema says, and nothing else stands on standard output."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from broken_files import BROKEN
from in_process import planner
from jsonschema import Draft202012Validator
from plan_document import plan_document

from planner.cli.app import COMMANDS
from planner.report.document import KINDS, schema

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = Path(__file__).with_name("documents.txt").read_text(encoding="utf-8").splitlines()
QUESTIONS = [tuple(map(str.strip, line.split("|"))) for line in LINES if line[0] != "#"]
CASES = [(kind, question) for kind, question in QUESTIONS if kind != "wrong"]
WRONG = [question for kind, question in QUESTIONS if kind == "wrong"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the questions name."""
    files = yaml.safe_load(Path(__file__).with_name("documents.yaml").read_text("utf-8"))
    texts = dict(files["texts"])
    texts |= {name: (EXAMPLES / path).read_text("utf-8") for name, path in files["copied"].items()}
    texts |= {n: yaml.safe_dump(plan_document(**plan)) for n, plan in files["plans"].items()}
    texts["broken"] = BROKEN["megatron-degree"].text
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str) -> dict[str, Any]:
    """One document, in the JSON of the standard: Infinity and NaN are none."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


@pytest.mark.parametrize(("kind", "question"), CASES, ids=[question for _, question in CASES])
def test_a_document_is_what_its_schema_says(folder: Path, kind: str, question: str) -> None:
    run = planner(*question.split(), "--format", "json")
    assert run.code in (0, 1, 2, 3), run.err
    found = read(run.out)
    assert list(found)[:3] == ["schema", "schema_version", "planner_version"]
    assert found["schema"] == kind
    validator = Draft202012Validator(schema(kind))
    assert [error.message for error in validator.iter_errors(found)] == []


def test_every_kind_of_document_is_asked_for() -> None:
    assert {kind for kind, _ in CASES} == set(KINDS)


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"export", "show", "sweep"}))
def test_every_command_has_a_json_form(command: str) -> None:
    (choices,) = re.findall(r"--format <([^>]+)>", planner(command, "--help").out)
    assert "json" in choices.split("|")


@pytest.mark.parametrize("question", WRONG)
def test_a_wrong_question_has_a_message_and_no_document(folder: Path, question: str) -> None:
    run = planner(*question.split(), "--format", "json")
    assert run.code in (2, 3, 4, 5), run
    assert run.out == ""
    assert run.err != ""


def test_schema_prints_one_and_lists_all() -> None:
    listed = [line.split()[0] for line in planner("show", "schema").out.splitlines()]
    assert listed == sorted(KINDS)
    shown = json.loads(planner("show", "schema", "plan").out)
    assert shown["title"] == "planner plan --format json"
