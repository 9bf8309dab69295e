"""Why a layout is not chosen: verdicts, items that add up."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.plans.plan import answer
from planner.plans.why import WhyAnswer, why
from planner.search.space.narrow import read_narrowing
from planner.units import GIB

Contexts = Callable[..., Context]


@pytest.fixture(scope="module")
def context(context_of: Contexts) -> Context:
    return context_of(global_batch=16, hbm_bytes=8.0 * GIB)


@pytest.fixture(scope="module")
def slower(context: Context) -> WhyAnswer:
    return why([context], read_narrowing(fix=["tp=8"]))


def test_both_plans_are_those_of_the_search(context: Context, slower: WhyAnswer) -> None:
    assert slower.verdict == "slower"
    assert slower.asked is not None
    assert slower.best is not None
    assert slower.best.strategy == answer([context], top=1).plans[0].strategy
    assert slower.asked.strategy.tp == 8
    assert slower.slower_by > 0.0
    assert slower.differences()["tp"] == ("8", str(slower.best.strategy.tp))


def test_items_add_up_to_the_difference_and_descend(slower: WhyAnswer) -> None:
    assert slower.asked is not None
    assert slower.best is not None
    items = slower.items()
    total = slower.asked.estimate.iter_time_s - slower.best.estimate.iter_time_s
    assert sum(item.difference_s for item in items) == pytest.approx(total)
    assert sum(item.asked_s for item in items) == pytest.approx(slower.asked.estimate.iter_time_s)
    differences = [item.difference_s for item in items]
    assert differences == sorted(differences, reverse=True)


def test_options_the_best_plan_keeps_give_the_best_plan(
    context: Context, slower: WhyAnswer
) -> None:
    assert slower.best is not None
    strategy = slower.best.strategy
    names = ("dp", "tp", "pp", "vpp", "micro_batch", "zero_stage")
    fixed = [f"{name}={getattr(strategy, name)}" for name in names]
    assert why([context], read_narrowing(fix=fixed)).verdict == "is the best plan"
    assert why([context], read_narrowing(fix=fixed[1:2])).verdict == "is the best plan"


def test_times_within_rounding_tie(slower: WhyAnswer) -> None:
    assert slower.best is not None
    estimate = slower.best.estimate
    made = {}
    for factor in (1.0 + 1e-6, 1.0 + 1e-3, 1.0 - 1e-3):
        changed = replace(estimate, iter_time_s=estimate.iter_time_s * factor)
        strategy = replace(slower.best.strategy, placement="other")
        asked = replace(slower.best, strategy=strategy, estimate=changed)
        made[factor] = replace(slower, asked=asked).verdict
    assert list(made.values()) == ["ties", "slower", "faster"]


def test_fewer_gpus_are_never_faster_than_the_best_plan(
    context: Context, slower: WhyAnswer
) -> None:
    found = why([context], read_narrowing(where=["gpus <= 4"]))
    assert found.verdict == "slower"
    assert found.asked is not None
    assert found.asked.strategy.num_gpus == 4


def test_what_does_not_fit_and_what_is_illegal_is_explained(context_of: Contexts) -> None:
    context = context_of(global_batch=8, hbm_bytes=2.5 * GIB)
    narrowing = read_narrowing(fix=["tp=1,pp=1,zero=0"], forbid=["offload"])
    found = why([context], narrowing)
    assert found.verdict == "does not fit"
    assert found.best is not None
    assert found.nothing is not None
    assert found.nothing.shortfall is not None
    illegal = why([context], read_narrowing(fix=["tp=3"]))
    assert illegal.verdict == "illegal"
    assert illegal.nothing is not None
    assert illegal.best is not None
    [dropped] = [one for one in illegal.nothing.relaxations if one.words == "without --fix tp=3"]
    assert dropped.strategy == illegal.best.strategy


def test_allow_widens_both_spaces(context: Context) -> None:
    narrowing = read_narrowing(fix=["tp=8"], allow=["short-context-parallel"])
    found = why([context], narrowing)
    assert found.options == ["--fix tp=8"]
    assert found.best is not None
    wider = read_narrowing(allow=["short-context-parallel"])
    expected = answer([context], top=1, narrowing=wider).plans[0]
    assert found.best.strategy == expected.strategy
