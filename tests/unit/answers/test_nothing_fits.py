"""The explanation of a question in which nothing fits."""

import re
from dataclasses import replace

import pytest
from contexts import context_of

from planner.answers.conflict import GPUS, HBM, missing_memory
from planner.answers.nothing_fits import NothingFits, explain_nothing, nothing_fits
from planner.answers.plan import answer
from planner.cost.context import Context
from planner.errors import NothingFitsError
from planner.query.query import Query
from planner.query.resolve import Case
from planner.search.space.narrow import read_narrowing
from planner.search.space.space import EVERYTHING
from planner.units import GIB


def explained(*contexts: Context, **options: list[str]) -> NothingFits:
    return explain_nothing(Case(contexts=contexts, narrowing=read_narrowing(**options)))


@pytest.fixture(scope="module")
def tight() -> Context:
    """Eight GPUs on which a small model fits only in part of the space."""
    return context_of(global_batch=8, hbm_bytes=2.5 * GIB)


def test_memory_and_gpus_are_in_conflict_where_only_more_of_either_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = context_of(model="llama3.1-405b", cluster="1xdgx-h100", global_batch=64)
    query = Query.of("llama3.1-405b", "1xdgx-h100")
    found = explain_nothing(Case(contexts=(context,), query=query))
    assert found.conflict == (HBM, GPUS)
    assert found.limits[1] == "8 GPUs"
    assert found.forbidding is None
    assert found.missing is not None
    assert found.unconstrained is not None
    more = next(one for one in found.remedies if "more GPUs" in one.change.words)
    nodes = more.plan.context.cluster.num_nodes
    assert more.change.words == f"{8 * (nodes - 1)} more GPUs ({nodes}xdgx-h100)"
    assert more.change.cluster == f"{nodes}xdgx-h100"
    assert more.time_factor is not None
    assert more.time_factor > 1.0
    text = "\n".join(found.lines())
    assert "more of HBM per GPU needed on stage" in text
    monkeypatch.setattr("planner.answers.nothing_fits.explain_nothing", lambda *_: found)
    assert str(nothing_fits(Case(contexts=(context,)))) == text


def test_options_in_conflict_are_named_and_dropping_them_has_a_price(tight: Context) -> None:
    narrowing = read_narrowing(fix=["tp=1,pp=1,zero=0"], forbid=["offload"])
    assert not answer([tight], top=1, narrowing=narrowing).plans
    found = explained(tight, fix=["tp=1,pp=1,zero=0"], forbid=["offload"])
    assert found.conflict[0] == HBM
    assert set(found.conflict[1:]) <= set(narrowing.texts)
    dropped = [one for one in found.remedies if one.change.words.startswith("without --")]
    assert dropped
    for one in dropped:
        text = one.change.words.removeprefix("without ")
        plans = answer([tight], top=1, narrowing=narrowing.without(text)).plans
        assert one.plan.estimate.iter_time_s == pytest.approx(plans[0].estimate.iter_time_s)
        assert one.plan.is_optimal
        expected = one.plan.estimate.iter_time_s / found.unconstrained.estimate.iter_time_s
        assert one.time_factor == pytest.approx(expected * one.plan.num_gpus / 8)


def test_an_illegal_layout_names_its_rules(tight: Context) -> None:
    found = explained(tight, fix=["tp=3"])
    assert found.missing is None
    assert found.forbidding.each_alone
    text = "\n".join(found.lines())
    assert "no layout is legal with --fix tp=3; each of these rules forbids it:" in text
    assert "tp_divides_heads: " in text
    assert "tp 3 does not divide 16 heads" in text
    assert "without --fix tp=3" in text


def test_pairs_of_changes_only_where_no_single_one_fits(tight: Context) -> None:
    found = explained(tight, fix=["tp=3", "dp=5"])
    words = [one.change.words for one in found.remedies]
    assert "without --fix tp=3 and without --fix dp=5" in words
    assert all(" and " in each for each in words)


def test_a_search_cut_short_claims_nothing(tight: Context) -> None:
    made = answer([tight], top=1, narrowing=read_narrowing(fix=["tp=3"]))
    late = replace(made, searches=(replace(made.searches[0], is_complete=False),))
    error = nothing_fits(Case(contexts=(tight,)), late)
    assert isinstance(error, NothingFitsError)
    assert error.exit_code == 3
    assert "in the time given" in str(error)


def test_the_nearest_of_several_frameworks_is_explained() -> None:
    contexts = [
        context_of(model="llama3.1-405b", cluster="1xdgx-h100", global_batch=64, framework=name)
        for name in ("accelerate", "megatron")
    ]
    found = explained(*contexts)
    alone = [missing_memory(context, EVERYTHING) for context in contexts]
    least = min(short.missing_bytes for short in alone if short is not None)
    assert found.missing.missing_bytes == pytest.approx(least)
    words = [one.change.words for one in found.remedies]
    assert not any(re.match("--framework (accelerate|megatron)", each) for each in words)
