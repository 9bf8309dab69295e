"""Hugging Face configs: published ones equal the catalog, bad ones say what is wrong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import assert_places

from planner.catalog import list_models
from planner.catalog.hf.family import families
from planner.catalog.hf.reader import read_config
from planner.catalog.models import is_model_file, load_model, load_model_details
from planner.errors import InputError
from planner.spec.model import ModelSpec

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "positive" / "models"
PUBLISHED = sorted(EXAMPLES.glob("*.json"))
LLAMA = {"model_type": "llama"}
CASES = yaml.safe_load(Path(__file__).with_name("configs.yaml").read_text("utf-8"))


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return path


def problems_of(path: Path) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert {problem.where for problem in caught.value.problems} == {str(path)}
    return {problem.key: problem.message for problem in caught.value.problems}


def comparable(model: ModelSpec) -> ModelSpec:
    """Without names, the words for activations, and what the catalog counts or leaves unsaid."""
    moe = replace(model.moe, router_bias=False) if model.moe else None
    model = replace(model, rotary_base=0.0, rotary_share=1.0, rotary_factor=1.0, norm_eps=0.0)
    return replace(model, name="", family="", activation="", moe=moe, embedding_norm=False)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_config_is_the_model_of_the_catalog(path: Path) -> None:
    assert comparable(load_model(path)) == comparable(load_model(path.stem))


def test_published_configs_cover_the_families() -> None:
    kinds = {json.loads(path.read_text())["model_type"] for path in PUBLISHED}
    others = (
        "arcee deepseek_v32 deepseek_v4 ernie4_5_moe glm glm4 glm_moe_dsa gpt_bigcode granite "
        "minimax_m2 minimax_m3_vl_text ministral3 mistral4 olmo3 qwen2_moe "
        "roberta seed_oss smollm3 starcoder2 xlm-roberta"
    )
    assert set(families()) - kinds == set(others.split())


def test_folder_and_file_give_one_model_named_after_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = written(folder, **LLAMA)
    assert load_model(folder) == load_model(path) == load_model(str(folder))
    assert load_model(folder).name == "my-llama"
    other = path.rename(folder / "other.json")
    assert load_model(other).name == "other"


def test_name_of_the_catalog_comes_before_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "gpt2-small"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, **LLAMA)
    assert "gpt2-small" in list_models()
    assert not is_model_file("gpt2-small")
    assert load_model("gpt2-small").family == "gpt2"
    assert load_model("mine").family == load_model("./gpt2-small").family == "llama"


@pytest.mark.parametrize(
    "kind", sorted(set(families()) - {"deepseek_v2", "deepseek_v4", "nemotron_h"})
)
def test_model_type_alone_takes_every_default(tmp_path: Path, kind: str) -> None:
    assert load_model(written(tmp_path, model_type=kind)).family == kind


def test_unknown_type_says_what_is_known_and_what_to_do(tmp_path: Path) -> None:
    message = problems_of(written(tmp_path, model_type="qwen2_mo"))["model_type"]
    assert "given 'qwen2_mo'; did you mean qwen2_moe" in message
    assert all(kind in message for kind in families())
    assert "YAML with at least num_layers, hidden_size" in message


@pytest.mark.parametrize("value", [True, "32", 32.0, -1, 0, 10**30, [], {}, None, float("nan")])
def test_impossible_sizes_are_named(tmp_path: Path, value: Any) -> None:
    problems = problems_of(written(tmp_path, **LLAMA, hidden_size=value))
    assert list(problems) == ["hidden_size"]
    assert "given" in problems["hidden_size"]


def test_keys_that_change_no_layer_are_ignored(tmp_path: Path) -> None:
    plain = load_model(written(tmp_path, **LLAMA))
    path = written(tmp_path, **LLAMA, bos_token_id=1, dropout=float("inf"), dtype="bfloat16", x={})
    assert load_model(path) == plain


@pytest.mark.parametrize(
    ("keys", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_a_config_is_read(tmp_path: Path, keys: dict[str, Any], places: dict[str, Any]) -> None:
    assert_places(load_model_details(written(tmp_path, **keys)), places)


@pytest.mark.parametrize("names", [[], ["OwnForCausalLM"], [["LlamaForCausalLM"]], "Llama", {}])
def test_architectures_that_name_no_class_here_help_nothing(tmp_path: Path, names: Any) -> None:
    text = {"text_config": {"model_type": "other"}}
    with pytest.raises(InputError, match="model_type: unknown; given 'own'"):
        read_config(written(tmp_path, model_type="own", architectures=names, **text))


def test_no_other_type_is_offered_for_a_class_of_its_own(tmp_path: Path) -> None:
    name = "Llama4ForConditionalGeneration"
    with pytest.raises(InputError) as caught:
        read_config(written(tmp_path, model_type="llama4", architectures=[name]))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.2-1b", "qwen3-8b", "mixtral-8x7b"])
def test_positions_are_those_of_the_published_config(name: str) -> None:
    published, own = load_model(EXAMPLES / f"{name}.json"), load_model(name)
    assert (published.rotary_base, published.rotary_factor) == (own.rotary_base, own.rotary_factor)
    assert own.rotary_base
    assert own.norm_eps
