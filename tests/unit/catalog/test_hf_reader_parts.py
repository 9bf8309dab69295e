"""Which family a config is of where its type does not say so, and which part is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.hf.reader import read_config
from planner.catalog.models import ModelDetails
from planner.errors import InputError

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 120,
}
LLAMA = {"model_type": "llama", **SMALL}


def read(folder: Path, **keys: Any) -> ModelDetails:
    path = folder / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return read_config(path)


def test_the_text_part_of_a_wrapper_is_read_and_said(tmp_path: Path) -> None:
    model = read(tmp_path, model_type="llava", text_config=LLAMA, vision_config={"depth": 3})
    assert (model.file.family, model.file.hidden_size) == ("llama", 64)
    assert model.notes == ("text_config.* only: the text part of llava",)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [({}, {}, False), (True, {}, True), (True, False, False), (False, True, True)],
)
def test_a_head_tied_outside_the_text_part_is_tied(
    tmp_path: Path, outer: Any, inner: Any, tied: bool
) -> None:
    def given(value: Any) -> dict[str, Any]:
        return {} if value == {} else {"tie_word_embeddings": value}

    text = {**SMALL, "model_type": "qwen3_vl_text", **given(inner)}
    model = read(tmp_path, model_type="qwen3_vl", text_config=text, **given(outer))
    assert model.file.tied_embeddings == tied
    assert model.notes == (
        "text_config.* only: the text part of qwen3_vl",
        "qwen3_vl_text: read as qwen3",
    )


def test_a_language_model_without_a_part_of_its_own_is_read(tmp_path: Path) -> None:
    model = read(tmp_path, model_type="qwen2_5_vl", vision_config={}, **SMALL)
    assert model.file.family == "qwen2"
    assert model.notes == ("qwen2_5_vl: its language model only, read as qwen2",)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"model_type": "kimi_k2"}, "model_type kimi_k2: read as deepseek_v3"),
        ({}, "no model_type: read as deepseek_v3"),
    ],
)
def test_a_type_that_is_not_known_is_read_as_the_class_it_names(
    tmp_path: Path, given: dict[str, str], note: str
) -> None:
    model = read(tmp_path, architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=4, **given)
    assert model.file.family == "deepseek_v3"
    assert model.notes[0] == f"{note}, whose class its architectures name"


@pytest.mark.parametrize("names", [[], ["OwnForCausalLM"], [["LlamaForCausalLM"]], "Llama", {}])
def test_architectures_that_name_no_class_here_help_nothing(tmp_path: Path, names: Any) -> None:
    with pytest.raises(InputError, match="model_type: unknown; given 'own'"):
        read(tmp_path, model_type="own", architectures=names, text_config={"model_type": "other"})


def test_no_other_type_is_offered_for_a_class_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, model_type="llama4", architectures=["Llama4ForConditionalGeneration"])
    assert "did you mean" not in str(caught.value)


def test_roberta_has_two_rows_of_positions_more_than_tokens(tmp_path: Path) -> None:
    model = read(tmp_path, model_type="roberta", max_position_embeddings=514)
    assert model.file.architecture == "encoder"
    assert (model.file.max_seq_len, model.file.num_learned_positions) == (512, 514)


def test_labels_of_a_head_that_no_language_model_has_are_not_noted(tmp_path: Path) -> None:
    labels = {"0": "no", "1": "yes"}
    assert read(tmp_path, **LLAMA, id2label=labels, num_labels=2).notes == ()


def test_notes_hold_no_control_characters(tmp_path: Path) -> None:
    model = read(tmp_path, model_type="own\x1b[31m", architectures=["LlamaForCausalLM"])
    assert model.notes[0].startswith("model_type own\\x1b[31m: read as llama")
