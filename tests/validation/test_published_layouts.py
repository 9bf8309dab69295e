"""Every layout that people ran is a point of its framework's space, is searched, and fits."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.answers.recipe import recipe_strategy
from planner.catalog.recipes import Recipe, load_recipes
from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.stage_model import price
from planner.query.like import priced_problem, recipe_gpus
from planner.search.space.legality import RULES, violations
from planner.search.space.space import dimension_values
from planner.spec.strategy import Strategy
from planner.units import GIB
from tools.plausibility import recipe_context
from tools.validation.mapping import Run, to_run
from tools.validation.records import read_records
from tools.validation.setup import CannotEstimateError

HERE = Path(__file__).parent
KNOWN: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "known_layouts.yaml").read_text())
TOLERANCE_GIB = 0.051  # Excesses are stated to a tenth
MOST_DOUBLINGS = 5  # of the GPUs that the degrees need, where a recipe does not state their number
FEWEST_PUBLISHED = 380
PRICED_RECIPES = 211
HARMLESS = ("zero_needs_replicas",)
"""Rules that prune what is searched under another name: one rank's optimizer is not sharded."""
MORE_GPUS_THAN_STATED = 13
"""Recipes whose degrees do not divide the GPUs in their name: pp · ep is larger."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What keeps a layout from running, as the planner sees it."""

    breaks: tuple[str, ...]
    beyond_gib: float

    @property
    def runs(self) -> bool:
        return not self.breaks and self.beyond_gib <= 0.0


def pruned_by(context: Context, strategy: Strategy) -> tuple[str, ...]:
    """What keeps a legal strategy out of a search that nothing widens.

    Names of rules that only prune, and of dimensions whose searched values lack its own.
    """
    columns = strategy.columns()
    values = {name: getattr(columns, name) for rule in RULES for name in rule.needs}
    pruning = (rule for rule in RULES if rule.only_prunes)
    searched = dimension_values(context).items()
    return (
        *(rule.name for rule in pruning if not rule.is_legal(context, values)[0]),
        *(name for name, own in searched if int(getattr(columns, name)[0]) not in own),
    )


def finding(context: Context, strategy: Strategy) -> Finding:
    broken = [one.rule for one in violations(context, strategy)]
    peak_bytes = memory_estimate(price(context, strategy)).peak_bytes
    return Finding(
        breaks=tuple(broken),
        beyond_gib=(peak_bytes - context.cluster.accelerator.hbm_bytes) / GIB,
    )


@cache
def runs() -> dict[str, Run]:
    """Complete records that validate can map, but for those that ran out of memory."""
    mapped = {}
    for record in read_records(HERE / "published_runs.jsonl"):
        if not record.out_of_memory:
            with suppress(CannotEstimateError):
                mapped[record.id] = to_run(record)
    return mapped


def recipes() -> tuple[Recipe, ...]:
    return tuple(recipe for recipe in load_recipes() if not priced_problem(recipe))


def counts(recipe: Recipe) -> Iterator[int]:
    """GPUs to try: those stated, else those that the degrees and the batch allow."""
    least = recipe_gpus(recipe)
    yield least
    for doublings in range(1, MOST_DOUBLINGS + 1):
        more = least * 2**doublings
        dp = more // (recipe.tp * recipe.pp * recipe.cp)
        if recipe.gpus is None and recipe.global_batch % (dp * recipe.micro_batch) == 0:
            yield more


def of_recipe(recipe: Recipe) -> tuple[Finding, Context, Strategy]:
    """On the fewest GPUs on which it runs; else on the most that it may run on."""
    for gpus in counts(recipe):
        context = recipe_context(recipe, gpus)
        strategy = recipe_strategy(recipe, context.model, gpus, recipe.global_batch)
        found = finding(context, strategy)
        if found.runs:
            break
    return found, context, strategy


def check(name: str, found: Finding, known: dict[str, Any] | None) -> None:
    if known is None:
        assert found.breaks == (), f"{name}: broken rules"
        assert found.beyond_gib <= 0.0, f"{name}: does not fit"
        return
    assert not found.runs, f"{name} is legal and fits now: take it off the list"
    assert found.breaks == tuple(known.get("breaks", ())), name
    beyond = known.get("beyond_gib")
    if beyond is None:
        assert found.beyond_gib <= 0.0, name
    else:
        assert found.beyond_gib == pytest.approx(beyond, abs=TOLERANCE_GIB), name
    assert known["reason"]


def test_every_published_run_is_legal_and_fits() -> None:
    for name, run in runs().items():
        check(name, finding(run.context, run.strategy), KNOWN["published"].get(name))


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.recipe)
def test_a_tuned_recipe_is_legal_and_fits_and_is_searched_without_being_asked_for(
    recipe: Recipe,
) -> None:
    found, context, strategy = of_recipe(recipe)
    check(recipe.recipe, found, KNOWN["recipes"].get(recipe.recipe))
    assert set(pruned_by(context, strategy)) <= set(HARMLESS)


def test_every_known_exception_is_a_layout_of_the_lists() -> None:
    assert set(KNOWN["published"]) <= set(runs())
    assert set(KNOWN["recipes"]) <= {recipe.recipe for recipe in recipes()}


def test_the_lists_are_whole() -> None:
    assert len(load_recipes()) == 125 + 86
    assert len(recipes()) == PRICED_RECIPES
    more = [r for r in load_recipes() if r.gpus is not None and recipe_gpus(r) != r.gpus]
    assert len(more) == MORE_GPUS_THAN_STATED
    assert len(runs()) >= FEWEST_PUBLISHED
