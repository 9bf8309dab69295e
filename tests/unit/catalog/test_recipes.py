"""Tuned recipes as data: every row is read, every problem named by row and field."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from planner.catalog import hwdb_dir, list_models
from planner.catalog.hardware import list_names
from planner.catalog.recipes import COLUMNS, find_recipe, load_recipes, read_recipes, sources
from planner.catalog.words import find_recipes
from planner.errors import InputError
from planner.frameworks.registry import load_traits, optimizer_names, profile_names
from planner.spec.training import Training

TEXT = (
    "a,llama3-8b,pretrain,h100,8,bf16,8192,128,1,1,1,1,2,1,,no,optimizer,none,,,,,,,,,yes,adam,,,,"
)
ROW = dict(zip(COLUMNS, TEXT.split(","), strict=True))


def written(tmp_path: Path, *rows: dict[str, str]) -> Path:
    path = tmp_path / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_row_is_read(tmp_path: Path) -> None:
    (recipe,) = read_recipes(written(tmp_path, ROW), sources()["nvidia"])
    assert (recipe.tp, recipe.cp, recipe.gpus, recipe.etp) == (1, 2, 8, None)
    assert recipe.tp_overlap is True
    assert recipe.expert_overlap is None
    assert recipe.node == "dgx-h100"
    assert recipe.layout == "cp 2"


@pytest.mark.parametrize("layout", ["Ex|tL", "Ett|...tL", "E t"])
def test_a_layout_is_of_megatrons_letters(tmp_path: Path, layout: str) -> None:
    with pytest.raises(ValidationError, match="pipeline_layout"):
        read_recipes(written(tmp_path, ROW | {"pipeline_layout": layout}), sources()["nvidia"])


def test_files_have_all_columns_and_every_recipe_a_name_of_its_own() -> None:
    names = [recipe.recipe for recipe in load_recipes()]
    assert len(names) == len(set(names))
    assert set(sources()) == {path.stem for path in (hwdb_dir() / "recipes").glob("*.csv")}
    for name, source in sources().items():
        lines = (hwdb_dir() / "recipes" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert {len(row) for row in csv.reader(lines)} == {len(COLUMNS)}
        assert tuple(lines[0].split(",")) == COLUMNS
        own = [recipe for recipe in load_recipes() if recipe.source == source]
        assert {recipe.accelerator for recipe in own} <= set(source.nodes)


def test_every_recipe_names_what_the_catalog_has() -> None:
    assert {recipe.model for recipe in load_recipes()} <= set(list_models())
    for source in sources().values():
        assert set(source.nodes.values()) <= set(list_names("nodes"))
        assert source.profile in profile_names(source.framework)
        modules = load_traits(source.framework, source.profile).recompute.modules
        known = {module.name for module in modules}
        own = [recipe for recipe in load_recipes() if recipe.source == source]
        assert own
        assert {name for recipe in own for name in recipe.recompute_modules} <= known
        assert {recipe.optimizer for recipe in own} <= set(optimizer_names(source.framework))


def test_adapters_have_a_rank_and_targets(tmp_path: Path) -> None:
    row = ROW | {"task": "peft", "lora_rank": "16", "lora_targets": "q k v"}
    (recipe,) = read_recipes(written(tmp_path, row), sources()["nvidia"])
    assert recipe.training == Training(mode="lora", rank=16, targets=("q", "k", "v"))
    for recipe in load_recipes():
        assert (recipe.task == "peft") == bool(recipe.lora_rank) == bool(recipe.lora_targets)
    with pytest.raises(ValidationError, match="unknown target 'w9'; allowed are all-linear"):
        read_recipes(written(tmp_path, row | {"lora_targets": "w9"}), sources()["nvidia"])


def test_full_recomputation_by_layers_or_blocks_says_which() -> None:
    for recipe in load_recipes():
        if recipe.recompute_method in ("block", "layers"):
            assert recipe.recompute_layers, recipe.recipe


def test_words_must_all_apply() -> None:
    found = find_recipes(("LLAMA3", "h100", "bf16"))
    assert {recipe.accelerator for recipe in found} == {"h100"}
    assert {recipe.precision for recipe in found} == {"bf16"}
    assert {recipe.model for recipe in found} == {"llama3-8b", "llama3-70b", "llama3.1-405b"}
    assert not find_recipes(("h100", "amd"))
    assert len(find_recipes(())) == len(load_recipes())


def test_a_recipe_is_found_whatever_its_case() -> None:
    recipe = load_recipes()[-1]
    assert find_recipe(recipe.recipe.upper()) == recipe
    with pytest.raises(InputError, match="unknown recipe 'llama3_8b_pretrain_8gpu_h100'"):
        find_recipe("llama3_8b_pretrain_8gpu_h100")


def test_the_layout_names_what_is_above_one() -> None:
    recipe = load_recipes()[0]
    bare = replace(recipe, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=None, sharding="optimizer")
    assert bare.layout == "tp 1"
    mixed = replace(bare, tp=2, ep=8, etp=1, sharding="megatron-fsdp")
    assert mixed.layout == "tp 2, ep 8, etp 1, megatron-fsdp"
