"""Tuned recipes for the terminal and as JSON: the list, and one recipe's place in an answer."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from planner.answers.rows import RecipeRow
from planner.catalog.recipes import Recipe
from planner.plans.recipe import Placed
from planner.query.like import priced_problem, recipe_gpus
from planner.report.document import serialise
from planner.report.table import Column, Table, rich_table
from planner.units import GIB, format_bytes

FAR_FRACTION = 0.05
"""A recipe slower than the first row by more is shown under its own software, too."""
_RIGHT = ("GPUs", "batch", "length")


def _gpus_text(recipe: Recipe) -> str:
    """GPUs as stated; in brackets the fewest that its degrees divide, where that is more."""
    if recipe.gpus is None:
        return f"({recipe_gpus(recipe)}+)"
    needed = recipe_gpus(recipe)
    return f"{recipe.gpus}" if needed == recipe.gpus else f"{recipe.gpus} ({needed})"


def recompute_text(recipe: Recipe) -> str:
    """What is recomputed, in a few words."""
    if recipe.recompute == "selective":
        return " ".join(recipe.recompute_modules) or "selective"
    if recipe.recompute == "none":
        return ""
    if recipe.recompute_method == "block":
        return f"full, {recipe.recompute_layers[0]} layers a stage"
    if recipe.recompute_method == "layers":
        return f"full, {len(recipe.recompute_layers)} layers"
    return "full"


def _knobs(recipe: Recipe) -> list[str]:
    """Micro-batch, what is recomputed and what is offloaded."""
    knobs = [f"micro-batch {recipe.micro_batch}"]
    if text := recompute_text(recipe):
        knobs.append(f"recompute {text}")
    if recipe.offloaded_layers:
        knobs.append(f"{recipe.offloaded_layers} layers offloaded")
    return knobs


def verdict(recipes: Sequence[Recipe], words: Sequence[str]) -> str:
    """How many recipes there are, of whom, and how many of them are priced."""
    asked = f" for {' '.join(words)}" if words else ""
    if not recipes:
        return f"No recipe{asked}."
    by_source = {recipe.source.title: recipe.source.vendor for recipe in recipes}
    parts = [
        f"{sum(r.source.title == title for r in recipes)} of {vendor} ({title})"
        for title, vendor in by_source.items()
    ]
    text = f"{len(recipes)} recipe{'s' if len(recipes) > 1 else ''}{asked}: {', '.join(parts)}."
    reasons = [reason for r in recipes if (reason := priced_problem(r))]
    if reasons:
        text += f" {len(reasons)} listed only: {reasons[0]}."
    return text


def print_recipes(recipes: Sequence[Recipe], words: Sequence[str], console: Console) -> None:
    """The verdict, and one line per recipe."""
    console.print(verdict(recipes, words))
    if not recipes:
        return
    columns: list[Column[Recipe]] = [
        Column("recipe", lambda recipe: recipe.recipe, right=False),
        Column("GPUs", _gpus_text),
        Column("batch", lambda recipe: str(recipe.global_batch)),
        Column("length", lambda recipe: str(recipe.seq_len)),
        Column(
            "layout, micro-batch and what is recomputed",
            lambda recipe: ", ".join([recipe.layout, *_knobs(recipe)]),
            right=False,
            wraps=True,
        ),
    ]
    console.print(rich_table(Table(recipes, columns)))
    if any(recipe_gpus(recipe) != recipe.gpus for recipe in recipes):
        console.print("In brackets: the GPUs that the degrees need, where more or not stated.")
    console.print("`planner plan --like RECIPE` starts from one.", style="dim")


def recipe_dict(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data."""
    fields = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(recipe).items()
        if name != "source"
    }
    source = {name: getattr(recipe.source, name) for name in ("vendor", "title", "where")}
    return {
        **fields,
        "needed_gpus": recipe_gpus(recipe),
        "node": recipe.node,
        "framework": recipe.source.framework,
        "profile": recipe.source.profile,
        "not_priced": priced_problem(recipe) or None,
        "source": source,
    }


def render_recipes_json(recipes: Sequence[Recipe], words: Sequence[str]) -> str:
    """The list as JSON."""
    rows = [recipe_dict(recipe) for recipe in recipes]
    return serialise("recipes", {"words": list(words), "recipes": rows})


def _standing(found: Placed) -> str:
    """Where the layout stands."""
    if found.problem:
        return f"not possible here: {found.problem}"
    assert found.estimate is not None
    software = f"{found.recipe.source.framework} {found.recipe.source.profile}"
    if found.missing_bytes:
        tail = f", but fits under {software}, its own software" if found.fits_its_own else ""
        return f"does not fit here: needs {format_bytes(found.missing_bytes)} more{tail}"
    peak, usable = found.estimate.memory.peak_bytes, found.estimate.memory.usable_bytes
    if peak > usable:
        free = found.context.cluster.accelerator.hbm_bytes - peak
        tail = f", with {free / GIB:.1f} GiB free, less than the margin"
    else:
        tail = ""
    slower = found.slower_fraction
    change = "" if slower is None else f", {100.0 * slower:+.1f} %"
    row = f"row {found.row}" if found.row else "not among the rows"
    own = found.own_slower_fraction
    if slower is not None and own is not None and slower > FAR_FRACTION and found.fits_its_own:
        tail += f" ({100.0 * own:+.1f} % under {software} and its runtime)"
    return f"{row}{change}{tail}"


def placed_line(found: Placed) -> str:
    """What a vendor ships for the model and accelerator, and what the model thinks of it here."""
    recipe = found.recipe
    layout = ", ".join([recipe.layout, *_knobs(recipe)])
    gpus = f"{recipe_gpus(recipe)} {recipe.accelerator.upper()}"
    other: list[str] = [] if recipe.task == "pretrain" else [recipe.task]
    other += [] if recipe.precision == found.context.job.precision else [recipe.precision]
    if recipe.global_batch != found.context.job.global_batch:
        other.append(f"batch {recipe.global_batch}")
    terms = f" ({', '.join(other)})" if other else ""
    return f"{recipe.source.vendor} ships {layout} for {gpus}{terms}: {_standing(found)}."


def recipe_row(found: Placed) -> RecipeRow:
    """The same as a row."""
    made = found.estimate
    return RecipeRow(
        recipe=found.recipe.recipe,
        source=found.recipe.source.title,
        layout=found.recipe.layout,
        iter_time_s=made.iter_time_s if made else None,
        peak_bytes=made.memory.peak_bytes if made else None,
        missing_bytes=found.missing_bytes,
        fits_its_own_software=found.fits_its_own,
        problem=found.problem or None,
        row=found.row,
        slower_fraction=found.slower_fraction,
        own_iter_time_s=found.own.iter_time_s if found.own else None,
        own_slower_fraction=found.own_slower_fraction,
    )
