"""Models by the names that people use: what is meant, and what is not guessed."""

import json
from pathlib import Path

import pytest

from planner.catalog.model_names import cached_config, catalog_name, list_models
from planner.catalog.models import load_model, load_model_details, meant_name
from planner.catalog.paths import models_dir
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama3.1-405b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("google/t5-v1_1-xxl", "t5-v1.1-xxl"),
        ("openai-community/gpt2", "gpt2-small"),
        ("llama-3.1-8b", "llama3.1-8b"),
        ("Llama 3.1 8B", "llama3.1-8b"),
        ("LLAMA3.1-8B", "llama3.1-8b"),
    ],
)
def test_a_name_that_can_mean_one_model_is_read_as_it_and_said(name: str, model: str) -> None:
    details = load_model_details(name)
    assert details.spec == load_model(model)
    assert details.notes == (f"{name} is read as {model}",)


@pytest.mark.parametrize("name", ["llama", "llama3.1", "qwen-7b", "someone/llama-4-x", "8b", ""])
def test_what_could_be_several_or_none_is_not_guessed(name: str) -> None:
    assert catalog_name(name) is None


def test_every_name_of_the_catalog_is_itself() -> None:
    assert [catalog_name(name) for name in list_models()] == list_models()
    assert all(not load_model_details(name).notes for name in ("gpt2-xl", "t5-11b"))


def test_every_other_name_is_of_a_model_that_is_there() -> None:
    named = load_yaml(models_dir() / "names" / "hugging_face.yaml")
    assert set(named.values()) <= set(list_models())
    assert not set(named) & set(list_models())


def test_what_is_on_the_disk_comes_before_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert meant_name("meta-llama/Llama-3.1-8B") == "llama3.1-8b"
    (tmp_path / "meta-llama" / "Llama-3.1-8B").mkdir(parents=True)
    assert meant_name("meta-llama/Llama-3.1-8B") is None


GPT2 = {
    "model_type": "gpt2",
    "n_layer": 3,
    "n_embd": 64,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 512,
}


def test_a_model_in_the_cache_of_the_hub_is_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="no model is fetched"):
        load_model("someone/tiny")
    folder = tmp_path / "models--someone--tiny" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
    assert cached_config("someone/tiny") == folder / "config.json"
    assert load_model("someone/tiny").num_layers == 3
