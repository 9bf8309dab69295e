"""Tuned recipes as data: every row is read, every problem named by row and field."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.hardware import list_names
from planner.catalog.paths import hwdb_dir, list_models
from planner.catalog.recipes import (
    COLUMNS,
    find_recipe,
    load_recipes,
    read_recipes,
    sources,
)
from planner.catalog.words import find_recipes
from planner.errors import InputError
from planner.frameworks.optimizers import optimizer_names
from planner.frameworks.registry import load_traits, profile_names
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


def problems(tmp_path: Path, *rows: dict[str, str]) -> list[str]:
    path = written(tmp_path, *rows)
    with pytest.raises(InputError) as raised:
        read_recipes(path, sources()["nvidia"])
    assert all(problem.where == str(path) for problem in raised.value.problems)
    return [f"{problem.key}: {problem.message}" for problem in raised.value.problems]


def test_a_row_is_read(tmp_path: Path) -> None:
    (recipe,) = read_recipes(written(tmp_path, ROW), sources()["nvidia"])
    assert (recipe.tp, recipe.cp, recipe.gpus, recipe.etp) == (1, 2, 8, None)
    assert recipe.tp_overlap is True
    assert recipe.expert_overlap is None
    assert recipe.node == "dgx-h100"
    assert recipe.layout == "cp 2"


def test_every_problem_is_named_by_row_and_field(tmp_path: Path) -> None:
    wrong = ROW | {"recipe": "b", "tp": "0", "precision": "fp7", "accelerator": "h9"}
    found = problems(tmp_path, ROW, wrong, ROW)
    assert found[0] == (
        "3.precision: unknown choice; given 'fp7', allowed 'bf16', 'fp16', 'fp8', 'fp8_block', "
        "'mxfp8', 'fp4', 'fp32' or 'tf32'"
    )
    assert found[1] == "3.tp: must be greater than or equal to 1; given '0'"
    assert found[2].startswith("3.accelerator: must be one of h100, b200")
    assert found[3] == "4.recipe: 'a' is already in row 2"


@pytest.mark.parametrize("layout", ["Ex|tL", "Ett|...tL", "E t"])
def test_a_layout_is_of_megatrons_letters(tmp_path: Path, layout: str) -> None:
    assert problems(tmp_path, ROW | {"pipeline_layout": layout})[0].startswith("2.pipeline_layout")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("recipe,model\na,b\n")
    with pytest.raises(InputError, match="1: columns must be recipe, model, task"):
        read_recipes(path, sources()["nvidia"])


def test_a_row_of_other_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(",".join(COLUMNS) + "\na,b\n")
    with pytest.raises(InputError, match=f"2.recipe: needs {len(COLUMNS)} fields"):
        read_recipes(path, sources()["nvidia"])


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
    (problem,) = problems(tmp_path, row | {"lora_targets": "c_attn"})
    assert problem.startswith("2.lora_targets: unknown target 'c_attn'; allowed are all-linear")


def test_every_file_has_a_source() -> None:
    files = {path.stem for path in (hwdb_dir() / "recipes").glob("*.csv")}
    assert files == set(sources())


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


def test_a_word_that_applies_to_nothing_has_a_hint() -> None:
    with pytest.raises(
        InputError, match=r"WORDS: 'nvidai' is the name of nothing .* did you mean nvi"
    ):
        find_recipes(("h100", "nvidai"))


def test_a_recipe_is_found_whatever_its_case() -> None:
    recipe = load_recipes()[-1]
    assert find_recipe(recipe.recipe.upper()) == recipe
    with pytest.raises(InputError, match="unknown recipe 'llama3_8b_pretrain_8gpu_h100'"):
        find_recipe("llama3_8b_pretrain_8gpu_h100")


def test_the_layout_names_what_is_above_one() -> None:
    recipe = load_recipes()[0]
    bare = replace(recipe, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=None, sharding="optimizer")
    assert bare.layout == "tp 1"
    assert replace(bare, tp=2, ep=8, etp=1, sharding="megatron-fsdp").layout == (
        "tp 2, ep 8, etp 1, megatron-fsdp"
    )
