"""Ranking: the k best strategies, and the frontier of time over GPU count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.ranking.candidates import Candidates
from planner.search.ranking.exploration import Exploration, Shapes
from planner.search.stages.solver import CLOSED, Split
from planner.units import Array, Index, Mask

FIRST_SHAPES, FIRST_ROWS, FIRST_SOLVED = 32, 256, 64


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
    """Return the ``number`` of ``rows`` with the least of their own values, ascending."""
    if len(rows) > number:
        least = np.sort(np.argpartition(own, number)[:number])
        rows, own = rows[least], own[least]
    return rows[np.argsort(own, kind="stable")]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Groups of one GPU count of which the k best are asked for, by ``weight · time``."""

    weight: Array  # Per group
    within: Mask  # Groups
    k: int = 1
    limit_s: float = float("inf")  # Time from which on strategies are of no interest

    def bounds(self, of: Shapes | Candidates, at: Index) -> Array:
        """Least values of some shapes or rows: their weighed bounds of time."""
        return np.asarray(self.weight[of.group[at]] * of.lower_s[at])

    def limits_s(self, value: float) -> Array:
        """Per group, the time from which on nothing is below a value."""
        return np.where(self.within, np.minimum(value / self.weight, self.limit_s), -np.inf)

    def kth_value(self, candidates: Candidates) -> float:
        """The k-th best value known."""
        group = candidates.group
        return candidates.kth_upper_s(self.within[group], self.k, self.weight[group])


def fastest_within(exploration: Exploration, within: Mask, k: int = 1) -> Field:
    """Field of the k fastest strategies of some groups."""
    return Field(weight=np.ones(len(exploration.shapes.gpus)), within=within, k=k)


def top_k(exploration: Exploration, group: int, k: int) -> Best:
    """The k fastest strategies (of different layouts) of a group of one GPU count.

    Ties are broken by the order of enumeration.
    """
    every = np.arange(len(exploration.shapes.gpus))
    return least_values(exploration, fastest_within(exploration, every == group, k))[0]


def least_values(exploration: Exploration, *fields: Field) -> list[Best]:
    """The k strategies (of different layouts) of least ``weight · time`` of every field.

    Best first: whichever has the least ``weight · lower bound of its time``, a shape or a strategy,
    is opened or refined next, until that bound passes the k-th best value known. No value can be
    below its bound, so nothing better is left out. What several fields ask for is done at once.
    """
    candidates = exploration.candidates
    all_shapes = exploration.shapes
    # Below a guess there are few, which are opened at once.
    num_shapes = FIRST_SHAPES if np.isinf(fields[0].limit_s) else 8 * FIRST_SHAPES
    num_rows = FIRST_ROWS
    while not exploration.is_late:
        to_open = list[tuple[Index, Array]]()
        to_refine = list[tuple[Index, Array]]()
        for field in fields:
            limits = field.limits_s(field.kth_value(candidates))
            shapes = exploration.shapes_below(limits)
            rows = np.flatnonzero(candidates.unrefined_below(limits) & candidates.may_lead())
            of_shapes = field.bounds(all_shapes, shapes)
            of_rows = field.bounds(candidates, rows)
            knows_none = len(rows) > 0 and not np.isfinite(limits).any()
            nearest = of_shapes.min(initial=np.inf) <= of_rows.min(initial=np.inf)
            if len(shapes) and nearest and not knows_none:
                to_open.append((least_first(of_shapes, shapes, num_shapes), limits))
            elif len(rows):
                to_refine.append((least_first(of_rows, rows, num_rows), limits))
        if to_open:
            exploration.open(*_all_of(to_open))
            num_shapes *= 4
        if to_refine:
            exploration.solving.refine(*_all_of(to_refine))
            num_rows *= 4
        if not to_open and not to_refine:
            break
    return [_solved(exploration, field) for field in fields]


def _all_of(asked: Sequence[tuple[Index, Array]]) -> tuple[Index, Array]:
    """The positions that are asked for, each once, and the largest limit of every group."""
    positions = np.concatenate([each for each, _ in asked])
    first = np.unique(positions, return_index=True)[1]
    return positions[np.sort(first)], np.max([limits for _, limits in asked], axis=0)


def _solved(exploration: Exploration, field: Field) -> Best:
    """Solve rows by ascending bound, seconds on GPUs of the best, until no other can be among k."""
    candidates, solving, shapes = exploration.candidates, exploration.solving, exploration.shapes
    # Least bound of a value among shapes that were not opened and rows that were not refined.
    unrefined = field.within[candidates.group] & ~candidates.is_refined
    of_shapes = field.bounds(shapes, np.flatnonzero(field.within[shapes.group]))
    of_rows = field.bounds(candidates, np.flatnonzero(unrefined))
    bound = float(np.concatenate([of_shapes, of_rows]).min(initial=np.inf))
    rows = np.flatnonzero(field.within[candidates.group] & candidates.is_refined)
    value = field.bounds(candidates, rows)
    order = np.argsort(value, kind="stable")
    rows, value = rows[order], value[order]
    best: list[tuple[float, int, int, Split]] = []
    own: dict[int, tuple[float, int, int, Split]] = {}  # the best of a layout
    known = field.kth_value(candidates) * (1.0 + CLOSED)
    batch = FIRST_SOLVED
    for position, row in enumerate(rows.tolist()):
        kth = min(known, best[field.k - 1][0]) if len(best) >= field.k else known
        if value[position] >= kth:
            break
        limits = field.limits_s(kth)
        group = int(candidates.group[row])
        weight = float(field.weight[group])
        layout = int(candidates.layout[row])
        limit_s = float(candidates.below_s(np.array([row]), limits)[0])
        if layout in own:
            limit_s = min(limit_s, own[layout][-1].iteration_s)
        if candidates.lower_s[row] >= limit_s:
            continue
        if not solving.is_prepared(row, limit_s) and not exploration.is_late:
            solving.prepare(rows[position : position + batch], limits)
            batch *= 2
            if candidates.lower_s[row] >= limit_s:
                continue
        split = candidates.splits.get(row) if exploration.is_late else solving.solve(row, limit_s)
        if split is None or not split.is_optimal:
            bound = min(bound, weight * float(candidates.lower_s[row]))
        if split is not None and split.iteration_s < limit_s:
            own[layout] = (weight * split.iteration_s, group, row, split)
            # By value, fewest GPUs, row.
            best = sorted(own.values())[: field.k]
    ranked = tuple(Ranked(row=row, split=split) for *_, row, split in best)
    if ranked:
        bound /= float(field.weight[candidates.group[ranked[0].row]])
    return Best(ranked=ranked, bound_s=bound)


def frontier(exploration: Exploration) -> list[Best]:
    """Fastest strategy for every useful number of GPUs, ascending.

    A number is useful when its best time beats that of every smaller one. Bounds prune numbers,
    shapes and rows; survivors are solved exactly.
    """
    candidates, all_shapes = exploration.candidates, exploration.shapes
    best_s = np.full(len(candidates.gpus), np.inf)
    per_group = 1
    while not exploration.is_late:
        np.minimum.at(best_s, candidates.group, candidates.upper_s)
        # The best time known of a number of GPUs and of all smaller ones.
        limit = np.minimum.accumulate(best_s)
        shapes = exploration.shapes_below(limit)
        if not len(shapes) and not candidates.unrefined_below(limit).any():
            break
        chosen = _first_per_group(all_shapes.lower_s, shapes, all_shapes.group, per_group)
        if len(chosen):
            exploration.open(chosen, limit)
        below = np.flatnonzero(candidates.unrefined_below(limit))
        chosen = _first_per_group(candidates.lower_s, below, candidates.group, 2 * per_group)
        exploration.solving.refine(chosen, limit)
        per_group *= 2
    limit = np.minimum.accumulate(best_s) * (1.0 + CLOSED)
    may_lead = candidates.is_refined & (candidates.lower_s <= limit[candidates.group])
    if not exploration.is_late:
        exploration.solving.prepare(np.flatnonzero(may_lead), limit)
    kept: list[Best] = []
    fastest_s, every, ones = float("inf"), np.arange(len(best_s)), np.ones(len(best_s))
    for group in every.tolist():
        found = _solved(exploration, Field(weight=ones, within=every == group, limit_s=fastest_s))
        if found.ranked:
            kept.append(found)
            fastest_s = found.ranked[0].split.iteration_s
    return kept


def _first_per_group(values: Array, rows: Index, group: Index, per_group: int) -> Index:
    """Return the ``per_group`` rows with the least value in every group."""
    order = rows[np.lexsort((rows, values[rows], group[rows]))]
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[rank < per_group]
