"""A Hugging Face config where a model is named on the command line."""

import json
from pathlib import Path

import pytest
from in_process import planner

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


def test_saved_plan_finds_its_config_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = folder.parent / "plan.yaml"
    question = ("my-gemma", CLUSTER, "--top", "1", "--global-batch", "8")
    assert planner("plan", *question, "--save", str(plan)).code == 0
    monkeypatch.chdir("/")
    assert planner("explain", str(plan)).code == 0
