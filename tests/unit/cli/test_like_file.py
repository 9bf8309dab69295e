"""``planner plan --like FILE``: the job is the file's, the layout is solved."""

import json
from pathlib import Path
from typing import Any

import pytest

AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
adapter: {adapter}
load_in_4bit: {bits}
lora_r: 32
lora_target_linear: true
optimizer: adamw_torch_fused
bf16: true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.format(adapter="qlora", bits="true"))
    return path


def test_the_job_is_the_files_and_the_layout_is_solved(planner: Any, file: Path) -> None:
    words = ("llama3.2-1b", "1xdgx-h100", "--top", "1", "--format", "json")
    run = planner("plan", *words, "--like", str(file))
    assert run.code == 0, run.err
    inputs = json.loads(run.out)["inputs"]
    assert (inputs["seq_len"], inputs["precision"]) == (2048, "bf16")
    assert inputs["global_batch"] == 8 * 2 * 4
    assert "qlora" in run.out


def test_options_come_before_the_file(planner: Any, file: Path) -> None:
    words = ("llama3.2-1b", "1xdgx-h100", "--top", "1", "--format", "json")
    more = ("--seq-len", "1024", "--global-batch", "16", "--like", str(file))
    inputs = json.loads(planner("plan", *words, *more).out)["inputs"]
    assert (inputs["seq_len"], inputs["global_batch"]) == (1024, 16)


def test_what_is_not_priced_is_refused(planner: Any, file: Path) -> None:
    file.write_text(file.read_text() + "rl: dpo\n")
    run = planner("plan", "llama3.2-1b", "1xdgx-h100", "--like", str(file))
    assert run.code == 2
    assert "rl dpo: plans price training on next tokens alone" in run.err
    assert run.err.startswith("command line::--like: ")
