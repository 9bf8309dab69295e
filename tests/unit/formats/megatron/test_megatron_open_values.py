"""What a script leaves open breaks no rule; what stands in other words counts."""

from pathlib import Path

import pytest

from planner.check.check import check_file
from planner.formats.format import CheckContext, SourceText
from planner.formats.registry import load_format
from planner.query.from_file import Request

MEGATRON = load_format("megatron")
START = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --bf16 "


def broken(words: str, num_gpus: int = 8) -> list[tuple[str, str]]:
    reading = MEGATRON.read(SourceText(path="run.sh", text=f"python pretrain_gpt.py {words}\n"))
    known = {name: value.value for name, value in reading.decisions.items()}
    world = CheckContext(num_gpus=num_gpus, decisions={"tp": 1, **known})
    return [
        (rule.name, found.message)
        for rule in MEGATRON.rules
        for found in rule.check(reading.settings, world)
    ]


def test_a_degree_that_is_not_known_breaks_no_rule() -> None:
    words = f"{START} --seq-length 64 --max-position-embeddings 64 --sequence-parallel"
    assert [name for name, _ in broken(words)] == ["sequence_parallel_needs_tp"]
    assert broken(f"{words} --tensor-model-parallel-size $TP") == []
    assert broken('--num-layers 2 --hidden-size 64 --num-attention-heads 4 "$@"') == []


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


def test_data_parallelism_is_not_known_beside_a_degree_that_is_not() -> None:
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {START} --pipeline-model-parallel-size $PP"
    reading = MEGATRON.read(SourceText(path="run.sh", text=text))
    assert "num_gpus" in reading.decisions
    assert "dp" not in reading.decisions


def test_the_length_of_an_encoder_is_the_length_of_sequences() -> None:
    words = f"{START} --encoder-seq-length 512 --max-position-embeddings"
    assert broken(f"{words} 512") == []
    ((name, message),) = broken(f"{words} 256")
    assert name == "positions_cover_sequence"
    assert "--encoder-seq-length 512" in message


def test_a_script_that_is_not_megatrons_may_have_defaults_for_what_it_requires() -> None:
    assert "required_options" in {name for name, _ in broken("--num-layers 2 --bf16")}
    text = "python my.py --num-layers 2 --bf16"
    reading = MEGATRON.read(SourceText(path="run.sh", text=text))
    world = CheckContext(num_gpus=8, decisions={})
    assert [one for rule in MEGATRON.rules for one in rule.check(reading.settings, world)] == []


def test_all_that_a_script_leaves_open_is_one_note() -> None:
    words = f"{START} --seq-length $LENGTH --tensor-model-parallel-size $1 $MORE"
    reading = MEGATRON.read(SourceText(path="run.sh", text=f"python pretrain_gpt.py {words}\n"))
    (found,) = reading.findings
    assert (found.rule, found.severity, found.key) == (
        "megatron.unresolved", "note", "--seq-length",
    )  # fmt: skip
    for name in ("--seq-length", "--tensor-model-parallel-size", "${MORE}"):
        assert name in found.message
