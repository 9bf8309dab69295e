"""The search against brute force over every strategy, policy, split and set of modules.

Brute force (brute_force.py) uses only ``iteration_s``, ``fits``, ``fits_chunks``, ``chunk_layers``
and declared penalties; policies, bounds, tables, solver and ranking are what is tested.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from brute_force import (
    CASES,
    KIND_CHOICES,
    Brute,
    Case,
    Said,
    a_few_values,
    force,
    is_most,
    is_regular,
    part_splits,
    said_of,
    weight_of_policy,
)
from contexts import context_of
from depth import of_all
from enumerated import enumerate_space
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.cost.context import Context, with_modules
from planner.cost.estimate import estimate
from planner.cost.module_sets import LayerTable
from planner.cost.stage import StageModel
from planner.cost.stage_model import iteration_time_s, price, stage_model
from planner.search.ranking import candidates, rank, solving
from planner.search.ranking.exploration import Exploration, explored
from planner.search.ranking.goals import Goal, Order
from planner.search.ranking.penalties import TIE_FRACTION, evidence_penalty, uneven_penalty
from planner.search.ranking.pricing import Pricing
from planner.search.search import SearchResult, search
from planner.search.space.interleaving import fits_chunks
from planner.search.space.legality import violations
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.search.space.policies import filled_counts, offered, policies_of
from planner.search.space.shapes import micro_batch_bounds, shape_bounds
from planner.search.space.space import EVERYTHING, Enumeration
from planner.search.stages import cp_sat, partition, solver
from planner.search.stages.bounds import (
    Refined,
    bound_any_split_s,
    feasible,
    group_by_pp,
    may_fit,
    refine,
)
from planner.search.stages.solver import PolicyVariant, Split, solve_split
from planner.search.stages.stage_table import stage_table
from planner.spec.strategy import LAYER_POLICY_NAMES, Strategy, StrategyColumns, split_values

TIME_TOLERANCE = 1e-4  # CP-SAT rounds times to 2**-16 of a layer's
ROUNDING = 1e-9


def assert_equal_times(found: list[float], expected: list[float]) -> None:
    """No faster than brute force, and no slower than the solver's rounding."""
    assert len(found) == len(expected)
    for time_s, best_s in zip(found, expected, strict=True):
        assert best_s * (1.0 - ROUNDING) <= time_s <= best_s * (1.0 + TIME_TOLERANCE)


def assert_frontier(result: SearchResult, brute: Brute) -> None:
    """Every count of GPUs that is faster than all smaller ones, and no other."""
    found = {plan.strategy.num_gpus: plan.weighed_s for plan in result.frontier}
    times = list(found.values())
    assert list(found) == sorted(found)
    assert len(found) == len(result.frontier)
    assert all(later < earlier for earlier, later in pairwise(times))
    fastest = np.inf
    for num_gpus, best_s in brute.by_gpus().items():
        if best_s < fastest * (1.0 - TIME_TOLERANCE):
            assert num_gpus in found
        if num_gpus in found:
            assert_equal_times([found[num_gpus]], [best_s])
            assert best_s < fastest * (1.0 + ROUNDING)
        fastest = min(fastest, best_s)
    assert set(found) <= set(brute.by_gpus())


def assert_legal(context: Context, result: SearchResult) -> None:
    for plan in (*result.plans, *result.frontier):
        assert not list(violations(context, plan.strategy))
        subject = price(context, plan.strategy)
        assert iteration_time_s(subject) == pytest.approx(plan.iteration_s, rel=ROUNDING)
        assert subject.model.fits(*subject.split)[0]
        made = estimate(context, plan.strategy)
        assert made.memory.fits
        assert made.iter_time_s == pytest.approx(plan.iteration_s, rel=ROUNDING)


def assert_said(context: Context, narrowing: Narrowing, result: SearchResult) -> None:
    """Every plan is one that the framework can say, and is weighed by what it uses."""
    for plan in (*result.plans, *result.frontier):
        strategy = plan.strategy
        can = policies_that_say(context, narrowing, strategy)
        assert can
        weighed_s = plan.iteration_s * least_weight(context, strategy, can)
        assert plan.weighed_s == pytest.approx(weighed_s, rel=ROUNDING)


def policies_that_say(context: Context, narrowing: Narrowing, strategy: Strategy) -> list[Said]:
    layers, counts = strategy.layers_per_stage, np.array(strategy.policy_counts, dtype=float)
    can = []
    for how, kinds in said_of(context, narrowing):
        if how == "part":
            one = part_splits(sum(layers), strategy.pp, strategy.vpp, kinds[0])
        else:
            one = np.array([layers]), counts[:, None, :]
            used = [LAYER_POLICY_NAMES[k + 1] for k in range(3) if counts[k].any()]
            used += ["none"] * bool((counts.sum(axis=0) < layers).any())
            if not set(used) <= set(kinds):
                continue
        same = (one[0] == layers).all(axis=1) & (one[1] == counts[:, None, :]).all(axis=(0, 2))
        if same.any():
            can.append((how, kinds))
    return can


def least_weight(context: Context, strategy: Strategy, can: list[Said]) -> float:
    """Factor of a strategy under the policies that it can be said by."""
    layers = np.array([strategy.layers_per_stage], dtype=float)
    counts = np.array(strategy.policy_counts, dtype=float)[:, None, :]
    regular, most = bool(is_regular(layers)[0]), bool(is_most(layers, counts)[0])
    weights = []
    for said in can:
        weight = float(evidence_penalty(context, strategy.columns())[0])
        weight *= weight_of_policy(context, said, strategy.recompute_modules, is_most=most)
        is_free = regular or said[0] == "mixed"
        weights.append(weight * (1.0 if is_free else uneven_penalty(context, int(layers.sum()))))
    return min(weights)


def assert_best(
    result: SearchResult, brute: Brute, k: int = 5, *, one_per_layout: bool = False
) -> None:
    """The k best rows, or layouts, on the GPUs of the best one of all."""
    best = brute.by_gpus()
    if not best:
        assert not result.plans
        assert result.num_gpus == 0
        return
    assert best[result.num_gpus] <= min(best.values()) * (1.0 + TIME_TOLERANCE)
    expected = brute.top(k, result.num_gpus, one_per_layout=one_per_layout)
    assert_equal_times([plan.weighed_s for plan in result.plans], expected)
    assert all(plan.strategy.num_gpus == result.num_gpus for plan in result.plans)


@settings(max_examples=of_all(200), derandomize=True)
@given(case=CASES, one_per_layout=st.booleans(), data=st.data())
def test_the_five_best_plans_and_the_frontier_equal_brute_force(
    case: Case, one_per_layout: bool, data: st.DataObject
) -> None:
    """Whatever is opened, refined and solved at once."""
    context = case.context()
    narrowing = data.draw(a_few_values(context, case.scope))
    brute = force(context, narrowing)
    fits = np.isfinite(brute.best_s)
    event(f"of the strategies fit: {'all' if fits.all() else 'some' if fits.any() else 'none'}")
    size = data.draw(st.sampled_from([1, 7, 512]))
    at_once = dict.fromkeys(("FIRST_SHAPES", "FIRST_ROWS", "FIRST_SOLVED"), size)
    with mock.patch.multiple(rank, **at_once):
        result = search(context, top=5, narrowing=narrowing, one_per_layout=one_per_layout)
    assert result.proved_optimal
    assert result.gap == 0.0
    assert_best(result, brute, one_per_layout=one_per_layout)
    assert_frontier(result, brute)
    assert_legal(context, result)
    assert_said(context, narrowing, result)


@settings(max_examples=of_all(80), derandomize=True)
@given(case=CASES, data=st.data())
def test_the_first_plan_is_the_simplest_of_those_that_tie_with_the_fastest(
    case: Case, data: st.DataObject
) -> None:
    context = replace(case.context(), ranking="simplicity")
    narrowing = data.draw(a_few_values(context, case.scope))
    brute = force(replace(context, ranking="evidence"), narrowing)
    guess_s = data.draw(st.sampled_from([0.8, 1.0, 1.1, np.inf])) * brute.best_s.min(initial=np.inf)
    result = search(context, top=3, narrowing=narrowing, one_per_layout=True, guess_s=guess_s)
    assert result.proved_optimal
    if not np.isfinite(brute.best_s).any():
        assert not result.plans
        return
    fastest, first = result.fastest, result.plans[0]
    assert fastest is not None
    assert_equal_times([fastest.weighed_s], [float(brute.best_s.min())])
    tied_s = fastest.weighed_s * (1.0 + TIE_FRACTION)
    slack = 2 * TIME_TOLERANCE
    within = [force(context, narrowing, tied_s=tied_s * (1 + one)) for one in (-slack, 0.0, slack)]
    assume((within[0].per_set_s == within[2].per_set_s).all())
    event(f"the fastest is the simplest: {fastest.strategy == first.strategy}")
    can = policies_that_say(context, narrowing, first.strategy)
    value_s = first.iteration_s * least_weight(context, first.strategy, can)
    expected = within[1].best_s[within[1].num_gpus >= fastest.strategy.num_gpus]
    assert_equal_times([value_s], [float(expected.min())])
    assert first.weighed_s <= tied_s * (1.0 + ROUNDING)


@settings(max_examples=16, derandomize=True)
@given(case=CASES, kinds=st.sampled_from(KIND_CHOICES), data=st.data())
def test_bounds_are_never_above_the_best_split_and_drop_nothing_that_fits(
    case: Case, kinds: tuple[str, ...], data: st.DataObject
) -> None:
    context = case.context()
    narrowing = replace(data.draw(a_few_values(context, case.scope)), kinds=kinds)
    brute = force(context, narrowing)
    if not brute.models:
        return
    strategy = brute.strategy
    assert_shapes_bounded(context, narrowing, strategy, brute.best_s)
    enumeration = Enumeration(context=context, narrowing=narrowing)
    exploration, _ = explored(enumeration)
    opened = exploration.candidates
    model = stage_model(enumeration.context, strategy)
    assert [(p.kinds[-1:] if p.part else p.kinds) for p in opened.policies] == [
        kinds for _, kinds in brute.said
    ]
    for policy, best_s in zip(opened.policies, brute.per_policy_s, strict=True):
        possible = np.isfinite(best_s)
        assert np.isin(np.flatnonzero(possible), offered(model, policy)).all()
        weight = opened.pricing.weights(strategy)[0] * opened.pricing.policy_weight(policy)
        bound = opened.pricing.price(model, policy, weight).bound
        assert (bound_any_split_s(bound) <= best_s * (1 + ROUNDING)).all()
        for limit_s in (np.full(len(strategy), np.inf), best_s * (1 + 1e-6)):
            assert may_fit(bound, limit_s)[possible].all()
        for num_stages, rows in group_by_pp(strategy):
            assert feasible(bound.take(rows), num_stages)[possible[rows]].all()
    assert_rows_bounded(exploration, brute)
    if context.ranking == "time":
        assert_variants_bounded(exploration, brute)


def assert_rows_bounded(exploration: Exploration, brute: Brute) -> None:
    """Bounds of rows lie on their sides of the optimum, refined, prepared and with limits."""
    names = list(StrategyColumns.__dataclass_fields__)
    keys = np.stack([getattr(brute.strategy, name) for name in names], axis=1).tolist()
    place = {tuple(key): i for i, key in enumerate(keys)}
    opened = exploration.candidates
    unlimited = np.full(len(opened.gpus), np.inf)
    exploration.open(np.arange(len(exploration.shapes.lower_s)), unlimited)
    if not len(opened.lower_s):
        assert not np.isfinite(brute.per_policy_s).any()
        return
    mine = np.stack([getattr(opened.strategy, name) for name in names], axis=1).tolist()
    at = np.array([place[tuple(key)] for key in mine], dtype=int)
    best_s = brute.per_policy_s[opened.policy, at]
    assert np.isfinite(best_s).sum() == np.isfinite(brute.per_policy_s).sum()
    rows = np.arange(len(best_s))
    slowest_s = np.array(
        [best_s[opened.group == g].max(initial=0) for g in range(len(opened.gpus))]
    )
    for step in (
        lambda: None,
        lambda: exploration.solving.refine(
            rows, np.where(np.isfinite(slowest_s), slowest_s * 1.01, np.inf)
        ),
        lambda: exploration.solving.prepare(rows, unlimited),
    ):
        step()
        assert (opened.lower_s <= best_s * (1 + ROUNDING)).all()
        assert (opened.upper_s >= best_s * (1 - ROUNDING)).all()


def assert_variants_bounded(exploration: Exploration, brute: Brute) -> None:
    """The same for every set of modules and every number of layers of each policy alone."""
    opened, context = exploration.candidates, exploration.context
    num_layers = context.model.num_blocks
    whole = stage_model(context, brute.strategy)
    for policy, best_s in zip(opened.policies, brute.per_policy_s, strict=True):
        possible = offered(whole, policy)
        model, places, *variants = opened.pricing.variants(whole.take(possible), policy)
        places = possible[places]
        for num_stages, rows in group_by_pp(model.strategy):
            part, at = model.take(rows), places[rows]
            for limit_s in (None, np.where(np.isfinite(best_s), best_s * (1 + 1e-6), np.inf)[at]):
                found = refine(part, num_stages, None, limit_s)
                least = np.full(len(best_s), np.inf)
                np.minimum.at(least, at, found.lower_s)
                reached = np.isin(np.arange(len(best_s)), at) & np.isfinite(best_s)
                assert (least <= best_s * (1 + ROUNDING))[reached].all()
                assert (found.upper_s >= best_s[at] * (1 - ROUNDING)).all()
                assert_claimed(part, num_layers, found)
            every, chosen = variants
            assert_itemised(
                context, brute.strategy, at, [every[one] for one in chosen[rows]], found
            )


def assert_itemised(
    context: Context,
    strategy: StrategyColumns,
    places: np.ndarray,
    variants: list[PolicyVariant],
    found: Refined,
) -> None:
    """A split under a policy taken into the layer's costs is the same split layer by layer."""
    claimed = np.flatnonzero(np.isfinite(found.upper_s))
    for modules in {variants[row].modules for row in claimed.tolist()}:
        rows = np.array([row for row in claimed.tolist() if variants[row].modules == modules])
        model = stage_model(with_modules(context, modules), strategy.take(places[rows]))
        layers, counts = found.layers[rows], np.zeros_like(found.counts[:, rows])
        for i, row in enumerate(rows.tolist()):
            one, vpp = variants[row], int(model.strategy.vpp[i])
            own = found.counts[:, row]
            counts[:, i] = filled_counts(one.policy, layers[i], own, vpp, one.number)
        assert model.fits(layers, counts).all()
        times = model.iteration_s(layers, counts)
        assert times == pytest.approx(found.upper_s[rows], rel=1e-12)


def assert_claimed(model: StageModel, num_layers: int, found: Refined) -> None:
    assert not np.isnan(found.lower_s).any()
    claimed = np.isfinite(found.upper_s)
    layers, counts = found.layers[claimed], found.counts[:, claimed]
    model = model.take(claimed)
    assert model.fits(layers, counts).all()
    assert fits_chunks(layers, model.strategy.vpp, model.strategy.pp).all()
    assert (layers.sum(axis=1) == num_layers).all()
    assert (counts >= 0).all()
    assert (counts.sum(axis=0) <= layers).all()


def assert_shapes_bounded(
    context: Context, narrowing: Narrowing, strategy: StrategyColumns, best_s: np.ndarray
) -> None:
    enumeration = Enumeration(context=context, narrowing=narrowing)
    shapes = enumeration.shapes()
    batched, _ = enumeration.expanded(shapes, ["micro_batch", "sequence_parallel"])
    layers = LayerTable(context=enumeration.context)
    of_each = micro_batch_bounds(enumeration, batched, layers)
    of_any = shape_bounds(enumeration, shapes, layers)
    for columns, bounds in ((shapes, of_any), (batched, of_each)):
        can_fit = np.isfinite(bounds.least_weight(columns, enumeration.values))
        mine = np.stack([getattr(strategy, name) for name in columns], axis=1)
        for position, key in enumerate(np.stack(list(columns.values()), axis=1)):
            least_s = best_s[(mine == key).all(axis=1)].min(initial=np.inf)
            assert can_fit[position] or np.isinf(least_s)
            assert bounds.least_s[position] <= least_s * (1 + ROUNDING)


def solve_by_cp_sat(model: StageModel) -> Split | None:
    table = stage_table(model, 1e12)
    if not np.isfinite(table.seconds).any(axis=1).all():
        return None
    columns, is_proved = cp_sat.solve_cells(model, table)
    assert is_proved
    if columns is None:
        return None
    return replace(solver._split(model, table, columns), is_optimal=True)


@settings(max_examples=16, derandomize=True)
@given(case=CASES, data=st.data())
def test_the_programme_and_cp_sat_each_find_the_best_split_of_a_strategy(
    case: Case, data: st.DataObject
) -> None:
    context = replace(case.context(), ranking="time")
    strategy = enumerate_space(context, EVERYTHING).strategy
    if not len(strategy):
        return
    several = np.flatnonzero(strategy.pp > 1)
    rows = several if len(several) else np.arange(len(strategy))
    chosen = data.draw(st.lists(st.sampled_from(rows.tolist()), min_size=1, max_size=4))
    keys = {
        name: tuple({int(getattr(strategy, name)[row]) for row in chosen}) for name in ("pp", "vpp")
    }
    narrowing = replace(case.scope, values=keys)
    brute = force(context, narrowing)
    pricing = Pricing(context=context, layers=LayerTable(context=context))
    num_layers = context.model.num_blocks
    policies = policies_of(context, narrowing)
    rows = data.draw(st.lists(st.integers(0, len(brute.num_gpus) - 1), min_size=4, max_size=4))
    for row in rows:
        which = data.draw(st.integers(0, len(policies) - 1))
        own = stage_model(context, brute.strategy.take(np.array([row])))
        if not len(offered(own, policies[which])):
            continue
        model, *_ = pricing.variants(own, policies[which])
        best_s = float(brute.per_policy_s[which, row])
        for solve in (solve_split, solve_by_cp_sat):
            every = [(one, solve(model.take(np.array([one])))) for one in range(len(model))]
            found = [(one, split) for one, split in every if split is not None]
            if not np.isfinite(best_s):
                assert not found
                continue
            assert found
            for one, split in found:
                assert split.is_optimal
                assert_consistent(model.take(np.array([one])), num_layers, split)
            assert_equal_times([min(split.iteration_s for _, split in found)], [best_s])
        if np.isfinite(best_s):
            best = min(found, key=lambda each: each[1].iteration_s)[0]
            assert_limits_kept(model.take(np.array([best])), num_layers, best_s)


def assert_consistent(model: StageModel, num_layers: int, split: Split) -> None:
    layers, counts = split.layers[None], split.counts[:, None, :]
    assert model.fits(layers, counts)[0]
    assert fits_chunks(layers, model.strategy.vpp)[0]
    assert layers.sum() == num_layers
    assert model.iteration_s(layers, counts)[0] == split.iteration_s


def assert_limits_kept(model: StageModel, num_layers: int, best_s: float) -> None:
    """Just above the optimum it is found, just below nothing is."""
    above = solve_split(model, below_s=best_s * 1.001)
    assert above is not None
    assert above.is_optimal
    assert_equal_times([above.iteration_s], [best_s])
    assert solve_split(model, below_s=best_s * 0.999) is None


CONDITIONS: tuple[tuple[str, Callable[[Strategy], bool]], ...] = (
    ("tp*pp <= 4", lambda s: s.tp * s.pp <= 4),
    ("dp >= tp", lambda s: s.dp >= s.tp),
    ("pp in (1, 2)", lambda s: s.pp in (1, 2)),
    ("gpus != 4", lambda s: s.num_gpus != 4),
    ("num_micro_batches % 2 == 0 or pp == 1", lambda s: s.num_micro_batches % 2 == 0 or s.pp == 1),
    ("not (micro_batch > 1 and zero_stage == 0)", lambda s: s.micro_batch == 1 or s.zero_stage > 0),
    ("vpp < pp or vpp == 1", lambda s: s.vpp < s.pp or s.vpp == 1),
    ("offload == none or dp > 1", lambda s: s.offload == "none" or s.dp > 1),
    ("dp_shard <= 2", lambda s: s.dp // s.dp_replicate <= 2),
    ("2 < tp + pp <= 5", lambda s: 2 < s.tp + s.pp <= 5),
    ("sequence_parallel == off", lambda s: not s.sequence_parallel),
)
"""Texts as a user writes them, and the same in Python."""
RECOMPUTE_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("recompute == none", ("none", "offloaded")),
    ("recompute == selective", ("selective",)),
    ("recompute == full", ("full",)),
    ("recompute != none", ("selective", "full")),
    ("recompute != full", ("none", "selective", "offloaded")),
    ("recompute in (none, full)", ("none", "full", "offloaded")),
)


@settings(max_examples=16, derandomize=True)
@given(
    case=CASES,
    conditions=st.lists(st.sampled_from(CONDITIONS), max_size=2, unique_by=lambda one: one[0]),
    recompute=st.sampled_from([None, *RECOMPUTE_TEXTS]),
    without_offload=st.booleans(),
)
def test_a_narrowed_search_equals_brute_force_over_the_strategies_that_satisfy_it(
    case: Case,
    conditions: list[tuple[str, Callable[[Strategy], bool]]],
    recompute: tuple[str, tuple[str, ...]] | None,
    without_offload: bool,
) -> None:
    context = case.context()
    texts = [text for text, _ in conditions] + ([recompute[0]] if recompute else [])
    narrowing = read_narrowing(where=texts, forbid=["offload"] if without_offload else [])
    kinds = recompute[1] if recompute else LAYER_POLICY_NAMES
    if without_offload:
        kinds = tuple(kind for kind in kinds if kind != "offloaded")
    narrowing = replace(narrowing, allowed=case.scope.allowed)
    strategy = enumerate_space(context).strategy
    kept = []
    for row in range(len(strategy)):
        one = Strategy(**strategy.values(row), **split_values((), {}))
        holds = all(condition(one) for _, condition in conditions)
        if holds and (one.offload == "none" or not without_offload):
            kept.append(row)
    everything = force(context, replace(case.scope, kinds=kinds))
    if not everything.models:
        return
    brute = everything.take(np.array(kept, dtype=int))
    result = search(context, top=5, narrowing=narrowing)
    event(f"plans found: {bool(result.plans)}")
    assert result.proved_optimal
    assert_best(result, brute)
    assert_frontier(result, brute)
    assert_legal(context, result)
    assert_said(context, narrowing, result)
    assert_of_kinds(result, kinds)


def assert_of_kinds(result: SearchResult, kinds: tuple[str, ...]) -> None:
    for plan in (*result.plans, *result.frontier):
        numbers = [sum(counts) for counts in plan.strategy.policy_counts]
        numbers = [sum(plan.strategy.layers_per_stage) - sum(numbers), *numbers]
        used = {kind for kind, n in zip(LAYER_POLICY_NAMES, numbers, strict=True) if n}
        assert used <= {*kinds}


@settings(max_examples=of_all(60), derandomize=True)
@given(
    case=CASES,
    percent=st.sampled_from([100.0, 100.3, 101.0, 110.0, 150.0, 300.0, 99.0]),
    order=st.sampled_from(["at_most", "fewest_gpus", "gpu_seconds"]),
)
def test_limits_are_kept_in_true_seconds_whatever_the_weights(
    case: Case, percent: float, order: Order
) -> None:
    context = case.context()
    bare = force(replace(context, ranking="time"), case.scope)
    fastest_s = float(bare.best_s.min(initial=np.inf))
    assume(np.isfinite(fastest_s))
    longest_s = fastest_s * percent / 100.0
    brute, slack = force(context, case.scope, longest_s), 2 * TIME_TOLERANCE
    unsure = [force(context, case.scope, longest_s * (1 + step)) for step in (-slack, slack)]
    assume(percent == 100.0 or (unsure[0].per_set_s == unsure[1].per_set_s).all())
    longest_s *= 1.0 + slack * (percent == 100.0)
    goal = Goal(order=order, longest_s=lambda gpus: np.full(len(gpus), longest_s))
    result = search(context, top=3, narrowing=case.scope, goal=goal, with_ladder=True)
    event(f"plans found: {bool(result.plans)}")
    assert result.proved_optimal
    assert all(plan.iteration_s <= longest_s * (1 + 1e-8) for plan in result.plans)
    whole = force(context, case.scope)
    assert_frontier(result, whole)
    best = brute.by_gpus()
    if not best:
        assert not result.plans or percent == 100.0
        return
    if percent == 100.0:
        assert result.plans
        return
    if order == "at_most":
        assert_best(result, brute, 3)
    found = result.plans[0]
    if order == "fewest_gpus":
        assert result.num_gpus == min(best)
        assert_equal_times([found.weighed_s], [best[min(best)]])
    if order == "gpu_seconds":
        least = min(number * time_s for number, time_s in best.items())
        assert_equal_times([found.weighed_s * found.strategy.num_gpus], [least])
    assert_ladder(result, whole)


def assert_ladder(result: SearchResult, whole: Brute) -> None:
    """Every rung is the best of all on at most so many GPUs."""
    best = whole.by_gpus()
    for halvings in range(1, 4):
        most = result.num_gpus // 2**halvings
        within = [time_s for number, time_s in best.items() if number <= most]
        if within:
            rungs = [one.weighed_s for one in result.ladder if one.strategy.num_gpus <= most]
            assert rungs
            assert_equal_times([min(rungs)], [min(within)])


def assert_within_gap(cut: SearchResult, whole: SearchResult) -> None:
    assert 0.0 <= cut.gap <= 1.0
    assert cut.is_complete or not cut.proved_optimal
    if cut.proved_optimal:
        for found, best in ((cut.plans, whole.plans), (cut.frontier, whole.frontier)):
            assert_equal_times([one.weighed_s for one in found], [one.weighed_s for one in best])
    if cut.plans:
        best_s, found_s = whole.plans[0].weighed_s, cut.plans[0].weighed_s
        assert found_s >= best_s * (1 - ROUNDING)
        assert found_s * (1.0 - cut.gap) <= best_s * (1 + ROUNDING)


@settings(max_examples=of_all(40), derandomize=True)
@given(case=CASES, checks=st.integers(0, 24))
def test_when_time_runs_out_anywhere_the_optimum_is_within_the_reported_gap(
    case: Case, checks: int
) -> None:
    """The clock strikes at the n-th look at it."""
    context = case.context()
    whole, looks = search(context, narrowing=case.scope), iter(range(checks))
    late = property(lambda _: next(looks, None) is None)
    with mock.patch.object(Exploration, "is_late", late):
        cut = search(context, narrowing=case.scope)
    event(f"plans: {bool(cut.plans)}, proved: {cut.proved_optimal}")
    assert_within_gap(cut, whole)


@settings(max_examples=16, derandomize=True)
@given(case=CASES, blind=st.booleans())
def test_where_cp_sat_gives_up_nothing_is_claimed_that_is_not_proved(
    case: Case, blind: bool
) -> None:
    """No bound closes, no sweep proves; where ``blind``, splits it finds cannot be laid out."""
    context = case.context()
    whole = search(context, narrowing=case.scope)

    def unproved(*arguments: object) -> partition.Partition | None:
        dealt = partition.partition_layers(*arguments)  # type: ignore[arg-type]
        return dealt and replace(dealt, is_optimal=False)

    patches = [
        mock.patch.object(cp_sat, "solve_cells", return_value=(None, False)),
        mock.patch.object(solver, "partition_layers", unproved),
        mock.patch.object(candidates, "CLOSED", -0.5),
        mock.patch.object(solving, "CLOSED", -0.5),
    ]
    if blind:
        nowhere = mock.patch.object(solver, "fits_chunks", lambda layers, _: layers.max(1) < 0)
        patches.append(nowhere)
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        cut = search(context, narrowing=case.scope)
    event(f"plans: {bool(cut.plans)}, proved: {cut.proved_optimal}")
    assert_within_gap(cut, whole)


@pytest.mark.parametrize("limit_s", [0.0, 1e-3, 0.03, 0.1, 0.3])
def test_a_time_limit_is_kept_and_its_result_is_within_the_gap(limit_s: float) -> None:
    context = context_of(model="gpt3-13b", cluster="4xdgx-h100", global_batch=64, seq_len=2048)
    cut = search(context, time_limit_s=limit_s)
    assert limit_s or not cut.proved_optimal
    assert cut.seconds < limit_s + 3.0
    assert_within_gap(cut, search(context))


def planned(arguments: list[str], hash_seed: int, threads: int, num_cores: int) -> dict[str, Any]:
    """The JSON of ``planner plan`` from a process of its own, without the time it took."""
    code = (
        f"import os, sys; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{num_cores}]);"
        f"from planner.cli.app import main; sys.argv = ['planner', *{arguments!r}]; main()"
    )
    settings_of = {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": str(threads)}
    command, env = [sys.executable, "-c", code], {**os.environ, **settings_of}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    del found["search"]["seconds"]
    return found


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_hash_seed_threads_and_cores_change_nothing() -> None:
    arguments = ["plan", "gpt3-13b", "1xdgx-h100", "--global-batch", "64"]
    arguments += ["--framework", "megatron", "--top", "10", "--format", "json"]
    first = planned(arguments, 1, 1, 1)
    assert len(first["plans"]) == 10
    assert first == planned(arguments, 12345, 4, 64)
