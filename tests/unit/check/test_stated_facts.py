"""What files of Megatron-LM and Bridge state is read fact by fact, whatever else is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.check.check import check_file
from planner.check.fix import FixedFile, fix_file
from planner.check.result import FileResult
from planner.formats.format import read_source
from planner.query.from_file import Request

MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 "
    "--max-position-embeddings 8192 --seq-length 8192 --micro-batch-size 1 --bf16 "
)
BRIDGE = (
    "run_recipe.py --recipe llama3_8b_pretrain_config train.micro_batch_size=1 "
    "train.global_batch_size=48 model.seq_length=8192 model.context_parallel_size=1 "
    "model.expert_model_parallel_size=1 model.virtual_pipeline_model_parallel_size=null "
)
TABLES = yaml.safe_load(Path(__file__).with_name("stated_facts.yaml").read_text("utf-8"))


def rows(table: str) -> list[list[Any]]:
    """Rows of a table, names in their words replaced."""
    names = TABLES["names"]
    return [
        [each.format(**names) if isinstance(each, str) else each for each in row]
        for row in TABLES[table]
    ]


def checked(folder: Path, words: str) -> FileResult:
    has_batch = " --global" in words or "--step-batch" in words
    batch = "" if has_batch else "--global-batch-size 48 "
    own = f"pretrain_gpt.py {MODEL}{batch}" if words.startswith("--") else BRIDGE
    path = folder / "run.sh"
    script = f"torchrun --nnodes 3 --nproc-per-node 8 {own}{words}"
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{script}\n")
    request = Request(model="llama3-8b", cluster="3xdgx-h100", with_advice=False)
    return check_file(str(path), request)


def repaired(result: FileResult, model: str | None = "llama3-8b") -> FixedFile:
    return fix_file(read_source(result.path), Request(model=model, cluster="3xdgx-h100"))


def peak_gib(result: FileResult) -> float:
    assert result.figures is not None, result.findings
    return result.figures.peak_bytes / 2**30


@pytest.mark.parametrize(("words", "saved"), rows("saved"))
def test_every_type_of_the_states_counts_alone(words: str, saved: float, tmp_path: Path) -> None:
    # Of 8.03e9 parameters over tp 4, and what the allocator reserves beyond; states are over dp 6.
    plain = TABLES["names"]["SHARDED"]
    before, after = (checked(tmp_path, each) for each in (plain, f"{plain} {words}"))
    expected = saved * 8.03e9 / 4 * 1.05 / 2**30
    assert peak_gib(before) - peak_gib(after) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("words", "plain", "low", "high"), rows("shares"))
def test_facts_beside_others_count(
    words: str, plain: str, low: float, high: float, tmp_path: Path
) -> None:
    shares = peak_gib(checked(tmp_path, words)) / peak_gib(checked(tmp_path, plain))
    assert low <= shares <= high, shares


@pytest.mark.parametrize(("more", "less", "gigabytes"), rows("priced"))
def test_overrides_and_the_recipe_beside_them_are_priced_as_by_hand(
    more: str, less: str, gigabytes: float, tmp_path: Path
) -> None:
    large, small = (peak_gib(checked(tmp_path, each)) for each in (more, less))
    assert large - small == pytest.approx(gigabytes * 1.05e9 / 2**30, rel=0.01, abs=0.001)


@pytest.mark.parametrize(("words", "rules"), rows("told"))
def test_each_breach_is_told_once(words: str, rules: list[str], tmp_path: Path) -> None:
    found = checked(tmp_path, words).findings
    assert [one.kind for one in found if not one.rule.startswith(("memory", "network"))] == rules


@pytest.mark.parametrize("words", [words for (words,) in rows("chunks")])
def test_chunks_that_do_not_come_out_get_another_number(words: str, tmp_path: Path) -> None:
    made = repaired(checked(tmp_path, words), None if "48" in words else "llama3-8b")
    assert [change.field for change in made.answer.repaired[0].changes] == ["vpp"]
    assert "layout" not in "".join(made.diff)


@pytest.mark.parametrize(("words", "kept"), rows("kept"))
def test_a_repair_of_stages_keeps_the_recomputation(words: str, kept: str, tmp_path: Path) -> None:
    assert kept in repaired(checked(tmp_path, words)).fixed.text
