"""Tuned recipes as plans: their software and layout, and where they stand in an answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from planner.answers.base import Answer, Plan
from planner.answers.layout import default_chunks, layout_chunks
from planner.answers.row import row_of
from planner.catalog.models import load_model
from planner.catalog.recipes import Recipe, load_recipes
from planner.catalog.words import stated
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.formats.megatron.options import per_stage
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer, with_recompute_modules, with_training
from planner.query.like import recipe_gpus, recipe_settings, stated_degrees
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.legality import violations
from planner.spec.model import ModelSpec
from planner.spec.strategy import (
    FIELD_DEFAULTS,
    MODEL_PARALLEL_DEGREES,
    STRATEGY_FIELDS,
    Strategy,
    gpus_of_replica,
    split_values,
)
from planner.spec.traits import FrameworkTraits

NEAR_OCTAVES = 2.0  # recipes for larger or smaller numbers of GPUs say nothing


def recipe_traits(recipe: Recipe) -> FrameworkTraits:
    """The software of a recipe: its source's profile, its runtime, optimizer and modules."""
    source = recipe.source
    traits = load_traits(source.framework, source.profile, recipe_settings(recipe))
    traits = with_optimizer(traits, recipe.optimizer)
    if recipe.recompute_modules:
        traits = with_recompute_modules(traits, recipe.recompute_modules)
    return with_training(traits, recipe.training)


def _repeated(recipe: Recipe, chunks: Sequence[int]) -> tuple[int, ...]:
    """Layers per chunk that are recomputed in full."""
    if recipe.recompute != "full":
        return (0,) * len(chunks)
    if recipe.recompute_method == "layers":
        repeated, start = list[int](), 0
        for size in chunks:
            inside = range(start, start + size)
            repeated.append(sum(layer in inside for layer in recipe.recompute_layers))
            start += size
        return tuple(repeated)
    if recipe.recompute_method == "block":
        return tuple(min(size, *recipe.recompute_layers) for size in chunks)
    return tuple(chunks)


def recipe_strategy(recipe: Recipe, model: ModelSpec, num_gpus: int, global_batch: int) -> Strategy:
    """The recipe's layout of a model on so many GPUs; ValueError where they do not divide."""
    inner = gpus_of_replica({**FIELD_DEFAULTS, **vars(recipe)})
    if num_gpus % inner:
        names = " x ".join(MODEL_PARALLEL_DEGREES)
        raise ValueError(f"{num_gpus} GPUs do not divide by {names} = {inner}")
    dp = num_gpus // inner
    num, rest = divmod(global_batch, dp * recipe.micro_batch)
    if rest or not num:
        each = f"dp {dp} x micro-batch {recipe.micro_batch}"
        raise ValueError(f"batch {global_batch} does not divide by {each}")
    stated_chunks, num_layers = recipe.pipeline_layout, model.num_blocks
    # Layers per chunk, from embedding to head.
    chunks = (
        layout_chunks(stated_chunks, num_layers)
        if stated_chunks
        else default_chunks(num_layers, recipe.pp, recipe.vpp)
    )
    layers = per_stage(chunks, recipe.pp)
    under = {
        recipe.recompute: layers,
        "full": per_stage(_repeated(recipe, chunks), recipe.pp),
        "offloaded": [min(n, recipe.offloaded_layers or 0) for n in layers],
    }
    stated = {
        name: STRATEGY_FIELDS[name].value(code) for name, code in stated_degrees(recipe).items()
    }
    values: dict[str, Any] = {**stated, **split_values(layers, under)}
    return Strategy(
        **values,
        dp=dp,
        num_micro_batches=num,
        offload="none",
        recompute_modules=recipe.recompute_modules or None,
    )


def _architecture(model: ModelSpec) -> ModelSpec:
    """The model without what costs nothing: its names, and the length it was made for."""
    same = replace(model, rotary_base=0.0, rotary_factor=1.0, rotary_share=1.0)
    return replace(same, name="", family="", max_seq_len=0)


@cache
def _model_of(name: str) -> ModelSpec:
    return _architecture(load_model(name))


def nearest_recipe(context: Context) -> Recipe | None:
    """The recipe for this architecture and accelerator that is nearest to the question.

    Nearest in GPUs, by octaves; then of the same precision; then in batch and length. None where
    there is none within NEAR_OCTAVES of the GPUs for pre-training, or for adapters where the
    question trains those.
    """
    job, gpus = context.job, context.cluster.num_accelerators
    model, accelerator = _architecture(context.model), context.cluster.accelerator.name
    task = "peft" if context.traits.training.is_frozen else "pretrain"

    def octaves(own: int, asked: int) -> float:
        return abs(math.log2(own / asked))

    def distance(recipe: Recipe) -> tuple[float | bool | str, ...]:
        return (
            octaves(recipe_gpus(recipe), gpus),
            recipe.precision != job.precision,
            octaves(recipe.global_batch, job.global_batch) + octaves(recipe.seq_len, job.seq_len),
            recipe.recipe,
        )

    near = [
        recipe
        for recipe in load_recipes()
        # What reads a file comes last.
        if recipe.source.framework == context.traits.name
        and recipe.task == task
        and octaves(recipe_gpus(recipe), gpus) <= NEAR_OCTAVES
        and stated("nodes", recipe.node)["accelerator"] == accelerator
        and _model_of(recipe.model) == model
    ]
    return min(near, key=distance, default=None)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A recipe's layout priced for a question, and where it stands among the answer's rows."""

    recipe: Recipe
    context: Context
    strategy: Strategy | None = None
    estimate: Estimate | None = None
    problem: str = ""  # why the layout cannot run here, where it cannot
    row: int | None = None  # position, from 1, of the row of this layout
    slower_fraction: float | None = None  # than the first row; None without rows

    own: Estimate | None = None  # of the same layout under the recipe's own software
    own_slower_fraction: float | None = None  # than the first row; None without rows

    @property
    def missing_bytes(self) -> float:
        """Bytes needed beyond the accelerator's memory; 0 if it fits, or cannot run."""
        return max(0.0, -self.estimate.memory.free_bytes) if self.estimate else 0.0

    @property
    def fits_its_own(self) -> bool:
        """True if it fits under the recipe's own software."""
        return self.own is not None and self.own.memory.free_bytes >= 0.0


@row_of(
    {
        **dict.fromkeys(("recipe", "source", "layout"), str),
        **dict.fromkeys(("iter_time_s", "peak_bytes", "own_iter_time_s"), float | None),
        "fits_its_own_software": bool,
        "problem": str | None,
    },
    derived=("missing_bytes",),
    leave_out=("context", "strategy", "estimate", "own"),
    about={
        "fits_its_own_software": "Under the recipe's own runtime, as what begins with own_.",
        "row": "Row of its layout among plans, from 1.",
        "slower_fraction": "Than plan 1.",
    },
)
class RecipeRow(Placed):
    """The nearest tuned recipe's layout, priced for this question."""


def place(context: Context, recipe: Recipe, plans: Sequence[Plan] = ()) -> Placed:
    """Price the recipe's layout for the question of ``context``, beside ranked plans."""
    gpus = context.cluster.num_accelerators
    try:
        strategy = recipe_strategy(recipe, context.model, gpus, context.job.global_batch)
    except ValueError as error:
        return Placed(recipe=recipe, context=context, problem=str(error))
    broken = next(violations(context, strategy), None)
    if broken:
        return Placed(recipe=recipe, context=context, strategy=strategy, problem=broken.message)
    made = estimate(context, strategy)
    own = estimate(replace(context, traits=recipe_traits(recipe)), strategy)
    named = attrgetter(*LAYOUT)
    layout = (context.traits.name, named(strategy))
    layouts = [(plan.framework, named(plan.strategy)) for plan in plans]
    return Placed(
        recipe=recipe,
        context=context,
        strategy=strategy,
        estimate=made,
        row=layouts.index(layout) + 1 if layout in layouts else None,
        slower_fraction=_slower(made, plans),
        own=own,
        own_slower_fraction=_slower(own, plans),
    )


def _slower(made: Estimate, plans: Sequence[Plan]) -> float | None:
    return made.iter_time_s / plans[0].estimate.iter_time_s - 1.0 if plans else None


def placed(answer: Answer) -> Placed | None:
    """The nearest recipe of an answer's question, priced for it; None where there is none."""
    for context in answer.contexts:
        recipe = nearest_recipe(context)
        if recipe is not None:
            return place(context, recipe, answer.plans)
    return None
