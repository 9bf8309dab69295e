"""Model files: defaults, catalog names, and every problem of a bad file at once."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import assert_places

from planner.catalog import list_models, models_dir
from planner.catalog.models import (
    cached_config,
    catalog_name,
    load_model,
    load_model_details,
    meant_name,
    model_file,
)
from planner.documents.tree import load_yaml
from planner.errors import InputError

NAMES = yaml.safe_load((Path(__file__).parents[2] / "examples" / "names.yaml").read_text())
MINIMAL = {
    "num_layers": 4,
    "hidden_size": 512,
    "num_heads": 8,
    "vocab_size": 1000,
    "max_seq_len": 256,
}
CASES = yaml.safe_load(Path(__file__).with_name("model_files.yaml").read_text("utf-8"))


def write(folder: Path, **keys: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | keys), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("keys", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_what_a_file_leaves_out_has_its_default(
    tmp_path: Path, keys: dict[str, Any], places: dict[str, Any]
) -> None:
    path = write(tmp_path, **keys)
    assert_places(load_model(path), places)
    assert load_model(str(path)) == load_model(path)


def test_problems_are_addressed_by_file_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, num_kv_heads=3)
    with pytest.raises(InputError) as caught:
        load_model(path)
    wanted = f"{path}::num_kv_heads: does not divide num_heads = 8; given 3, allowed 1, 2, 4, 8"
    assert str(caught.value) == wanted
    # A name with a path inside is not looked up in the catalog.
    for missing in (tmp_path / "absent.yaml", "../models/gpt2-small"):
        with pytest.raises(InputError):
            load_model(missing)


@pytest.mark.parametrize("name", list_models())
def test_catalog_file_says_where_its_figures_are_from(name: str) -> None:
    details = load_model_details(name)
    assert details.spec.name == name
    assert details.path == model_file(name)
    assert details.file.provenance.sources


def test_loading_a_model_takes_less_than_ten_milliseconds() -> None:
    load_model("deepseek-v3")
    elapsed_s = []
    for _ in range(5):
        start = time.perf_counter()
        load_model("deepseek-v3")
        elapsed_s.append(time.perf_counter() - start)
    assert min(elapsed_s) < 0.010


def test_a_name_of_a_hub_is_not_fetched_and_the_nearest_of_the_catalog_is_offered() -> None:
    with pytest.raises(InputError, match=r"`hf download \S+ config\.json`.*llama3\.1-8b"):
        load_model("meta-llama/Llama-3.1-8Q")
    with pytest.raises(InputError, match="`planner show models` lists"):
        load_model("someone/qqqqqqqq")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own/Zork-490B-A30B", "the nearest in size is qwen3-coder-480b-a35b"),
        ("own/Zork-56B", "the nearest in size is nemotron-h-56b"),
        ("own/Bloom-14b", "the nearest in size is phi-3-medium"),
        ("Zyphra/Zamba2-7B", "layers share are not modelled; the nearest in size is phi-3-small"),
        ("qwen3-9b", "did you mean qwen3.5-9b"),
        (f"own/{'9' * 310}b", "`planner show models` lists them"),
        ("qwen3-33b", "did you mean qwen3-32b"),
    ],
)
def test_no_model_of_another_size_is_offered_as_what_was_meant(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_model(name)
    assert "70b" not in str(caught.value)


@pytest.mark.parametrize(("name", "model"), NAMES["models"].items())
def test_a_name_that_can_mean_one_model_is_read_as_it_and_said(name: str, model: str) -> None:
    details = load_model_details(name)
    assert details.spec == load_model(model)
    assert details.notes == (f"{name} is read as {model}",)


@pytest.mark.parametrize(
    "name", ["llama", "llama3.1", "qwen-7b", "someone/llama-4-x", "./my-model", "8b", ""]
)
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


def test_a_model_in_the_cache_of_the_hub_is_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="nor in the hub's cache"):
        load_model("someone/tiny")
    folder = tmp_path / "models--someone--tiny" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    sizes = {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 512}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    assert cached_config("someone/tiny") == folder / "config.json"
    assert load_model("someone/tiny").num_layers == 3
