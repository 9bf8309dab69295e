"""Ranking: the k best strategies, and the frontier of time over GPU count."""

from dataclasses import dataclass

import numpy as np

from planner.search.ranking.candidates import Candidates
from planner.search.ranking.exploration import Exploration
from planner.search.stages.solver import CLOSED, Split
from planner.units import Array, Index

FIRST_SHAPES, FIRST_ROWS, FIRST_SOLVED = 256, 512, 32


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


def least_first(own: Array, rows: Index, number: int) -> Index:
    """Of ``rows``, the ``number`` with the least of their own values, ascending."""
    if len(rows) > number:
        least = np.sort(np.argpartition(own, number)[:number])
        rows, own = rows[least], own[least]
    return rows[np.argsort(own, kind="stable")]


def added(
    best: list[tuple[float, Ranked]], found: tuple[float, Ranked], k: int, candidates: Candidates
) -> None:
    """Insert by value, fewest GPUs, row; of one layout the best stays, of all the k best."""
    best.append(found)
    best.sort(key=lambda one: (one[0], candidates.group[one[1].row], one[1].row))
    layouts = [candidates.layout[one.row] for _, one in best]
    best[:] = [one for i, one in enumerate(best) if layouts[i] not in layouts[:i]][:k]


def top_k(exploration: Exploration, group: int, k: int, limit_s: float = float("inf")) -> Best:
    """The k fastest strategies (of different layouts) of a group of one GPU count, below a limit.

    Best first: whichever has the least bound, a shape or a strategy, is opened or refined next,
    until that bound passes the k-th best split known. Ties are broken by the order of enumeration.
    """
    candidates = exploration.candidates
    num_shapes, num_rows = FIRST_SHAPES, FIRST_ROWS
    limits, shapes = np.full(len(candidates.gpus), -np.inf), None
    while not exploration.is_late:
        limits[group] = min(candidates.kth_upper_s(candidates.group == group, k), limit_s)
        shapes = exploration.shapes_below(limits, shapes)
        rows = np.flatnonzero(candidates.unrefined_below(limits) & candidates.may_lead())
        if not len(shapes) and not len(rows):
            break
        least = candidates.lower_s[rows].min(initial=np.inf)
        knows_none = len(rows) > 0 and not np.isfinite(limits[group])
        bounds_s = exploration.shapes.lower_s[shapes]
        nearest = bounds_s.min(initial=np.inf) <= least
        if len(shapes) and nearest and not knows_none:
            exploration.open(least_first(bounds_s, shapes, num_shapes), limits)
            num_shapes *= 2
        else:
            chosen = least_first(candidates.lower_s[rows], rows, num_rows)
            exploration.refining.refine(chosen, limits)
            num_rows *= 2
    return _solve_in_order(exploration, group, k, limit_s=limit_s)


def _bound_of_unseen_s(exploration: Exploration, group: int) -> float:
    """Least bound of the group's shapes that were not opened and rows that were not refined."""
    shapes, candidates = exploration.shapes, exploration.candidates
    closed = shapes.is_closed & (shapes.group == group)
    unrefined = (candidates.group == group) & ~candidates.is_refined
    return min(
        float(shapes.lower_s[closed].min(initial=np.inf)),
        float(candidates.lower_s[unrefined].min(initial=np.inf)),
    )


def _solve_in_order(exploration: Exploration, group: int, k: int, *, limit_s: float) -> Best:
    """Solve rows by ascending bound until no other can be among the k best below ``limit_s``."""
    candidates, solving = exploration.candidates, exploration.solving
    rows = np.flatnonzero((candidates.group == group) & candidates.is_refined)
    order = rows[np.argsort(candidates.lower_s[rows], kind="stable")]
    best: list[tuple[float, Ranked]] = []
    bound_s = _bound_of_unseen_s(exploration, group)
    known_s = candidates.kth_upper_s(candidates.group == group, k) * (1.0 + CLOSED)
    own_s: dict[int, float] = {}
    batch = FIRST_SOLVED
    for position, row in enumerate(order.tolist()):
        layout = int(candidates.layout[row])
        kth = min(known_s, limit_s, own_s.get(layout, np.inf))
        kth = min(kth, float(candidates.limits_s(np.array([row]))[0]))
        if len(best) >= k:
            kth = min(kth, best[k - 1][0])
        if candidates.lower_s[row] >= kth:
            continue
        if not solving.is_prepared(row, kth) and not exploration.is_late:
            limits = np.full(len(candidates.gpus), min(known_s, limit_s))
            if len(best) >= k:
                limits = np.minimum(limits, best[k - 1][0])
            solving.prepare(order[position : position + batch], limits)
            batch *= 2
            if candidates.lower_s[row] >= kth:
                continue
        split = candidates.splits.get(row) if exploration.is_late else solving.solve(row, kth)
        if split is None or not split.is_optimal:
            bound_s = min(bound_s, float(candidates.lower_s[row]))
        if split is not None and split.iteration_s < kth:
            own_s[layout] = split.iteration_s
            added(best, (split.iteration_s, Ranked(row=row, split=split)), k, candidates)
    return Best(ranked=tuple(one for _, one in best), bound_s=bound_s)


def frontier(exploration: Exploration) -> list[Best]:
    """Fastest strategy for every useful number of GPUs, ascending.

    A number is useful when its best time beats that of every smaller one. Bounds prune numbers,
    shapes and rows; survivors are solved exactly.
    """
    candidates, all_shapes = exploration.candidates, exploration.shapes
    best_s = np.full(len(candidates.gpus), np.inf)
    np.minimum.at(best_s, candidates.group, candidates.upper_s)
    per_group, shapes = 1, None
    while not exploration.is_late:
        limit = _limits_s(best_s)
        shapes = exploration.shapes_below(limit, shapes)
        if not len(shapes) and not candidates.unrefined_below(limit).any():
            break
        chosen = _first_per_group(all_shapes.lower_s, shapes, all_shapes.group, per_group)
        if len(chosen):
            exploration.open(chosen, limit)
        below = np.flatnonzero(candidates.unrefined_below(limit))
        chosen = _first_per_group(candidates.lower_s, below, candidates.group, 2 * per_group)
        exploration.refining.refine(chosen, limit)
        np.minimum.at(best_s, candidates.group, candidates.upper_s)
        per_group *= 2
    return _solve_frontier(exploration, best_s)


def _limits_s(best_s: Array) -> Array:
    """Per GPU count (ascending): the best known time of it and of all smaller ones."""
    limit: Array = np.minimum.accumulate(best_s)
    return limit


def _open_rows(candidates: Candidates, best_s: Array) -> Index:
    """Refined rows that may be on the frontier, by group, those of the least bound first."""
    limit = _limits_s(best_s)[candidates.group] * (1.0 + CLOSED)
    rows = np.flatnonzero(candidates.is_refined & (candidates.lower_s <= limit))
    return rows[np.lexsort((candidates.lower_s[rows], candidates.group[rows]))]


def _solve_first_rows(exploration: Exploration, best_s: Array) -> None:
    """Solve the most promising row of every group, so that limits of the others are tight."""
    candidates, solving = exploration.candidates, exploration.solving
    rows = _open_rows(candidates, best_s)
    _, starts = np.unique(candidates.group[rows], return_index=True)
    rows, limit = rows[starts], _limits_s(best_s) * (1.0 + CLOSED)
    if exploration.is_late:
        return
    solving.prepare(rows, limit)
    for row in rows.tolist():
        group = candidates.group[row]
        if not exploration.is_late and candidates.lower_s[row] < limit[group]:
            solving.solve(row, float(limit[group]))
            best_s[group] = min(best_s[group], candidates.upper_s[row])


def _solve_frontier(exploration: Exploration, best_s: Array) -> list[Best]:
    _solve_first_rows(exploration, best_s)
    candidates = exploration.candidates
    rows = _open_rows(candidates, best_s)
    if not exploration.is_late:
        exploration.solving.prepare(rows, _limits_s(best_s) * (1.0 + CLOSED))
    kept: list[Best] = []
    fastest_s = float("inf")
    for group in np.unique(candidates.group[rows]).tolist():
        found = _solve_in_order(exploration, group, 1, limit_s=fastest_s)
        if found.ranked:
            kept.append(found)
            fastest_s = found.ranked[0].split.iteration_s
    return kept


def _first_per_group(values: Array, rows: Index, group: Index, per_group: int) -> Index:
    """Of some rows, the ``per_group`` with the least value in every group."""
    order = rows[np.lexsort((rows, values[rows], group[rows]))]
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[rank < per_group]
