"""Goals of a search other than time: the fewest GPUs, the least GPU time, the fastest of all.

Every limit of a job (deadline, rate, budget) bounds the iteration time from above at each number
of GPUs, so limits are one column of times.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.search.ranking.exploration import Exploration
from planner.search.ranking.penalties import TIE_FRACTION
from planner.search.ranking.rank import Best, Field, Ranked, fastest_within, least_values, top_k
from planner.units import Array, Index

# Families of shapes that take about as long as what every call takes.
NUM_AHEAD = 2**9

Order = Literal["at_most", "fewest_gpus", "fastest", "gpu_seconds"]


def without_job_limits(num_gpus: Array) -> Array:
    """No limit at any number of GPUs."""
    return np.full(len(num_gpus), np.inf)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Order of plans, best first, and the limits on them."""

    order: Order = "at_most"
    """``at_most``: the fastest of all, and the next ones on as many GPUs as it uses, of equal
    ones the fewest; ``fewest_gpus``: by GPUs, then by time; ``fastest`` and ``gpu_seconds``:
    least time, or GPUs times time, on any number of GPUs."""
    longest_s: Callable[[Array], Array] = without_job_limits
    """Longest iteration within all limits, for numbers of GPUs."""


FASTEST_AT_MOST = Goal()


def best_of(exploration: Exploration, goal: Goal, k: int, guess_s: float = float("inf")) -> Best:
    """The k best strategies under a goal; the bound is in seconds on the best one's GPUs.

    Why searching by time is exact for every order: with the number of GPUs fixed, GPU seconds
    (so cost and energy, which are proportional to them) and all limits are monotone in time, so
    the k best of a count are its k fastest, below the time its limits allow. First is looked
    below ``guess_s``, a weighed time, and beyond it where fewer are found.
    """
    candidates = exploration.candidates
    gpus = candidates.gpus.astype(np.float64)
    every = np.ones(len(candidates.gpus), dtype=bool)
    # 1e-9: so that rounding drops no plan that just keeps a limit.
    exploration.keep_to(np.asarray(goal.longest_s(gpus)) * (1.0 + 1e-9))
    if goal.order == "fewest_gpus":
        return _on_fewest_gpus(exploration, k)
    field = Field(
        weight=gpus if goal.order == "gpu_seconds" else np.ones(len(gpus)),
        within=every,
        k=1 if goal.order == "at_most" else k,
    )
    for limit_s in dict.fromkeys((guess_s, 1.1 * guess_s, 1.3 * guess_s, np.inf)):
        (first,) = least_values(exploration, replace(field, limit_s=limit_s))
        if len(first.ranked) == field.k:
            break
    if field.k == k or not first.ranked:
        return first
    best = top_k(exploration, int(candidates.group[first.ranked[0].row]), k)
    return replace(best, bound_s=min(best.bound_s, first.bound_s))


def simplest_of(
    exploration: Exploration, goal: Goal, best_s: Mapping[int, float], k: int
) -> list[Best]:
    """The simplest layouts that tie with the best one of each of some numbers of GPUs.

    ``exploration`` ranks by simplicity. A tie takes at most ``1 + TIE_FRACTION`` times the time of
    the best, ``best_s`` with penalties, on as many GPUs; of the first number also on more, as far
    as they are explored. Of these, to which the limits of the goal apply, the k simplest.
    """
    gpus = exploration.candidates.gpus
    first, *fewer = best_s
    is_first = gpus >= first
    # 1e-9: so that rounding drops neither the best one itself nor one that just keeps a limit.
    tied_s = np.array([best_s.get(min(number, first), 0.0) for number in gpus.tolist()])
    tied_s = tied_s * (1.0 + TIE_FRACTION) * (1.0 + 1e-9)
    longest_s = np.asarray(goal.longest_s(gpus * 1.0)) * (1.0 + 1e-9)
    exploration.keep_to(np.where(is_first, longest_s, np.inf), tied_s)
    ladder = [fastest_within(exploration, gpus == number) for number in fewer]
    return least_values(exploration, fastest_within(exploration, is_first, k), *ladder)


def smaller_gpu_frontier(exploration: Exploration, num_gpus: int) -> list[Best]:
    """The best on at most a half, a quarter and an eighth of so many GPUs, descending.

    Whatever the limits of a goal.
    """
    candidates = exploration.candidates
    exploration.keep_to(without_job_limits(candidates.gpus))
    most = [num_gpus // 2**halvings for halvings in (1, 2, 3)]
    fields = [fastest_within(exploration, candidates.gpus <= number) for number in most]
    found = dict[int, Best]()
    for step in least_values(exploration, *fields):
        if step.ranked:
            found.setdefault(int(candidates.group[step.ranked[0].row]), step)
    return list(found.values())


def _on_fewest_gpus(exploration: Exploration, k: int) -> Best:
    """Ascending numbers of GPUs until k strategies keep the limits; the bound is of the first."""
    candidates = exploration.candidates
    ranked: list[Ranked] = []
    bound_s = float("inf")
    no_limit_s = without_job_limits(candidates.gpus)
    possible = exploration.shapes_below(no_limit_s)
    possible = possible[exploration.shapes.group[possible].argsort(kind="stable")]
    # Of small groups hardly anything fits: several are opened at once.
    exploration.open(possible[:NUM_AHEAD], no_limit_s)
    for group in range(len(candidates.gpus)):
        best = top_k(exploration, group, k - len(ranked))
        if not ranked:
            bound_s = min(bound_s, best.bound_s)
        ranked += best.ranked
        if len(ranked) == k:
            break
    return Best(ranked=tuple(ranked), bound_s=bound_s)


def non_dominated(points: Array) -> Index:
    """Rows of ``points`` (points x objectives, all minimised) that no other row dominates.

    A row dominates another when it is no larger in any objective and smaller in one. Of equal
    rows the first is kept. Rows come in ascending order; infinities are allowed, NaN is not.

    The first row in lexicographic order is dominated by none; what it dominates or equals is
    dropped, and so on: O(n · kept) comparisons.
    """
    assert not np.isnan(points).any()
    kept, left = list[int](), np.lexsort(points.T[::-1])
    while len(left):
        kept.append(int(left[0]))
        left = left[(points[left] < points[kept[-1]]).any(axis=1)]
    return np.array(sorted(kept), dtype=int)
