"""One line says what a vendor ships and where it stands; the list starts with a verdict."""

from dataclasses import replace
from typing import Any

import pytest
from contexts import priced

from planner.answers.recipe import Placed, place, recipe_strategy
from planner.answers.show import Recipes, recipes
from planner.catalog.recipes import find_recipe
from planner.report.plan import placed_line
from planner.report.show import recipes_line
from tools.plausibility import recipe_context

LATENT = "lora of latent attention is not modelled"
RECIPE = find_recipe("llama3_8b_pretrain_8gpu_h100_bf16")
SHIPS = "NVIDIA ships cp 2, micro-batch 1 for 8 H100"


@pytest.fixture(scope="module")
def placed() -> Placed:
    context = recipe_context(RECIPE)
    strategy = recipe_strategy(RECIPE, context.model, 8, 128)
    better = replace(strategy, dp=8, cp=1, num_micro_batches=16)
    return place(context, RECIPE, [priced(context, better), priced(context, strategy)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slower_fraction": 0.0214}, "row 2, +2.1 %."),
        ({"row": None, "slower_fraction": 0.031}, "not among the rows, +3.1 %."),
        (
            {"slower_fraction": 0.5, "own_slower_fraction": -0.021},
            "row 2, +50.0 % (-2.1 % under megatron bridge and its runtime).",
        ),
        ({"problem": "too wide"}, "not possible here: too wide."),
    ],
)
def test_where_a_layout_stands_is_said(placed: Placed, changes: dict[str, Any], said: str) -> None:
    assert placed_line(replace(placed, **changes)) == f"{SHIPS}: {said}"


def test_less_free_than_the_margin_is_said(placed: Placed) -> None:
    tight = place(replace(placed.context, margin_fraction=0.4), RECIPE)
    assert placed_line(tight).endswith("GiB free, less than the margin.")


def test_a_layout_that_does_not_fit(placed: Placed) -> None:
    small = replace(placed.context.cluster.accelerator, hbm_bytes=2.0**34)
    node = replace(placed.context.cluster.node, accelerator=small)
    context = replace(placed.context, cluster=replace(placed.context.cluster, node=node))
    missing = place(context, RECIPE)
    assert placed_line(missing).startswith(f"{SHIPS}: does not fit here: needs ")
    assert "its own software" not in placed_line(missing)
    light = replace(placed.estimate.memory, peak_bytes=2.0**30)  # type: ignore[union-attr]
    own = replace(placed.estimate, memory=light)  # type: ignore[type-var]
    assert "but fits under megatron bridge" in placed_line(replace(missing, own=own))


def test_the_first_line_counts_by_vendor_and_what_is_listed_only() -> None:
    text = recipes_line(recipes(()))
    assert text.startswith("211 recipes: 125 of NVIDIA (Megatron-Bridge 0.6.2")
    assert "86 of AMD" in text
    assert "listed only" not in text
    (lora,) = recipes(("llama3_70b_peft_8gpu_h100_bf16",)).recipes
    some = Recipes(words=(), recipes=(lora, replace(lora, not_priced=LATENT)))
    assert f"1 listed only: {LATENT}" in recipes_line(some)
    assert recipes_line(Recipes(words=("h100", "amd"), recipes=())) == "No recipe for h100 amd."


def test_what_is_recomputed_is_said_in_few_words() -> None:
    assert RECIPE.recomputed == ""
    blocks = replace(RECIPE, recompute="full", recompute_method="block", recompute_layers=(5,))
    assert blocks.recomputed == "full, 5 layers a stage"
    layers = replace(blocks, recompute_method="layers", recompute_layers=(1, 7))
    assert layers.recomputed == "full, 2 layers"
