"""Every rule by itself: columns it allows and columns it forbids, and what it says of these."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from contexts import context_of, small_model, with_traits

from planner.answers.recipe import recipe_strategy
from planner.catalog.recipes import find_recipe
from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.query.like import recipe_gpus
from planner.search.space.expressions import DIMENSIONS
from planner.search.space.legality import RULES, violations, whole_cluster
from planner.search.space.rule import GPUS
from planner.spec.model import MoeSpec
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES
from planner.spec.training import Training
from tools.plausibility import recipe_context

CASES = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
TABLE = load_own("planner.search.space", "rules.yaml")
ALL_RULES = (*RULES, whole_cluster)
BY_NAME = {rule.name: rule for rule in ALL_RULES}
CODES = {"schedule": SCHEDULES, "offload": OFFLOAD_CODES, "placement": PLACEMENT_NAMES}
PARTS = ("support", "overlap", "kernels", "optimizer", "states")
Where = Mapping[str, Any]


def cases(kind: str) -> list[Any]:
    return [(name, *row) for name, rows in CASES[kind].items() for row in rows]


def at(where: Where) -> Context:
    given = dict(where)
    parts = {
        part: {n: tuple(v) if isinstance(v, list) else v for n, v in given.pop(part).items()}
        for part in PARTS
        if part in given
    }
    node, mode = given.pop("node", {}), given.pop("train", None)
    if "small" in given:
        changes = given.pop("small")
        moe = changes.get("moe") and {"moe": MoeSpec(**changes["moe"])}
        given["model"] = small_model(**changes | (moe or {}))
    context = with_traits(context_of(**given), **parts).with_node(**node)
    if mode is None:
        return context
    training = Training(mode=mode, rank=8, targets=("q",))
    return replace(context, traits=replace(context.traits, training=training))


def coded(name: str, value: Any) -> Any:
    """Values of a column as the search has them."""
    if isinstance(value, list):
        return [coded(name, each) for each in value]
    return CODES[name].index(value) if isinstance(value, str) else value


def verdicts(name: str, context: Context, **columns: Any) -> str:
    """What the rule says row by row; every column it needs is given, but for degrees of one."""
    rule = BY_NAME[name]
    num_rows = max(map(np.size, columns.values()))
    ones = {degree: [1] * num_rows for degree in GPUS if degree in rule.needs}
    given, columns = columns, ones | columns
    assert set(columns) == set(rule.needs)
    legal = rule.is_legal(context, {key: np.array(value) for key, value in columns.items()})
    assert legal.dtype == bool
    for position in np.flatnonzero(~legal):
        row = {
            key: int(np.broadcast_to(column, legal.shape)[position])
            for key, column in columns.items()
        }
        said = rule.words(context, row)
        assert said.isprintable()
        shown = {DIMENSIONS[key].shown(row[key]) for key in given} - {"off", "on"}
        assert any(re.search(rf"\b{re.escape(value)}\b", said) for value in shown), said
    return "".join("+" if each else "-" for each in legal)


def test_every_rule_of_a_theme_is_asked_once_with_a_sentence_and_words() -> None:
    names = [rule.name for rule in ALL_RULES]
    assert len(set(names)) == len(names)
    assert all(rule.message.endswith(".") for rule in ALL_RULES)


def test_rules_are_asked_in_the_order_of_their_table_which_has_them_all() -> None:
    assert [rule.name for rule in RULES] == list(TABLE)


@pytest.mark.parametrize(("name", "where", "columns", "legal"), cases("keeps"))
def test_a_rule_keeps_and_forbids(name: str, where: Where, columns: Where, legal: str) -> None:
    given = {key: coded(key, value) for key, value in columns.items()}
    assert verdicts(name, at(where), **given) == legal


@pytest.mark.parametrize(("name", "where", "columns", "said"), cases("says"))
def test_what_is_said_names_the_cause(name: str, where: Where, columns: Where, said: str) -> None:
    rule, context = BY_NAME[name], at(where)
    row = {degree: 1 for degree in GPUS if degree in rule.needs}
    row |= {key: coded(key, value) for key, value in columns.items()}
    assert set(row) == set(rule.needs)
    legal = rule.is_legal(context, {key: np.array([value]) for key, value in row.items()})
    assert legal.tolist() == [False]
    assert rule.words(context, row).startswith(said)


def test_what_only_prunes_a_search_is_no_violation() -> None:
    recipe = find_recipe("qwen3_30b_a3b_pretrain_16gpu_h100_bf16")
    context = recipe_context(recipe)
    strategy = recipe_strategy(recipe, context.model, recipe_gpus(recipe), recipe.global_batch)
    assert not list(violations(context, strategy))
    wide = replace(strategy, dp=1, tp=16, ep=1, num_micro_batches=1024)
    assert all("scale_up" not in one.rule for one in violations(context, wide))
