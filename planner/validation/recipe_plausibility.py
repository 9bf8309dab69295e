"""Tuned recipes beside the planner's own answers: the second table of docs/plausibility.md."""

from collections.abc import Iterator, Sequence

from planner.catalog.recipes import Recipe, load_recipes
from planner.plans.recipe import priced_problem, recipe_context, recipe_strategy
from planner.validation.plausibility import (
    Asked,
    Compared,
    SetUp,
    answered,
    as_users_ask,
    first_words,
    own_words,
    place_words,
    summary_line,
)

INTRO = """
## Tuned recipes

Layouts that vendors tuned and ship ([recipes](recipes.md)), each under its own runtime (CUDA
graphs, dispatcher, overlap, optimizer), beside the first answer under the same. Of recipes that
differ only in what does not change the layout the first is shown; their times are not published.
"""
TITLES = ("recipe", "its layout", "the planner for it", "first answer", "its place")


def shown_recipes() -> Iterator[Recipe]:
    """Recipes that can be priced, one for each model, machine and layout."""
    seen: set[tuple[object, ...]] = set()
    for recipe in load_recipes():
        key = (recipe.model, recipe.accelerator, recipe.gpus, recipe.layout, recipe.task)
        if not priced_problem(recipe) and key not in seen:
            seen.add(key)
            yield recipe


def asked_recipe(recipe: Recipe) -> Asked:
    """The question of a recipe, as ``planner plan`` asks it under the recipe's runtime."""
    context = as_users_ask(recipe_context(recipe))
    gpus, batch = context.cluster.num_accelerators, context.job.global_batch
    try:
        strategy = recipe_strategy(recipe, context.model, gpus, batch)
    except ValueError as error:
        return Asked(context=context, strategy=None, measured_s=None, problem=str(error))
    return Asked(context=context, strategy=strategy, measured_s=None)


def compared_recipe(recipe: Recipe) -> Compared:
    """Price a recipe's layout and ask for the planner's own."""
    return answered(SetUp(name=recipe.recipe, run="-"), asked_recipe(recipe))


def recipe_line(recipe: Recipe, one: Compared) -> str:
    """The line of the page."""
    cells = (recipe.recipe, recipe.layout, own_words(one), first_words(one), place_words(one))
    return "| " + " | ".join(cells) + " |"


def recipe_section(lines: Sequence[str]) -> list[str]:
    """The section from its lines."""
    rule = "| " + " | ".join("---" for _ in TITLES) + " |"
    return [INTRO, summary_line(lines), "", "| " + " | ".join(TITLES) + " |", rule, *lines]
