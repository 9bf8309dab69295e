"""What only keeps a strategy out of a search does not make it illegal."""

from dataclasses import replace

from planner.answers.recipe import recipe_strategy
from planner.catalog.recipes import find_recipe
from planner.query.like import recipe_gpus
from planner.search.space.legality import violations
from tools.plausibility import recipe_context


def test_pruning_is_no_violation() -> None:
    recipe = find_recipe("qwen3_30b_a3b_pretrain_16gpu_h100_bf16")
    context = recipe_context(recipe)
    strategy = recipe_strategy(recipe, context.model, recipe_gpus(recipe), recipe.global_batch)
    assert not list(violations(context, strategy))
    wide = replace(strategy, dp=1, tp=16, ep=1, num_micro_batches=1024)
    assert all("scale_up" not in one.rule for one in violations(context, wide))
