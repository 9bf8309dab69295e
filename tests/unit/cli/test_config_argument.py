"""A Hugging Face config where a model is named on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

GEMMA = {
    "model_type": "gemma3",
    "text_config": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
}
CLUSTER = "1xh100-sxm"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "my-gemma"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(GEMMA), encoding="utf-8")
    return made


def test_models_shows_a_folder_by_its_name_and_where_it_is_from(planner: Any, folder: Path) -> None:
    run = planner("show", "models", "my-gemma")
    assert run.code == 0
    assert run.out.startswith("my-gemma: ")
    assert "as transformers' Gemma3ForCausalLM" in run.out
    assert "source: my-gemma/config.json" in run.out


def test_plan_says_how_the_config_was_understood(planner: Any, folder: Path) -> None:
    run = planner(
        "plan", "my-gemma/config.json", CLUSTER, "--top", "1", "--global-batch", "8", "-v"
    )
    assert run.code == 0
    assert "my-gemma: text_config.* only: the text part of gemma3" in " ".join(run.out.split())


def test_saved_plan_finds_its_config_from_anywhere(
    planner: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = folder.parent / "plan.yaml"
    question = ("my-gemma", CLUSTER, "--top", "1", "--global-batch", "8")
    assert planner("plan", *question, "--save", str(plan)).code == 0
    monkeypatch.chdir("/")
    assert planner("explain", str(plan)).code == 0


def test_bad_config_ends_with_two_and_every_problem(planner: Any, folder: Path) -> None:
    bad = {"model_type": "llama", "vocab_size": "x", "num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(bad), encoding="utf-8")
    run = planner("plan", "my-gemma", CLUSTER)
    assert run.code == 2
    assert "my-gemma/config.json::vocab_size: must be a valid integer; given 'x'" in run.err
    assert "my-gemma/config.json::num_hidden_layers: must be greater than 0; given 0" in run.err
