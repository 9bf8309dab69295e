"""Ranking: the k best strategies, and the frontier of time over GPU count."""

from dataclasses import dataclass

import numpy as np

from planner.search.candidates import Candidates
from planner.search.solver import Split
from planner.units import Array, Index

FIRST_BATCH = 256
USEFUL_GAIN_FRACTION = 0.01
"""A larger number of GPUs is on the frontier when it is this much faster than every smaller."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A strategy's row with its best split."""

    row: int
    split: Split


def _kth_smallest(values: Array, k: int) -> float:
    if len(values) < k:
        return float("inf")
    return float(np.partition(values, k - 1)[k - 1])


def top_k(candidates: Candidates, rows: Index, k: int) -> list[Ranked]:
    """The k fastest of ``rows``: refine in order of the bound, stop when it passes the k-th best.

    Ties are broken by the order of enumeration.
    """
    order = rows[np.argsort(candidates.lower_s[rows], kind="stable")]
    done, batch = 0, FIRST_BATCH
    while done < len(order):
        kth = _kth_smallest(candidates.upper_s[order[:done]], k)
        if candidates.lower_s[order[done]] >= kth:
            break
        candidates.refine(order[done : done + batch])
        done, batch = done + batch, batch * 2
    return _solve_in_order(candidates, order[:done], k, limit_s=float("inf"))


def _solve_in_order(candidates: Candidates, rows: Index, k: int, *, limit_s: float) -> list[Ranked]:
    """Solve rows by ascending bound until no other can be among the k best below ``limit_s``."""
    order = rows[np.argsort(candidates.lower_s[rows], kind="stable")]
    best: list[Ranked] = []
    for row in order.tolist():
        kth = best[k - 1].split.iteration_s if len(best) >= k else limit_s
        if candidates.lower_s[row] >= min(kth, limit_s):
            break
        split = candidates.solve(row)
        if split is not None and split.iteration_s < limit_s:
            best.append(Ranked(row=row, split=split))
            best.sort(key=lambda ranked: (ranked.split.iteration_s, ranked.row))
            del best[k:]
    return best


def _useful_limit_s(best_s: Array) -> Array:
    """Per GPU count (ascending): a time from which on it cannot join the frontier.

    The best known time over all smaller counts. A smaller count that was not kept may be up to
    USEFUL_GAIN_FRACTION faster than the fastest kept one, never more, so the gate
    ``fastest kept · (1 - USEFUL_GAIN_FRACTION)`` is at most this.
    """
    limit = np.full(len(best_s), np.inf)
    limit[1:] = np.minimum.accumulate(best_s)[:-1]
    return limit


def frontier(candidates: Candidates) -> list[Ranked]:
    """Fastest strategy for every useful number of GPUs, ascending.

    A count is useful when its best time beats that of every smaller kept count by at least
    USEFUL_GAIN_FRACTION. Bounds prune counts and rows; survivors are solved exactly.
    """
    if not len(candidates.strategy):
        return []
    gpus, group = np.unique(candidates.strategy.num_gpus, return_inverse=True)
    best_s = np.full(len(gpus), np.inf)
    for per_count in (1, 8, len(candidates.strategy)):
        limit = np.minimum(_useful_limit_s(best_s), best_s)
        open_rows = np.flatnonzero((candidates.lower_s < limit[group]) & ~candidates.is_refined)
        candidates.refine(_first_per_group(candidates, open_rows, group, per_count))
        np.minimum.at(best_s, group, candidates.upper_s)
    limit = _useful_limit_s(best_s)
    kept: list[Ranked] = []
    rows = np.flatnonzero(candidates.is_refined & (candidates.lower_s < limit[group]))
    if not len(rows):
        return []
    rows = rows[np.argsort(group[rows], kind="stable")]
    counts, starts = np.unique(group[rows], return_index=True)
    fastest_s = float("inf")
    for _, members in zip(counts, np.split(rows, starts[1:]), strict=True):
        gate = fastest_s * (1.0 - USEFUL_GAIN_FRACTION)
        best = _solve_in_order(candidates, members, 1, limit_s=gate)
        if best:
            kept.append(best[0])
            fastest_s = best[0].split.iteration_s
    return kept


def _first_per_group(candidates: Candidates, rows: Index, group: Index, per_group: int) -> Index:
    """Of ``rows``, the ``per_group`` with the least bound in every group."""
    order = rows[np.lexsort((rows, candidates.lower_s[rows], group[rows]))]
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[rank < per_group]
