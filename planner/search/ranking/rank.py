"""Ranking: the k best strategies, and the frontier of time over GPU count."""

from dataclasses import dataclass

import numpy as np

from planner.search.ranking.candidates import Candidates
from planner.search.stages.solver import CLOSED, Split
from planner.units import Array, Index, Mask

FIRST_SHAPES, FIRST_ROWS, FIRST_SOLVED = 64, 128, 16


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A strategy's row with its best split."""

    row: int
    split: Split


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best strategies found, and a bound below which none can be that was not looked at."""

    ranked: tuple[Ranked, ...]
    bound_s: float


def kth_smallest(values: Array, k: int) -> float:
    """The k-th smallest value, infinite where there are fewer."""
    if len(values) < k:
        return float("inf")
    return float(np.partition(values, k - 1)[k - 1])


def least_first(values: Array, rows: Index, number: int) -> Index:
    """Of ``rows``, the ``number`` with the least value; ties by position."""
    return rows[np.argsort(values[rows], kind="stable")[:number]]


def top_k(candidates: Candidates, group: int, k: int, limit_s: float = float("inf")) -> Best:
    """The k fastest strategies of a group of one GPU count, below a limit.

    Best first: whichever has the least bound, a shape or a strategy, is opened or refined next,
    until that bound passes the k-th best split known. Ties are broken by the order of enumeration.
    """
    num_shapes, num_rows = FIRST_SHAPES, FIRST_ROWS
    limits = np.full(len(candidates.gpus), -np.inf)
    while not candidates.is_late:
        mine = candidates.group == group
        limits[group] = min(kth_smallest(candidates.upper_s[mine], k), limit_s)
        shapes = np.flatnonzero(
            candidates.is_closed
            & (candidates.shape_group == group)
            & (candidates.shape_lower_s < limits[group])
        )
        rows = np.flatnonzero(mine & ~candidates.is_refined & (candidates.lower_s < limits[group]))
        if not len(shapes) and not len(rows):
            break
        least = candidates.lower_s[rows].min(initial=np.inf)
        if len(shapes) and candidates.shape_lower_s[shapes].min() <= least:
            candidates.open(least_first(candidates.shape_lower_s, shapes, num_shapes), limits)
            num_shapes *= 2
        else:
            candidates.refine(least_first(candidates.lower_s, rows, num_rows), limits)
            num_rows *= 2
    return _solve_in_order(candidates, group, k, limit_s=limit_s)


def _bound_of_unseen_s(candidates: Candidates, group: int) -> float:
    """Least bound of the group's shapes that were not opened and rows that were not refined."""
    closed = candidates.is_closed & (candidates.shape_group == group)
    unrefined = (candidates.group == group) & ~candidates.is_refined
    return min(
        float(candidates.shape_lower_s[closed].min(initial=np.inf)),
        float(candidates.lower_s[unrefined].min(initial=np.inf)),
    )


def _solve_in_order(candidates: Candidates, group: int, k: int, *, limit_s: float) -> Best:
    """Solve rows by ascending bound until no other can be among the k best below ``limit_s``."""
    rows = np.flatnonzero((candidates.group == group) & candidates.is_refined)
    order = rows[np.argsort(candidates.lower_s[rows], kind="stable")]
    best: list[Ranked] = []
    bound_s = _bound_of_unseen_s(candidates, group)
    known_s = kth_smallest(candidates.upper_s[rows], k) * (1.0 + CLOSED)
    batch = FIRST_SOLVED
    for position, row in enumerate(order.tolist()):
        kth = min(known_s, limit_s)
        if len(best) >= k:
            kth = min(kth, best[k - 1].split.iteration_s)
        if candidates.lower_s[row] >= kth:
            continue
        if not candidates.is_prepared(row, kth) and not candidates.is_late:
            limits = np.full(len(candidates.gpus), kth)
            candidates.prepare(order[position : position + batch], limits)
            batch *= 2
            if candidates.lower_s[row] >= kth:
                continue
        split = candidates.splits.get(row) if candidates.is_late else candidates.solve(row, kth)
        if split is None or not split.is_optimal:
            bound_s = min(bound_s, float(candidates.lower_s[row]))
        if split is not None and split.iteration_s < limit_s:
            best.append(Ranked(row=row, split=split))
            best.sort(key=lambda ranked: (ranked.split.iteration_s, ranked.row))
            del best[k:]
    return Best(ranked=tuple(best), bound_s=bound_s)


def frontier(candidates: Candidates) -> list[Best]:
    """Fastest strategy for every useful number of GPUs, ascending.

    A number is useful when its best time beats that of every smaller one. Bounds prune numbers,
    shapes and rows; survivors are solved exactly.
    """
    best_s = np.full(len(candidates.gpus), np.inf)
    np.minimum.at(best_s, candidates.group, candidates.upper_s)
    per_group = 1
    while not candidates.is_late:
        limit = _limits_s(best_s)
        shapes = candidates.is_closed & (candidates.shape_lower_s < limit[candidates.shape_group])
        rows = ~candidates.is_refined & (candidates.lower_s < limit[candidates.group])
        if not shapes.any() and not rows.any():
            break
        chosen = _first_per_group(
            candidates.shape_lower_s, shapes, candidates.shape_group, per_group
        )
        if len(chosen):
            candidates.open(chosen, limit)
        rows = ~candidates.is_refined & (candidates.lower_s < limit[candidates.group])
        chosen = _first_per_group(candidates.lower_s, rows, candidates.group, 2 * per_group)
        candidates.refine(chosen, limit)
        np.minimum.at(best_s, candidates.group, candidates.upper_s)
        per_group *= 2
    return _solve_frontier(candidates, best_s)


def _limits_s(best_s: Array) -> Array:
    """Per GPU count (ascending): the best known time of it and of all smaller ones."""
    limit: Array = np.minimum.accumulate(best_s)
    return limit


def _open_rows(candidates: Candidates, best_s: Array) -> Index:
    """Refined rows that may be on the frontier, by group, those of the least bound first."""
    limit = _limits_s(best_s)[candidates.group] * (1.0 + CLOSED)
    rows = np.flatnonzero(candidates.is_refined & (candidates.lower_s <= limit))
    return rows[np.lexsort((candidates.lower_s[rows], candidates.group[rows]))]


def _solve_first_rows(candidates: Candidates, best_s: Array) -> None:
    """Solve the most promising row of every group, so that limits of the others are tight."""
    rows = _open_rows(candidates, best_s)
    _, starts = np.unique(candidates.group[rows], return_index=True)
    rows, limit = rows[starts], _limits_s(best_s) * (1.0 + CLOSED)
    if candidates.is_late:
        return
    candidates.prepare(rows, limit)
    for row in rows.tolist():
        group = candidates.group[row]
        if not candidates.is_late and candidates.lower_s[row] < limit[group]:
            candidates.solve(row, float(limit[group]))
            best_s[group] = min(best_s[group], candidates.upper_s[row])


def _solve_frontier(candidates: Candidates, best_s: Array) -> list[Best]:
    _solve_first_rows(candidates, best_s)
    rows = _open_rows(candidates, best_s)
    if not candidates.is_late:
        candidates.prepare(rows, _limits_s(best_s) * (1.0 + CLOSED))
    kept: list[Best] = []
    fastest_s = float("inf")
    for group in np.unique(candidates.group[rows]).tolist():
        found = _solve_in_order(candidates, group, 1, limit_s=fastest_s)
        if found.ranked:
            kept.append(found)
            fastest_s = found.ranked[0].split.iteration_s
    return kept


def _first_per_group(values: Array, chosen: Mask, group: Index, per_group: int) -> Index:
    """Of the chosen rows, the ``per_group`` with the least value in every group."""
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((rows, values[rows], group[rows]))]
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[rank < per_group]
