"""What a search looks for beside time: the fewest GPUs, the least GPU time, the fastest of all.

Every limit of a job (deadline, rate, budget) bounds the iteration time from above at each number
of GPUs, so limits are one column of times.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.search.ranking.candidates import Candidates
from planner.search.ranking.rank import (
    FIRST_ROWS,
    FIRST_SHAPES,
    FIRST_SOLVED,
    Best,
    Ranked,
    kth_smallest,
    least_first,
    top_k,
)
from planner.search.stages.solver import CLOSED
from planner.units import Array

Order = Literal["most_gpus", "fewest_gpus", "fastest", "gpu_seconds"]
ROUNDING = 1e-9
"""Relative slack of limits, so that rounding drops no plan that just keeps one."""


def unlimited(num_gpus: Array) -> Array:
    """No limit at any number of GPUs."""
    return np.full(len(num_gpus), np.inf)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """In which order plans are better, and which keep the limits."""

    order: Order = "most_gpus"
    """``most_gpus``: the fastest on the most GPUs that can be used; ``fewest_gpus``: by GPUs,
    then by time; ``fastest`` and ``gpu_seconds``: least time, or GPUs times time, on any
    number of GPUs."""
    longest_s: Callable[[Array], Array] = unlimited
    """For numbers of GPUs the longest iteration that keeps all limits."""


FASTEST_ON_MOST = Goal()


def best_of(candidates: Candidates, goal: Goal, k: int) -> Best:
    """The k best strategies under a goal; the bound is in seconds on the best one's GPUs.

    Why searching by time is exact for every order: with the number of GPUs fixed, GPU seconds
    (so cost and energy, which are proportional to them) and all limits are monotone in time, so
    the k best of a count are its k fastest, below the time its limits allow.
    """
    gpus = candidates.gpus.astype(np.float64)
    longest_s = np.asarray(goal.longest_s(gpus)) * (1.0 + ROUNDING)
    if goal.order == "most_gpus":
        return _on_most_gpus(candidates, k, longest_s)
    if goal.order == "fewest_gpus":
        return _on_fewest_gpus(candidates, k, longest_s)
    weight = gpus if goal.order == "gpu_seconds" else np.ones(len(gpus))
    return _least_value(candidates, k, weight, longest_s)


def _can_keep(candidates: Candidates, longest_s: Array) -> list[int]:
    """Groups with a shape that may keep its limit, in ascending numbers of GPUs."""
    least = np.full(len(candidates.gpus), np.inf)
    np.minimum.at(least, candidates.shape_group, candidates.shape_lower_s)
    groups: list[int] = np.flatnonzero(least < longest_s).tolist()
    return groups


def _on_most_gpus(candidates: Candidates, k: int, longest_s: Array) -> Best:
    """The k fastest on the largest number of GPUs on which a strategy keeps the limits.

    The bound holds for larger numbers too, where a time limit kept them from being ruled out.
    """
    bound_s = float("inf")
    for group in reversed(_can_keep(candidates, longest_s)):
        best = top_k(candidates, group, k, float(longest_s[group]))
        bound_s = min(bound_s, best.bound_s)
        if best.ranked:
            return replace(best, bound_s=bound_s)
    return Best(ranked=(), bound_s=bound_s)


def _on_fewest_gpus(candidates: Candidates, k: int, longest_s: Array) -> Best:
    """Ascending numbers of GPUs until k strategies keep the limits.

    The bound is that of the first number with one.
    """
    ranked: list[Ranked] = []
    bound_s = float("inf")
    for group in _can_keep(candidates, longest_s):
        best = top_k(candidates, group, k - len(ranked), float(longest_s[group]))
        if not ranked:
            bound_s = min(bound_s, best.bound_s)
        ranked += best.ranked
        if len(ranked) == k:
            break
    return Best(ranked=tuple(ranked), bound_s=bound_s)


def _least_value(candidates: Candidates, k: int, weight: Array, longest_s: Array) -> Best:
    """The k strategies of least ``weight · time`` over all numbers of GPUs; ``weight`` per group.

    Best first, as for one number of GPUs, but by value: whichever has the least ``weight · lower
    bound of its time``, a shape or a strategy, is opened or refined next, until that bound passes
    the k-th best value known. No value can be below its bound, so nothing better is left out.
    """
    num_shapes, num_rows = FIRST_SHAPES, FIRST_ROWS
    shape_value = weight[candidates.shape_group] * candidates.shape_lower_s
    while not candidates.is_late:
        limit_s = _limits_s(candidates, k, weight, longest_s)
        value = weight[candidates.group] * candidates.lower_s
        shapes = np.flatnonzero(
            candidates.is_closed & (candidates.shape_lower_s < limit_s[candidates.shape_group])
        )
        rows = np.flatnonzero(
            ~candidates.is_refined & (candidates.lower_s < limit_s[candidates.group])
        )
        if not len(shapes) and not len(rows):
            break
        if len(shapes) and shape_value[shapes].min() <= value[rows].min(initial=np.inf):
            candidates.open(least_first(shape_value, shapes, num_shapes), limit_s)
            num_shapes *= 2
        else:
            candidates.refine(least_first(value, rows, num_rows), limit_s)
            num_rows *= 2
    return _solved(candidates, k, weight, longest_s)


def _limits_s(candidates: Candidates, k: int, weight: Array, longest_s: Array) -> Array:
    """Per group, a time from which on nothing keeps the limits or is among the k best values."""
    keeps = candidates.upper_s < longest_s[candidates.group]
    known = (weight[candidates.group] * candidates.upper_s)[keeps]
    return np.minimum(longest_s, kth_smallest(known, k) / weight)


def _solved(candidates: Candidates, k: int, weight: Array, longest_s: Array) -> Best:
    """Solve rows by ascending bound of their value until no other can be among the k best."""
    rows = np.flatnonzero(candidates.is_refined)
    value = weight[candidates.group] * candidates.lower_s
    order = rows[np.argsort(value[rows], kind="stable")]
    best: list[tuple[float, Ranked]] = []
    bound = _bound_of_unseen(candidates, weight)
    known_s = _limits_s(candidates, k, weight, longest_s) * (1.0 + CLOSED)
    batch = FIRST_SOLVED
    for position, row in enumerate(order.tolist()):
        group = int(candidates.group[row])
        kth = best[k - 1][0] if len(best) >= k else np.inf
        if value[row] >= kth:
            break
        limit_s = min(kth / float(weight[group]), float(longest_s[group]), float(known_s[group]))
        if candidates.lower_s[row] >= limit_s:
            continue
        if not candidates.is_prepared(row, limit_s) and not candidates.is_late:
            limits = np.minimum(known_s, kth / weight)
            candidates.prepare(order[position : position + batch], limits)
            batch *= 2
            if candidates.lower_s[row] >= limit_s:
                continue
        split = candidates.splits.get(row) if candidates.is_late else candidates.solve(row, limit_s)
        if split is None or not split.is_optimal:
            bound = min(bound, float(weight[group] * candidates.lower_s[row]))
        if split is not None and split.iteration_s < limit_s:
            best.append((float(weight[group]) * split.iteration_s, Ranked(row=row, split=split)))
            best.sort(key=lambda one: (one[0], candidates.group[one[1].row], one[1].row))
            del best[k:]
    if not best:
        return Best(ranked=(), bound_s=float("inf"))
    first = float(weight[candidates.group[best[0][1].row]])
    return Best(ranked=tuple(one for _, one in best), bound_s=bound / first)


def _bound_of_unseen(candidates: Candidates, weight: Array) -> float:
    """Least bound of a value among shapes that were not opened and rows that were not refined."""
    closed, unrefined = candidates.is_closed, ~candidates.is_refined
    shapes = weight[candidates.shape_group] * candidates.shape_lower_s
    rows = weight[candidates.group] * candidates.lower_s
    return min(
        float(shapes[closed].min(initial=np.inf)), float(rows[unrefined].min(initial=np.inf))
    )
