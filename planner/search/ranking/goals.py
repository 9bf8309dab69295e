"""What a search looks for beside time: the fewest GPUs, the least GPU time, the fastest of all.

Every limit of a job (deadline, rate, budget) bounds the iteration time from above at each number
of GPUs, so limits are one column of times.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.search.ranking.candidates import Candidates
from planner.search.ranking.exploration import Exploration
from planner.search.ranking.rank import (
    FIRST_ROWS,
    FIRST_SHAPES,
    FIRST_SOLVED,
    Best,
    Ranked,
    added,
    least_first,
    top_k,
)
from planner.search.stages.solver import CLOSED
from planner.units import Array

Order = Literal["at_most", "fewest_gpus", "fastest", "gpu_seconds"]
MOST_HALVINGS = 3
"""Rungs of a ladder of GPU counts below the best plan's, the fewest apart."""
ROUNDING = 1e-9
"""Relative slack of limits, so that rounding drops no plan that just keeps one."""


def unlimited(num_gpus: Array) -> Array:
    """No limit at any number of GPUs."""
    return np.full(len(num_gpus), np.inf)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """In which order plans are better, and which keep the limits."""

    order: Order = "at_most"
    """``at_most``: the fastest of all, and the next ones on as many GPUs as it uses, of equal
    ones the fewest; ``fewest_gpus``: by GPUs, then by time; ``fastest`` and ``gpu_seconds``:
    least time, or GPUs times time, on any number of GPUs."""
    longest_s: Callable[[Array], Array] = unlimited
    """For numbers of GPUs the longest iteration that keeps all limits."""


FASTEST_AT_MOST = Goal()


def best_of(exploration: Exploration, goal: Goal, k: int) -> Best:
    """The k best strategies under a goal; the bound is in seconds on the best one's GPUs.

    Why searching by time is exact for every order: with the number of GPUs fixed, GPU seconds
    (so cost and energy, which are proportional to them) and all limits are monotone in time, so
    the k best of a count are its k fastest, below the time its limits allow.
    """
    candidates = exploration.candidates
    gpus = candidates.gpus.astype(np.float64)
    exploration.keep_to(np.asarray(goal.longest_s(gpus)) * (1.0 + ROUNDING))
    if goal.order == "fewest_gpus":
        return _on_fewest_gpus(exploration, k)
    if goal.order == "gpu_seconds":
        return _least_value(exploration, k, gpus)
    ones = np.ones(len(gpus))
    if goal.order == "fastest":
        return _least_value(exploration, k, ones)
    fastest = _least_value(exploration, 1, ones)
    if not fastest.ranked or k == 1:
        return fastest
    best = top_k(exploration, int(candidates.group[fastest.ranked[0].row]), k)
    return replace(best, bound_s=min(best.bound_s, fastest.bound_s))


def ladder(exploration: Exploration, num_gpus: int) -> list[Best]:
    """The best on at most a half, a quarter, ... of so many GPUs, and on the fewest that hold it.

    Whatever the limits of a goal; descending in GPUs.
    """
    candidates = exploration.candidates
    steps = []
    for halvings in range(1, MOST_HALVINGS + 1):
        within = candidates.gpus <= num_gpus // 2**halvings
        exploration.keep_to(np.where(within, np.inf, -np.inf))
        found = _least_value(exploration, 1, np.ones(len(within)))
        steps += [found] if found.ranked else []
    exploration.keep_to(unlimited(candidates.gpus))
    if len(steps) == MOST_HALVINGS:
        steps.append(_on_fewest_gpus(exploration, 1))
    counts = [int(candidates.group[step.ranked[0].row]) for step in steps if step.ranked]
    return [step for i, step in enumerate(steps) if step.ranked and counts[i] not in counts[:i]]


def _on_fewest_gpus(exploration: Exploration, k: int) -> Best:
    """Ascending numbers of GPUs until k strategies keep the limits.

    The bound is that of the first number with one.
    """
    candidates = exploration.candidates
    ranked: list[Ranked] = []
    bound_s = float("inf")
    possible = exploration.shapes_below(unlimited(candidates.gpus))
    groups = np.concatenate([exploration.shapes.group[possible], candidates.group])
    for group in np.unique(groups).tolist():
        best = top_k(exploration, group, k - len(ranked))
        if not ranked:
            bound_s = min(bound_s, best.bound_s)
        ranked += best.ranked
        if len(ranked) == k:
            break
    return Best(ranked=tuple(ranked), bound_s=bound_s)


def _least_value(exploration: Exploration, k: int, weight: Array) -> Best:
    """The k strategies of least ``weight · time`` over all numbers of GPUs; ``weight`` per group.

    Best first, as for one number of GPUs, but by value: whichever has the least ``weight · lower
    bound of its time``, a shape or a strategy, is opened or refined next, until that bound passes
    the k-th best value known. No value can be below its bound, so nothing better is left out.
    """
    candidates, all_shapes = exploration.candidates, exploration.shapes
    num_shapes, num_rows = FIRST_SHAPES, FIRST_ROWS
    shapes = None
    while not exploration.is_late:
        limit_s = _limits_s(candidates, k, weight)
        shapes = exploration.shapes_below(limit_s, shapes)
        shape_value = weight[all_shapes.group[shapes]] * all_shapes.lower_s[shapes]
        value = weight[candidates.group] * candidates.lower_s
        rows = np.flatnonzero(candidates.unrefined_below(limit_s))
        if not len(shapes) and not len(rows):
            break
        knows_none = len(rows) > 0 and not np.isfinite(limit_s).any()
        nearest = shape_value.min(initial=np.inf) <= value[rows].min(initial=np.inf)
        if len(shapes) and nearest and not knows_none:
            exploration.open(least_first(shape_value, shapes, num_shapes), limit_s)
            num_shapes *= 2
        else:
            exploration.refining.refine(least_first(value[rows], rows, num_rows), limit_s)
            num_rows *= 2
    return _solved(exploration, k, weight)


def _limits_s(candidates: Candidates, k: int, weight: Array) -> Array:
    """Per group, a time from which on nothing is among the k best values."""
    everything = np.ones(len(candidates.group), dtype=bool)
    limits: Array = candidates.kth_upper_s(everything, k, weight[candidates.group]) / weight
    return limits


def _solved(exploration: Exploration, k: int, weight: Array) -> Best:
    """Solve rows by ascending bound of their value until no other can be among the k best."""
    candidates, solving = exploration.candidates, exploration.solving
    rows = np.flatnonzero(candidates.is_refined)
    value = weight[candidates.group] * candidates.lower_s
    order = rows[np.argsort(value[rows], kind="stable")]
    best: list[tuple[float, Ranked]] = []
    bound = _bound_of_unseen(exploration, weight)
    known_s = _limits_s(candidates, k, weight) * (1.0 + CLOSED)
    batch = FIRST_SOLVED
    for position, row in enumerate(order.tolist()):
        group = int(candidates.group[row])
        kth = best[k - 1][0] if len(best) >= k else np.inf
        if value[row] >= kth:
            break
        longest = float(candidates.limits_s(np.array([row]))[0])
        limit_s = min(kth / float(weight[group]), float(known_s[group]), longest)
        if candidates.lower_s[row] >= limit_s:
            continue
        if not solving.is_prepared(row, limit_s) and not exploration.is_late:
            limits = np.minimum(known_s, kth / weight)
            solving.prepare(order[position : position + batch], limits)
            batch *= 2
            if candidates.lower_s[row] >= limit_s:
                continue
        split = candidates.splits.get(row) if exploration.is_late else solving.solve(row, limit_s)
        if split is None or not split.is_optimal:
            bound = min(bound, float(weight[group] * candidates.lower_s[row]))
        if split is not None and split.iteration_s < limit_s:
            found = Ranked(row=row, split=split)
            added(best, (float(weight[group]) * split.iteration_s, found), k, candidates)
    if not best:
        return Best(ranked=(), bound_s=float("inf"))
    first = float(weight[candidates.group[best[0][1].row]])
    return Best(ranked=tuple(one for _, one in best), bound_s=bound / first)


def _bound_of_unseen(exploration: Exploration, weight: Array) -> float:
    """Least bound of a value among shapes that were not opened and rows that were not refined."""
    candidates, all_shapes = exploration.candidates, exploration.shapes
    closed, unrefined = all_shapes.is_closed, ~candidates.is_refined
    shapes = weight[all_shapes.group] * all_shapes.lower_s
    rows = weight[candidates.group] * candidates.lower_s
    return min(
        float(shapes[closed].min(initial=np.inf)), float(rows[unrefined].min(initial=np.inf))
    )
