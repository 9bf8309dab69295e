"""Words of other programs, units and defaults: what is meant is said, what is not is named."""

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from planner.cli.app import COMMANDS, app
from planner.cli.options import known_clusters, known_frameworks, known_models, own_defaults
from planner.errors import InputError
from planner.formats.registry import format_names
from planner.frameworks.registry import FRAMEWORKS, optimizer_names
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.query.words import (
    OTHER_FORMATS,
    OTHER_WORDS,
    SEVERAL,
    UNKNOWN_OPTIONS,
    elsewhere,
    length,
    meant_word,
)


def said(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8192), ("128K", 131072), ("1M", 2**20)]
)
def test_a_length_has_binary_units(text: str, tokens: int) -> None:
    assert length(text) == tokens


@pytest.mark.parametrize("text", ["8q", "", "8 kk", "1.5k", "9" * 400])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="8192 or 8k"):
        length(text)


def test_a_word_that_means_one_value_is_read_as_it() -> None:
    known = ("bf16", "fp8_block")
    assert meant_word("--precision", "BFloat16", known) == "bf16"
    assert meant_word("--precision", "FP8-block", known) == "fp8_block"
    assert meant_word("--precision", "int3", known) == "int3"
    assert meant_word("--precision", "bf16", known) == "bf16"


def test_what_was_spelled_otherwise_is_noted() -> None:
    query = Query.of("gpt3-xl", "1xdgx-h100", precision="BFloat16", optimizer="AdamW")
    notes = [note.text for note in resolve(query).notes if "is read as" in note.text]
    assert notes == ["--optimizer AdamW is read as adam", "--precision BFloat16 is read as bf16"]


def test_other_words_mean_what_there_is() -> None:
    assert set(OTHER_WORDS["--optimizer"].values()) <= set(optimizer_names())
    assert not set(SEVERAL) & set(FRAMEWORKS)
    assert set(OTHER_FORMATS.values()) <= set(format_names())
    assert not set(OTHER_FORMATS) & set(format_names())


def test_no_command_has_an_option_that_is_another_programs() -> None:
    own = {
        option
        for command in COMMANDS
        for parameter in get_command(app).get_command(None, command).params  # type: ignore[attr-defined]
        for option in parameter.opts
    }
    assert "--tp" in own
    assert not own & set(UNKNOWN_OPTIONS)
    assert all(map(elsewhere, ("--lora", "--mbs", "--gpus", "--plot")))
    assert not elsewhere("--tp")


def test_a_question_in_other_words_is_the_same_question() -> None:
    usual = ["--tp", "2", "--seq-len", "4096", "--top", "1", "--format", "csv"]
    words = ["--fix", "tp=2", "--seq-len", "4k", "--top", "1", "--format", "csv"]
    words += ["--optimizer", "AdamW", "--precision", "BF16", "--framework", "Megatron-LM"]
    asked = said("plan", "llama3.1-8b", "8xh100", *usual)
    assert said("plan", "meta-llama/Llama-3.1-8B", "h100x8", *words) == asked


def test_defaults_are_of_the_environment_then_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_defaults() == {}
    text = 'cluster = "1xdgx-h100"\nframework = "deepspeed"\nseq_len = 2048\n'
    (tmp_path / "planner.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PLANNER_FRAMEWORK", "torchtitan")
    monkeypatch.setenv("PLANNER_MODEL", "tinyllama-1.1b")
    assert own_defaults() == {
        "model": "tinyllama-1.1b",
        "cluster": "1xdgx-h100",
        "framework": "torchtitan",
        "seq_len": 2048,
    }
    shown = said("plan", "--top", "1", "--global-batch", "8")
    assert "on 1xdgx-h100" in shown
    assert "batch 8 x 2048 tokens, bf16, torchtitan" in shown
    assert "deepspeed" in said("plan", "--framework", "deepspeed", "--top", "1")
    (tmp_path / "planner.toml").write_text("clustr = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="did you mean cluster"):
        own_defaults()


def test_the_shell_is_offered_names_and_counts() -> None:
    assert known_models("llama3.1") == ["llama3.1-405b", "llama3.1-70b", "llama3.1-8b"]
    assert known_clusters("16") == ["16x"]
    assert "16xdgx-h100" in known_clusters("16xdgx")
    assert known_clusters("fron") == ["frontera-rtx", "frontier"]
    assert known_frameworks("acc") == ["accelerate"]
