"""families.yaml: a type is one block of data, and what is wrong in a block is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.catalog.hf.expressions import FUNCTIONS, value_of
from planner.catalog.hf.family import FAMILIES_FILE, families, read_families
from planner.errors import InputError
from tools.families import wrong_expressions, wrong_names

TABLES = yaml.safe_load(Path(__file__).with_name("expressions.yaml").read_text("utf-8"))
NAMES = {"width": 6, "heads": 4, "list": (1, 2), "none": None, "word": "gated-silu"}
OWN = {
    "like": "llama",
    "class": "OwnForCausalLM",
    "keys": {"hidden_size": 64, "own_size": 32},
    "model": {"ffn_size": "=2 * own_size"},
}


def file_with(folder: Path, **blocks: Any) -> Path:
    data = yaml.safe_load(FAMILIES_FILE.read_text(encoding="utf-8"))
    data["types"] = {"llama": data["types"]["llama"], **blocks}
    path = folder / "families.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def faults(path: Path) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        read_families(path)
    assert {problem.where for problem in caught.value.problems} == {str(path)}
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_type_is_one_block(tmp_path: Path) -> None:
    family = read_families(file_with(tmp_path, own=OWN))["own"]
    names = family.names({key: each.default for key, each in family.keys.items()})
    raw = family.raw(names)
    assert (raw["hidden_size"], raw["ffn_size"], raw["gated_mlp"]) == (64, 64, True)
    assert raw["biases"] == {"qkv": False, "attention_output": False, "mlp": False}
    assert not list(family.findings(names))


def test_the_block_of_the_docs_is_a_type(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "extending.md").read_text(
        encoding="utf-8"
    )
    block = yaml.safe_load(text.split("```yaml\nyi_next:")[1].split("```")[0])
    family = read_families(file_with(tmp_path, yi_next=block))["yi_next"]
    keys = {key: each.default for key, each in family.keys.items()} | {"sink_size": 8}
    raw = family.raw(family.names(keys))
    assert (raw["sliding_window"], raw["full_attention_step"]) == (512, 4)
    assert raw["extra_params_per_layer"] == [
        {"name": "sinks", "count": 256, "reason": "8 per head"}
    ]
    (problem,) = family.findings(family.names(keys | {"sink_size": 200}))
    assert problem.message.endswith("allowed 1 to 128")


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ({"keys": {"own_size": {"kind": "number"}}}, "keys.own_size.kind: must be one of activati"),
        ({"modle": {}}, "modle: unknown key; given {}, did you mean model"),
    ],
)
def test_what_is_no_family_is_told(tmp_path: Path, block: Any, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        read_families(file_with(tmp_path, own={**OWN, **block}))
    assert f"own::{fault}" in str(caught.value)


@pytest.mark.parametrize(("block", "key", "fault"), TABLES["wrong"])
def test_wrong_names_are_told(tmp_path: Path, block: Any, key: str, fault: str) -> None:
    family = read_families(file_with(tmp_path, own={**OWN, **block}))["own"]
    assert any(at == key and fault in message for at, message in wrong_names(family))


def test_no_name_of_the_file_is_unknown() -> None:
    assert not [wrong for family in families().values() for wrong in wrong_names(family)]


def test_parts_of_the_file_are_mappings(tmp_path: Path) -> None:
    path = tmp_path / "families.yaml"
    path.write_text("bases: {a: 1}\nkinds: {count: size}\ntypes: []\nother: {}\n", encoding="utf-8")
    assert set(faults(path)) == {"bases.a", "kinds.count", "other", "types"}


def test_the_tables_of_the_file_hold_nothing_unused() -> None:
    data = yaml.safe_load(FAMILIES_FILE.read_text(encoding="utf-8"))
    used = {key for family in families().values() for key in family.keys}
    parents = {block.get("like") for part in ("bases", "types") for block in data[part].values()}
    text = FAMILIES_FILE.read_text(encoding="utf-8")
    assert {key for named in data["kinds"].values() for key in named} <= used
    assert set(data["bases"]) <= parents
    # divisors are for the rules of a model file
    assert all(f"{name}(" in text for name in FUNCTIONS if name != "divisors")


@pytest.mark.parametrize("kind", families())
def test_every_default_is_of_its_kind(kind: str) -> None:
    family = families()[kind]
    given = {name: key.default for name, key in family.keys.items() if not key.is_required}
    required = {name: 2 for name, key in family.keys.items() if key.is_required}
    family.config_class.model_validate(given | required)


@pytest.mark.parametrize(("data", "value"), TABLES["values"])
def test_values_are_computed(data: object, value: object) -> None:
    assert value_of(data, NAMES) == value


@pytest.mark.parametrize(("text", "fault"), TABLES["refused"])
def test_other_expressions_are_refused(text: str, fault: str) -> None:
    found = [message for _, message in wrong_expressions(text, NAMES, "key")]
    assert any(fault in message for message in found)
