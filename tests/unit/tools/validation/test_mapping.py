"""Records of five frameworks mapped by hand, and records and lines that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import assert_places

from planner.errors import InputError
from tools.validation.compare import measured_figures
from tools.validation.mapping import to_run
from tools.validation.records import Record, read_records, read_runs
from tools.validation.setup import CannotEstimateError

LINES = Path(__file__).parents[3] / "validation" / "published_runs.jsonl"
GOOD: dict[str, Any] = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
MAPPED = yaml.safe_load(Path(__file__).with_name("mapped_runs.yaml").read_text("utf-8"))
CONTRADICTIONS = yaml.safe_load(Path(__file__).with_name("contradictions.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_records(LINES)}


@pytest.mark.parametrize("name", MAPPED)
def test_a_run_is_what_its_source_describes(records: dict[str, Record], name: str) -> None:
    assert_places(to_run(records[name]), MAPPED[name])


def test_what_is_not_published_or_modelled_is_skipped_with_a_reason(
    records: dict[str, Record],
) -> None:
    def changed(record: Record, **said: Any) -> Record:
        whole = record.model_dump(exclude_unset=True)
        for name, value in said.items():
            whole[name] = {**(whole[name] or {}), **value} if isinstance(value, dict) else value
        return Record.model_validate(whole)

    dense = records["megatron-2020-1b-a100-128"]
    lora = next(r for r in records.values() if r.task == "lora" and r.complete)
    wide = changed(records["moezoo-qwen3-235b-h100-256-tuned"], parallel={"ep": 32, "etp": 2})
    for record, reason in (
        (records["megatron-sc21-t1-1.7b-32"], "not published in full"),
        *((changed(dense, **each["said"]), each["reason"]) for each in CONTRADICTIONS),
        (changed(dense, parallel={"offload": "cpu"}), "this offload is not modelled: cpu"),
        (changed(lora, lora=None), "adapters not published"),
        (wide, "ep 32 x etp 2 ranks do not divide the 32"),
    ):
        with pytest.raises(CannotEstimateError, match=reason):
            to_run(record)


def test_memory_units(records: dict[str, Record]) -> None:
    bloom = next(r for r in records.values() if r.memory and r.memory.nvidia_smi_gb)
    assert measured_figures(bloom).nvidia_smi_gib == bloom.memory.nvidia_smi_gb
    assert measured_figures(records["torchtitan-llama3.1-8b-32h200-fp8"]).reserved_gib == 47.96


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "runs.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


def test_every_malformed_line_is_reported(tmp_path: Path) -> None:
    wrong = {**GOOD, "id": "wrong", "hardware": {"gpu": "x", "gpus": -1}}
    file = written(tmp_path, GOOD, "{", wrong, GOOD, "")
    with pytest.raises(InputError) as caught:
        read_records(file)
    where = [(problem.where, problem.key) for problem in caught.value.problems]
    assert where == [(f"{file}:2", "record"), (f"{file}:3", "hardware.gpus"), (f"{file}:4", "id")]


def test_a_line_that_is_no_record_is_skipped_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD, {**GOOD, "id": "odd", "task": "distillation"}, "{")
    runs = read_runs(file)
    assert [record.id for record in runs.records] == [GOOD["id"]]
    assert [line.name for line in runs.unread] == ["odd", f"{file}:3"]
    assert runs.unread[0].problems[0].key == "task"


def test_a_file_without_any_record_is_refused(tmp_path: Path) -> None:
    said_of = {written(tmp_path, "[]"): "::record: ", tmp_path / "none.jsonl": "no such file"}
    for path, said in said_of.items():
        with pytest.raises(InputError, match=said):
            read_runs(path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"extra": 1}, "extra"),
        ({"task": "distillation"}, "task"),
        ({"runtime": {"cuda_graph": ["all"]}}, "runtime.cuda_graph.0"),
        ({"assumed": {"vpp": 2}}, "record"),
        ({"parallel": {"pp": 10**10}}, "parallel.pp"),
        ({"parallel": {"micro_batch": 10**300}}, "parallel.micro_batch"),
        ({"mfu": 10**400}, "record"),
    ],
    ids=str,
)
def test_what_the_reader_does_not_know_is_refused(
    changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read_records(written(tmp_path, {**GOOD, **changes}))
    assert [problem.key for problem in caught.value.problems] == [key]
