"""Our reading of ``config.json`` against the model that transformers builds from the same file.

Configs are made by transformers' own classes, written as the library writes them, read by the
planner, and compared to the sum over the parameters of the class on the meta device.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

from planner.catalog.hf.family import families
from planner.catalog.models import load_model
from planner.errors import InputError
from planner.layers.parameters import count_parameters

Given = Mapping[str, Any]
CONFIGS = yaml.safe_load(Path(__file__).with_name("hf_variants.yaml").read_text(encoding="utf-8"))
VARIANTS: Mapping[str, list[Given]] = CONFIGS["variants"]
WRAPPERS: Mapping[str, Given] = CONFIGS["wrappers"]
REFUSED_SHAPES: Mapping[str, list[Given]] = CONFIGS["refused"]
GROUPED: Given = CONFIGS["bases"]["grouped"]

CASES = [
    pytest.param(kind, given, id=f"{kind}-{index}")
    for kind, variants in VARIANTS.items()
    for index, given in enumerate(variants)
]
OF_NO_CONFIG_CLASS = {
    "compress_ratios": "as published files say layer_types",
    "hybrid_override_pattern": "as NVIDIA's files say layers_block_type",
    "head_dim": "read by getattr, or a property",
    "hidden_act": "Gemma 2 and 3 have hidden_activation",
    "id2label": "of every config; None",
    "layer_types": "not of every class",
    "max_window_layers": "Qwen3-MoE does not read it",
    "n_positions": "T5 has no limit; old files have it",
    "num_nextn_predict_layers": "not of DeepSeek-V2",
    "num_labels": "of every config; two",
    "partial_rotary_factor": "Phi-3 has it in rope_parameters; files before have it at the top",
    "remove_final_layer_norm": "spelled with an underscore",
    "seq_length": "BLOOM has no limit; old files have it",
    "sliding_window_pattern": "of old Gemma 3 files",
    "tie_word_embeddings": "T5 takes it aside",
}
"""Keys that are read and are no field of the config class, and why."""


def config_of(kind: str, given: Given) -> Any:
    return transformers.AutoConfig.for_model(kind, **given)


def count(kind: str, config: Any) -> int:
    """Parameters of the class that the planner says it counts; tied ones once, no buffers."""
    with torch.device("meta"):
        built = getattr(transformers, families()[kind].class_name)(config)
    return sum(parameter.numel() for parameter in built.parameters())


def writings(config: Any) -> dict[str, dict[str, Any]]:
    """A config in full, as the library saves it, and with the keys only that are not default."""
    whole = json.loads(config.to_json_string(use_diff=False))
    defaults = json.loads(type(config)().to_json_string(use_diff=False))
    changed = {key: value for key, value in whole.items() if value != defaults.get(key)}
    return {
        "full": whole,
        "saved": json.loads(config.to_json_string(use_diff=True)),
        "least": changed | {"model_type": config.model_type},
    }


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_count_equals_the_class_built_from_the_same_file(
    kind: str, given: Given, tmp_path: Path
) -> None:
    config = config_of(kind, given)
    expected = count(kind, config)
    path = tmp_path / "config.json"
    for style, keys in writings(config).items():
        path.write_text(json.dumps(keys), encoding="utf-8")
        assert count_parameters(load_model(tmp_path)) == expected, style


@pytest.mark.parametrize("kind", VARIANTS)
def test_defaults_are_those_of_the_config_class(kind: str) -> None:
    config_class = type(config_of(kind, {}))
    theirs = {field.name: field.default for field in fields(config_class)}
    spelled = {theirs: ours for ours, theirs in families()[kind].aliases.items()}
    for key, field in families()[kind].keys.items():
        name = key if key in theirs else spelled.get(key, key)
        if name not in theirs:
            assert key in OF_NO_CONFIG_CLASS, key
        elif field.is_required:
            assert theirs[name] is None, key
        elif key not in OF_NO_CONFIG_CLASS or theirs[name] not in (None, MISSING):
            assert field.default == theirs[name], key


@pytest.mark.parametrize("key", OF_NO_CONFIG_CLASS)
def test_every_exception_is_a_key_that_is_read(key: str) -> None:
    assert any(key in family.keys for family in families().values())


def test_multimodal_gemma3_is_its_text_part(tmp_path: Path) -> None:
    text = dict(VARIANTS["gemma3_text"][1])
    config = transformers.Gemma3Config(text_config=text)
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    expected = count("gemma3_text", config.text_config)
    assert count_parameters(load_model(tmp_path)) == expected


SEEING = ("visual", "vision_tower", "multi_modal_projector")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_language_model_of_a_wrapper_is_that_of_the_wrappers_class(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    text = {**WRAPPERS[kind], "tie_word_embeddings": tied}
    config = config_of(kind, {"text_config": text, "tie_word_embeddings": tied})
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config)
    expected = sum(
        parameter.numel()
        for name, parameter in built.named_parameters()
        if not any(part in name for part in SEEING)
    )
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    assert count_parameters(load_model(tmp_path)) == expected


def test_every_family_is_compared_in_several_configs() -> None:
    assert set(VARIANTS) | {"gemma3"} == set(families())
    assert all(len(variants) > 1 for variants in VARIANTS.values())


@pytest.mark.parametrize(
    ("kind", "given"),
    [(kind, given) for kind, variants in REFUSED_SHAPES.items() for given in variants],
)
def test_shapes_that_are_refused_are_other_shapes_to_transformers(
    kind: str, given: Given, tmp_path: Path
) -> None:
    config = config_of(kind, given)
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    with pytest.raises(InputError, match="model"):
        load_model(tmp_path)
    (changed,) = {
        key for key in given if key not in {*GROUPED, "num_experts_per_tok", "num_experts"}
    }
    plain = config_of(kind, {k: v for k, v in given.items() if k != changed})
    assert count(kind, config) != count(kind, plain)
