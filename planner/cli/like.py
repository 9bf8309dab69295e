"""``--like``: what a recipe or a file states stands in for what the command line leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from planner.cli.like_file import file_batch, file_defaults, file_settings, training_defaults

if TYPE_CHECKING:
    from planner.catalog.recipes import Recipe


def _found(name: str) -> "Recipe":
    from planner.catalog.recipes import find_recipe
    from planner.errors import InputError
    from planner.plans.recipe import priced_problem

    recipe = find_recipe(name)
    problem = priced_problem(recipe)
    if problem:
        raise InputError.single("command line", "--like", f"{recipe.recipe}: {problem}")
    return recipe


def start_from(context: typer.Context, name: str | None) -> str | None:
    """Give every option that is left out the recipe's or file's value; read before the others."""
    if name is not None:
        found = file_defaults(name) if _is_file(name) else _defaults(_found(name))
        context.default_map = {**(context.default_map or {}), **found}
    return name


def _is_file(name: str) -> bool:
    from planner.documents.file import is_file

    return is_file(name)


def _defaults(recipe: "Recipe") -> dict[str, Any]:
    from planner.plans.recipe import recipe_cluster

    defaults = {
        "model": recipe.model,
        "cluster": f"{recipe_cluster(recipe).num_nodes}x{recipe.node}",
        "framework": recipe.source.framework,
        "profile": recipe.source.profile,
        "seq_len": recipe.seq_len,
        "precision": recipe.precision,
        "optimizer": recipe.optimizer,
    }
    if recipe.mtp_layers is not None:
        defaults["mtp_layers"] = recipe.mtp_layers
    if recipe.recompute_modules:
        defaults["recompute_modules"] = ",".join(recipe.recompute_modules)
    return defaults | training_defaults(recipe.training)


@dataclass(frozen=True, kw_only=True)
class Started:
    """Options that hold what the recipe states beside what the command line does."""

    fix: list[str]
    settings: list[str]
    global_batch: int | None


def with_recipe(
    name: str,
    *,
    cluster: str,
    fix: Sequence[str],
    settings: Sequence[str],
    global_batch: int | None,
    global_batch_tokens: str | None,
) -> Started:
    """The recipe's degrees and runtime, but for those that the command line gives.

    Of a file the batch and what it says of the software; its layout is solved.
    """
    from planner.plans.recipe import recipe_settings, stated_degrees
    from planner.search.space.vocabulary import ALIASES

    has_batch = global_batch is not None or global_batch_tokens is not None
    if _is_file(name):
        batch = global_batch if has_batch else file_batch(name, cluster)
        stated = [*file_settings(name), *settings]
        return Started(fix=[*fix], settings=stated, global_batch=batch)
    recipe = _found(name)
    members = [item for text in fix for item in text.split(",")]
    words = [item.partition("=")[0].strip().lower() for item in members]
    fixed = {ALIASES.get(word, word) for word in words}
    paths = {text.partition("=")[0].removeprefix("traits.") for text in settings}
    degrees = stated_degrees(recipe).items()
    runtime = recipe_settings(recipe)
    return Started(
        fix=[*fix, *(f"{key}={value}" for key, value in degrees if key not in fixed)],
        settings=[*settings, *(_text(*each) for each in runtime if each[0] not in paths)],
        global_batch=global_batch if has_batch else recipe.global_batch,
    )


def _text(path: str, value: object) -> str:
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"traits.{path}={shown}"
