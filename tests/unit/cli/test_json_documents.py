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

ROOT = Path(__file__).resolve().parents[3]
SMI = """\
name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max
NVIDIA L40S, 46068 MiB, 4, 16
NVIDIA L40S, 46068 MiB, 4, 8
"""
LINES = Path(__file__).with_name("documents.txt").read_text(encoding="utf-8").splitlines()
QUESTIONS = [tuple(map(str.strip, line.split("|"))) for line in LINES if line[0] != "#"]
CASES = [(kind, question) for kind, question in QUESTIONS if kind != "wrong"]
WRONG = [question for kind, question in QUESTIONS if kind == "wrong"]


def app_commands() -> set[str]:
    """Commands that print an answer, not the schemas themselves or a picture."""
    return COMMANDS.keys() - {"export", "show", "sweep"}


def results_of_a_sweep() -> str:
    """A file of results with four plans: the best cluster changes along the length."""
    axes = {"model": ["m"], "cluster": ["small", "large"], "seq_len": [1, 2]}
    usd = {("small", 1): 5.0, ("small", 2): 9.0, ("large", 1): 10.0, ("large", 2): 6.0}
    rows = [
        {
            "key": f"{cluster}-{length}",
            "status": "plan",
            "model": "m",
            "cluster": cluster,
            "seq_len": length,
            "gpus": 8,
            "days": cost,
            "tokens_per_s": 1000.0 / cost,
            "cost_usd_per_billion_tokens": cost,
        }
        for (cluster, length), cost in usd.items()
    ]
    return "\n".join(json.dumps(each) for each in [{"axes": axes}, *rows])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the questions name."""
    stages = {"pp": 2, "dp": 4, "layers_per_stage": [16, 16]}
    none = {"selective_layers_per_stage": [0, 0], "recompute_layers_per_stage": [0, 0]}
    more = plan_document(num_micro_batches=32, **stages, **none)
    for name, made in (("plan.yaml", plan_document()), ("stages.yaml", more)):
        (tmp_path / name).write_text(yaml.safe_dump(made))
    (tmp_path / "smi.csv").write_text(SMI)
    (tmp_path / "broken").write_text(BROKEN["megatron-degree"].text)
    for name, kind in (("run.log", "megatron-v100-n8"), ("rate.log", "torchtitan-flex-debug")):
        log = ROOT / "tests" / "examples" / "logs" / f"{kind}.log"
        (tmp_path / name).write_text(log.read_text("utf-8"))
    table = ROOT / "tests" / "examples" / "measured" / "h100_all_reduce_perf.txt"
    (tmp_path / "all_reduce_perf.txt").write_text(table.read_text("utf-8"))
    (tmp_path / "gemm.csv").write_text("m,n,k,tflops\n8192,8192,8192,650\n")
    config = ROOT / "tests" / "examples" / "positive" / "models" / "gemma3-27b.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "sweep.yaml").write_text("model: gpt3-xl\ncluster: 1xa100-80\ntp: [1, 2]\n")
    (tmp_path / "results.jsonl").write_text(results_of_a_sweep())
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


@pytest.mark.parametrize("command", sorted(app_commands()))
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
    assert (
        json.loads(planner("show", "schema", "plan").out)["title"] == "planner plan --format json"
    )
