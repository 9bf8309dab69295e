"""Best plans and frontiers of an answer against brute force over strategies, splits, policies."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from brute_force import AT_ONCE, Asked, said_of, tiny_context, tiny_model
from contexts import with_hbm
from depth import of_all
from enumerated import enumerate_space
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.answers.base import Answer, Plan
from planner.answers.plan import answer
from planner.cost.context import Context
from planner.cost.policies import offers_activation_offload
from planner.cost.stage_model import stage_model
from planner.query.objectives import Aim, JobLimits, Objective
from planner.search.space.narrow import Narrowing, read_narrowing

TIME_TOLERANCE = 2e-4  # the solver rounds times to 2**-16 of a layer's
MEMORY_SLACK_BYTES = 4096.0
STEP_BYTES = 2**27  # in place of GiB, which would be one step for models this small
NARROW = read_narrowing(forbid=["interleaving"], fix=["offload=none|optimizer:host"])
SCOPES = st.sampled_from([NARROW, replace(NARROW, allowed=frozenset({"mixed-layers"}))])
"""The framework's own policies, or any for any layer."""
OBJECTIVES: tuple[Objective, ...] = ("iteration_s", "gpus", "cost_usd", "headroom_bytes")


@dataclass(frozen=True)
class Brute:
    gpus: np.ndarray
    iteration_s: np.ndarray
    peak_bytes: np.ndarray
    usable_bytes: float


def by_force(context: Context, narrowing: Narrowing) -> Brute:
    models = stage_model(context, enumerate_space(context, narrowing).strategy)
    offered = offers_activation_offload(context, models.strategy)
    keys = np.stack([models.strategy.pp, offered], axis=1)
    gpus, times, peaks = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for pp, is_offered in np.unique(keys, axis=0).tolist():
        rows = np.flatnonzero((keys == [pp, is_offered]).all(axis=1))
        for said in said_of(context, narrowing):
            if said == ("all", ("offloaded",)) and not is_offered:
                continue
            one = Asked(said).splits(context.model.num_blocks, pp, 1, is_offered=bool(is_offered))
            for some in np.array_split(rows, len(rows) * len(one[0]) // AT_ONCE + 1):
                many = models.take(np.repeat(some, len(one[0])))
                splits = np.tile(one[0], (len(some), 1)), np.tile(one[1], (1, len(some), 1))
                legal = many.fits(*splits)
                gpus.append(many.strategy.num_gpus[legal])
                times.append(many.iteration_s(*splits)[legal])
                peaks.append(many.peak_bytes(*splits).max(axis=1)[legal])
    usable = context.cluster.accelerator.hbm_bytes * (1.0 - context.margin_fraction)
    return Brute(
        gpus=np.concatenate(gpus).astype(float),
        iteration_s=np.concatenate(times),
        peak_bytes=np.concatenate(peaks),
        usable_bytes=usable,
    )


def figures(gpus: Any, time_s: Any, room: Any) -> dict[str, Any]:
    """All objectives, to be minimised; cost is in GPU seconds."""
    steps = -np.floor(room / STEP_BYTES + 1e-6)
    return {"iteration_s": time_s, "gpus": gpus, "cost_usd": gpus * time_s, "headroom_bytes": steps}


def points(brute: Brute, names: tuple[Objective, ...], slack_bytes: float = 0.0) -> np.ndarray:
    room = brute.usable_bytes - brute.peak_bytes - slack_bytes
    columns = figures(brute.gpus, brute.iteration_s, room)
    kept = room >= 0 if slack_bytes else np.ones(len(room), dtype=bool)
    return np.column_stack([columns[name][kept] for name in names])


def point(plan: Plan, names: tuple[Objective, ...]) -> np.ndarray:
    found = plan.estimate
    gpus = float(plan.strategy.num_gpus)
    values = figures(gpus, found.iter_time_s, found.memory.headroom_bytes)
    return np.array([values[name] for name in names])


def tolerances(names: tuple[Objective, ...]) -> np.ndarray:
    rounded = ("iteration_s", "cost_usd")
    return np.array([TIME_TOLERANCE if name in rounded else 0.0 for name in names])


def assert_complete(found: np.ndarray, brute: Brute, names: tuple[Objective, ...]) -> None:
    """No plan is beaten by more than rounding, and every way there is has a plan as good."""
    slack = 1.0 + tolerances(names)
    for one in found:
        beats = (points(brute, names) * slack < one - 1e-12).any(axis=1)
        no_worse = (points(brute, names) * slack <= one + 1e-12).all(axis=1)
        assert not (beats & no_worse & (tolerances(names) > 0).any()).any()
    for other in points(brute, names, MEMORY_SLACK_BYTES):
        assert (found <= other * slack + 1e-12).all(axis=1).any()


def make_case(*, layers: int, gpus: int, batch: int, memory: int) -> Context:
    model = tiny_model(num_layers=layers)
    context = tiny_context(model, f"{gpus}xh100-sxm", global_batch=batch, seq_len=1024)
    model_of_all = stage_model(context, enumerate_space(context, NARROW).strategy)
    fixed = float(model_of_all.overhead_bytes.max())
    cluster = with_hbm(context.cluster, fixed + memory * 2**20)
    return replace(context, cluster=replace(cluster, node=replace(cluster.node, usd_per_hour=1.0)))


CASES = st.builds(
    make_case,
    layers=st.integers(2, 4),
    gpus=st.sampled_from([8, 4, 2, 6]),
    batch=st.sampled_from([4, 8, 6]),
    memory=st.integers(300, 2500),
)
TRADED = st.sampled_from([pair for n in (2, 3) for pair in combinations(OBJECTIVES, n)])


def asked(context: Context, narrowing: Narrowing, aim: Aim, top: int = 3) -> Answer:
    with patch("planner.search.search.GIB", STEP_BYTES):
        return answer([context], top=top, narrowing=narrowing, aim=aim)


@settings(max_examples=of_all(14) + 1, derandomize=True)
@given(context=CASES, names=TRADED, scope=SCOPES)
def test_the_frontier_is_complete_and_nothing_on_it_is_dominated(
    context: Context, names: tuple[Objective, ...], scope: Narrowing
) -> None:
    brute = by_force(context, scope)
    result = asked(context, scope, Aim(pareto=names))
    event(f"{len(result.pareto)} points of {', '.join(names)}")
    if not len(brute.gpus):
        assert not result.pareto
        return
    assume(len(points(brute, names, MEMORY_SLACK_BYTES)))
    assert result.proved_optimal
    found = np.array([point(plan, names) for plan in result.pareto])
    assert_complete(found, brute, names)
    no_worse, better = found[:, None] <= found[None], found[:, None] < found[None]
    assert not (no_worse.all(axis=2) & better.any(axis=2)).any()


@settings(max_examples=of_all(10) + 1, derandomize=True)
@given(context=CASES, percent=st.integers(60, 300), with_budget=st.booleans(), scope=SCOPES)
def test_the_best_plan_of_every_objective_equals_brute_force_within_limits(
    context: Context, percent: int, with_budget: bool, scope: Narrowing
) -> None:
    context = replace(context, job=replace(context.job, total_tokens=10**9))
    brute = by_force(context, scope)
    assume(len(brute.gpus))
    strict = brute.peak_bytes <= brute.usable_bytes - MEMORY_SLACK_BYTES
    assume(strict.any())
    fastest_s = float(brute.iteration_s.min())
    tokens = context.job.tokens_per_iteration
    least_cost = float((brute.gpus * brute.iteration_s).min())
    usd_per_gpu_s = 1e9 / tokens / 3600.0 / context.cluster.node.num_accelerators
    limits = JobLimits(
        total_tokens=10**9,
        min_tokens_per_s=tokens / (fastest_s * percent / 100.0),
        budget_usd=1.05 * least_cost * usd_per_gpu_s if with_budget else None,
    )
    longest = limits.longest_on(brute.gpus, context.job, context.cluster.node)
    clear = np.abs(brute.iteration_s / longest - 1.0) > TIME_TOLERANCE
    assume(clear.all())
    keeps = brute.iteration_s <= longest
    event(f"some keep the limits: {keeps.any()}")
    for name in OBJECTIVES:
        result = asked(context, scope, Aim(objective=name, limits=limits), top=2)
        if not keeps.any():
            assert not result.plans
            continue
        if not (keeps & strict).any():
            continue
        assert not any(limits.missed_by(plan) for plan in result.plans)
        best = point(result.plans[0], (name,))[0]
        exact, sure = (points(brute, (name,))[kept].min() for kept in (keeps, keeps & strict))
        if name == "headroom_bytes":
            slack = replace(brute, peak_bytes=brute.peak_bytes + MEMORY_SLACK_BYTES)
            sure = points(slack, (name,))[keeps].min()
        if name == "iteration_s" and exact != pytest.approx(sure):
            continue
        assert best >= exact - abs(exact) * 1e-9
        assert best <= sure + abs(sure) * TIME_TOLERANCE
