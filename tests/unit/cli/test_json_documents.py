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
SMALL = ("gpt3-xl", "1xdgx-a100-640")
TIGHT = ("--tokens", "1T", "--deadline", "1d")
SMI = """\
name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max
NVIDIA L40S, 46068 MiB, 4, 16
NVIDIA L40S, 46068 MiB, 4, 8
"""
FILE = ("broken", "--cluster", "2xdgx-h100", "--model", "llama3-8b")
LARGEST = ("--maximize", "micro-batch")
QUESTIONS: dict[str, list[tuple[str, ...]]] = {
    "plan": [
        ("plan", *SMALL, "--top", "1", "--fix", "tp=1"),
        ("plan", *SMALL, "--top", "1", "--fix", "tp=2", *TIGHT),
        ("plan", *SMALL, "--framework", "accelerate", "--train", "lora", "--frontier"),
    ],
    "versus": [
        ("plan", *SMALL, "--tp", "1", "--versus", "precision=fp16", "--versus", "tp=2,pp=1"),
        ("plan", *SMALL, "--tp", "1", "--versus", "tp=16"),
    ],
    "space": [("plan", *SMALL, "--space", "--framework", "any")],
    "why": [
        ("why", *SMALL, "--fix", "tp=8"),
        ("why", *SMALL, "--fix", "tp=3"),
        ("why", "llama3.1-405b", "1xdgx-h100", "--fix", "tp=8"),
    ],
    "largest": [
        ("plan", *SMALL, *LARGEST, "--tp", "2", "--pp", "1", "--micro-batch", "8"),
        ("plan", "llama3-8b", "2xrtx4090", *LARGEST, "--train", "lora", "--tp", "1", "--cp", "1"),
    ],
    "memory": [
        ("memory", "llama3-8b", "1xdgx-h100", "--tp", "2"),
        ("memory", "llama3.1-70b", "1xdgx-h100", "--tp", "8"),
    ],
    "scale": [
        ("size", "gpt3-xl", "dgx-a100-640", "--gpus", "8,16"),
        ("size", "llama3.1-70b", "dgx-a100-640", "--gpus", "8,32", "--weak"),
    ],
    "size": [
        ("size", "gpt3-xl", "dgx-a100-640"),
        ("size", "gpt3-xl", "dgx-a100-640", "--max-gpus", "8", *TIGHT),
    ],
    "sweep": [("sweep", "sweep.yaml", "--workers", "1")],
    "sweep-show": [
        ("sweep", "show", "results.jsonl", "--best", "cost"),
    ],
    "calibrate": [
        ("calibrate", "2xaws-p5.48xlarge", "all_reduce_perf.txt", "--dry-run"),
        ("calibrate", "1xdgx-h100", "gemm.csv"),
    ],
    "compare": [
        ("compare", "run.log", "--cluster", "16xjean-zay-v100"),
        ("compare", "rate.log"),
    ],
    "job": [
        ("job", "plan.yaml", "--tokens", "1T"),
        ("job", "plan.yaml", "--tokens", "1T", "--async-checkpoints"),
        ("job", *SMALL, "--tokens", "1T", "--framework", "accelerate", "--train", "lora"),
    ],
    "sensitivity": [
        ("sensitivity", "gpt3-small", "1xa100-sxm-80", "--global-batch", "8"),
    ],
    "explain": [
        ("explain", "plan.yaml"),
        ("explain", "plan.yaml", "memory"),
        ("explain", "stages.yaml", "time"),
        ("explain", "plan.yaml", "optimizer"),
        ("explain", "stages.yaml", "pipeline.bubble"),
    ],
    "collective": [
        ("collective", "all-reduce", "1GB", "4xdgx-h100"),
        ("collective", "broadcast", "1GB", "4xdgx-h100"),
        ("collective", "all-to-all", "64MiB", "64xtpu-v4"),
    ],
    "emit": [
        ("emit", "plan.yaml", "--to", "megatron"),
        ("emit", "plan.yaml", "--to", "megatron", "--out", "out", "--launcher", "slurm"),
    ],
    "check": [
        ("check", "broken", "--model", "llama3-8b", "--cluster", "2xdgx-h100", "--no-advice"),
        ("check", "plan.yaml", "nowhere.json", "--no-advice"),
    ],
    "repair": [
        ("check", "plan.yaml", "--fix"),
        ("check", "stages.yaml", "--fix", "--cluster", "1xdgx-h100"),
        ("check", "plan.yaml", "--fix", "--cluster", "1xpcie-8x-a10"),
        ("repair", *FILE),
    ],
    "models": [("show", "models", *words) for words in ((), ("moe", "qwen"), ("moe", "bert"))],
    "model": [
        ("show", "models", name) for name in ("llama3-8b", "deepseek-v3", "t5-11b", "config.json")
    ],
    "hardware": [("show", "hardware", "tpu")],
    "hardware-entry": [
        ("show", "hardware", name)
        for name in ("h100-sxm", "dgx-h100", "ib-ndr-superpod", "frontier")
    ],
    "cluster": [("show", "hardware", "4xdgx-h100"), ("show", "hardware", "64xtpu-v4")],
    "detected": [
        ("show", "hardware", "--from", "smi.csv"),
        ("show", "hardware", "--from", "smi.csv", "--out", "found.yaml"),
    ],
    "recipes": [("show", "recipes"), ("show", "recipes", "llama3", "bf16")],
    "frameworks": [("show", "frameworks")],
    "framework": [("show", "frameworks", "deepspeed"), ("show", "frameworks", "megatron/classic")],
}
CASES = [(kind, question) for kind, asked in QUESTIONS.items() for question in asked]
WRONG = [
    ("plan", "nosuch", "nosuch"),
    ("plan", "llama3-8b", "1xdgx-h100", "--fix", "tp=3", "--limit", "nosuch<2"),
    ("plan", "llama3.1-405b", "1xdgx-h100", "--time-limit", "1"),
    ("why", *SMALL),
    ("memory", "llama3-8b", "1xdgx-h100", "--tp", "3"),
    ("size", "llama3-8b", "nosuch", "--gpus", "8"),
    ("size", "nosuch", "h100"),
    ("sweep", "nowhere.yaml"),
    ("sweep", "show", "results.jsonl", "--where", "days<0.1"),
    ("calibrate", "1xdgx-h100", "nowhere.txt"),
    ("calibrate", "nosuch", "gemm.csv"),
    ("compare", "nowhere.log"),
    ("compare", "run.log", "--cluster", "nosuch"),
    ("job", "plan.yaml"),
    ("sensitivity", *SMALL, "--objective", "cost"),
    ("explain", "nowhere.yaml"),
    ("explain", "plan.yaml", "nosuch"),
    ("collective", "all-reduce", "1XB", "2xdgx-h100"),
    ("emit", "plan.yaml", "--to", "nosuch"),
    ("emit", "plan.yaml", "--to", "torchtitan"),
    ("check", "nowhere.yaml", "--fix"),
    ("show", "models", "nosuch"),
    ("show", "models", "nosuch/model"),
    ("show", "hardware", "nosuch"),
    ("show", "frameworks", "nosuch"),
    ("show", "recipes", "nosuch"),
]


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


@pytest.mark.parametrize(
    ("kind", "question"), CASES, ids=[" ".join(question) for _, question in CASES]
)
def test_a_document_is_what_its_schema_says(
    folder: Path, kind: str, question: tuple[str, ...]
) -> None:
    run = planner(*question, "--format", "json")
    assert run.code in (0, 1, 2, 3), run.err
    found = read(run.out)
    assert list(found)[:3] == ["schema", "schema_version", "planner_version"]
    assert found["schema"] == kind
    validator = Draft202012Validator(schema(kind))
    assert [error.message for error in validator.iter_errors(found)] == []


def test_every_kind_of_document_is_asked_for() -> None:
    assert sorted(QUESTIONS) == sorted(KINDS)


@pytest.mark.parametrize("command", sorted(app_commands()))
def test_every_command_has_a_json_form(command: str) -> None:
    (choices,) = re.findall(r"--format <([^>]+)>", planner(command, "--help").out)
    assert "json" in choices.split("|")


@pytest.mark.parametrize("question", WRONG, ids=" ".join)
def test_a_wrong_question_has_a_message_and_no_document(
    folder: Path, question: tuple[str, ...]
) -> None:
    run = planner(*question, "--format", "json")
    assert run.code in (2, 3, 4, 5), run
    assert run.out == ""
    assert run.err != ""


def test_schema_prints_one_and_lists_all() -> None:
    listed = [line.split()[0] for line in planner("show", "schema").out.splitlines()]
    assert listed == sorted(KINDS)
    assert (
        json.loads(planner("show", "schema", "plan").out)["title"] == "planner plan --format json"
    )


def test_what_is_written_can_be_read_from_the_document(folder: Path) -> None:
    run = planner("emit", "plan.yaml", "--to", "megatron", "--out", "out", "--format", "json")
    files = read(run.out)["files"]
    assert {file["name"]: file["text"] for file in files} == {
        str(path.relative_to("out")): path.read_text() for path in Path("out").rglob("*.*")
    }


def test_an_explained_item_has_its_formula_inputs_and_parts(folder: Path) -> None:
    item = read(planner("explain", "plan.yaml", "optimizer", "--format", "json").out)["item"]
    whole, *parts = item["values"].values()
    assert item["name"] == "memory.optimizer"
    assert sum(parts) in (0, pytest.approx(whole))
    assert item["formulas"]
    assert "traits.states.master_weight_bytes" in {each["path"] for each in item["inputs"]}
