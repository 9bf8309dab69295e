"""Files checked: what they name is read, never from outside; what they leave open is stated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.check.check import check_file
from planner.check.result import FileResult
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.query.from_file import Request, read_assumed

TEXT = """\
model_name_or_path: Qwen/Qwen3-4B
stage: sft
do_train: true
finetuning_type: full
dataset: identity
template: qwen3
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
cutoff_len: 2048
deepspeed: {name}
"""
ZERO: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}


def check(folder: Path, name: str) -> FileResult:
    path = folder / "train.yaml"
    path.write_text(TEXT.format(name=name))
    return check_file(str(path), Request(cluster="1xdgx-h100", with_advice=False))


def errors(result: FileResult) -> list[tuple[str, int]]:
    return [(one.rule, one.line) for one in result.findings if one.severity == "error"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "examples" / "full"
    folder.mkdir(parents=True)
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "z3.json").write_text(json.dumps(ZERO))
    return folder


def test_a_name_starts_where_the_program_does(project: Path) -> None:
    result = check(project, "deepspeed/z3.json")
    assert not errors(result)
    assert result.framework == "deepspeed"
    assert result.figures is not None


def test_what_is_wrong_there_is_said_there(project: Path) -> None:
    broken = ZERO | {"compile": {"disable": False, "backend": "inductor"}}
    named = project.parents[1] / "deepspeed" / "z3.json"
    named.write_text(json.dumps(broken, indent=1))
    result = check(project, "deepspeed/z3.json")
    assert [one.rule for one in result.findings if one.path.endswith("z3.json")] == [
        "deepspeed.unknown_key"
    ] * 2


@pytest.mark.parametrize(
    ("name", "says"), [("deepspeed/z9.json", "not there"), ("train.yaml", "names the file itself")]
)
def test_a_file_that_is_not_there_is_an_error_at_its_line(
    project: Path, name: str, says: str
) -> None:
    result = check(project, name)
    assert errors(result) == [("llamafactory.named_file", 11)]
    assert says in str(result.findings)


@pytest.mark.parametrize("name", ["/etc/hostname", "../../../outside.json"])
def test_what_lies_outside_is_not_read(project: Path, name: str) -> None:
    (project.parents[2] / "outside.json").write_text("{}")
    result = check(project, name)
    assert not errors(result)
    assert "lies outside" in str(result.findings)
    assert result.figures is None


def test_a_link_that_leads_outside_is_not_followed(project: Path) -> None:
    (project.parents[2] / "outside.json").write_text(json.dumps(ZERO))
    (project / "link.json").symlink_to(project.parents[2] / "outside.json")
    assert check(project, "link.json").figures is None


def test_a_launcher_that_shards_is_asked_for_once_and_stated(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    text = TEXT.replace("deepspeed: {name}\n", "").replace("Qwen3-4B", "Qwen3-8B")
    path.write_text(text)
    request = Request(cluster="1xdgx-h100", with_advice=False)
    (found,) = [one for one in check_file(str(path), request).findings if one.rule == "memory.fits"]
    assert found.severity == "note"
    assert "--assume zero_stage=0 to 3" in found.message
    stated = replace(request, assumed=read_assumed(["zero_stage=3"]))
    result = check_file(str(path), stated)
    assert not result.findings
    assert not any("launcher" in word for word in result.assumed)


def test_a_command_takes_the_file_that_it_names(tmp_path: Path) -> None:
    text = "model_name_or_path: a/b\ndataset_name: a/b\nmax_length: 512\n"
    (tmp_path / "sft.yaml").write_text(text)
    words = "trl sft --config sft.yaml --max_length 2048 --packing true\n"
    found = load_format("trl").read(SourceText(path=str(tmp_path / "run.sh"), text=words))
    assert found.decisions["seq_len"].value == 2048
    assert found.named_model is not None
    assert found.named_model.line == 1


@pytest.mark.parametrize(
    "text",
    [
        "python pretrain_gpt.py --num-layers 32 --bf16 --tensor-model-parallel-size $TP",
        "python run_recipe.py --recipe r model.tensor_model_parallel_size=$TP",
    ],
)
def test_a_file_with_a_degree_that_is_not_known_is_not_priced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text)
    result = check_file(str(path), Request(model="llama3-8b", cluster="2xdgx-h100"))
    (found,) = [each for each in result.findings if each.rule == "job.left_open"]
    assert (found.line, found.severity) == (1, "warning")
    assert "not known from the file" in found.message
    assert result.figures is None
