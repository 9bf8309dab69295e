"""Bookkeeping of the best-first search: rows, their bounds, and the splits found so far."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.even import even_estimate
from planner.search.bounds import feasible, free_bound_s, refine
from planner.search.solver import Split, solve_split
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Index, Mask

CHUNK_ROWS = 2**16
GAP_CLOSED = 1e-9
"""Relative distance of upper and lower bound at which no solver is needed."""


def _by_pipeline(strategy: StrategyColumns) -> Iterator[tuple[int, Index]]:
    """Yield every pipeline degree and the positions of its rows."""
    if not len(strategy):
        return
    order = np.argsort(strategy.pp, kind="stable")
    degrees, starts = np.unique(strategy.pp[order], return_index=True)
    for degree, index in zip(degrees, np.split(order, starts[1:]), strict=True):
        yield int(degree), index


def screen(
    context: Context,
    strategy: StrategyColumns,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Mask, Array]:
    """Which strategies can fit at all, and a cheap lower bound on their iteration time."""
    can_fit = np.zeros(len(strategy), dtype=bool)
    lower = np.full(len(strategy), np.inf)
    num_layers = context.model.num_blocks
    for start in range(0, len(strategy), CHUNK_ROWS):
        progress(start / len(strategy))
        rows = np.arange(start, min(start + CHUNK_ROWS, len(strategy)))
        chunk = stage_model(context, strategy.take(rows))
        lower[rows] = free_bound_s(chunk, num_layers)
        can_fit[rows] = even_estimate(chunk, num_layers).fits
        unsure = np.flatnonzero(~can_fit[rows])
        for num_stages, index in _by_pipeline(chunk.strategy.take(unsure)):
            part = chunk.take(unsure[index])
            can_fit[rows[unsure[index]]] = feasible(part, num_stages, num_layers)
    return can_fit, lower


@dataclass(kw_only=True)
class Candidates:
    """Strategies that can fit; bounds tighten as the search asks."""

    context: Context
    strategy: StrategyColumns
    lower_s: Array
    upper_s: Array = field(init=False)
    is_refined: Mask = field(init=False)
    splits: dict[int, Split] = field(init=False, default_factory=dict)
    """Best split known per row; optimal where ``is_optimal``."""
    num_solved: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.upper_s = np.full(len(self.strategy), np.inf)
        self.is_refined = np.zeros(len(self.strategy), dtype=bool)

    def refine(self, rows: Index) -> None:
        """Tighten the bounds of ``rows`` with memory limits and find a split for each."""
        rows = rows[~self.is_refined[rows]]
        if not len(rows):
            return
        model = stage_model(self.context, self.strategy.take(rows))
        for num_stages, index in _by_pipeline(model.strategy):
            found = refine(model.take(index), num_stages, self.context.model.num_blocks)
            where = rows[index]
            self.lower_s[where] = np.maximum(self.lower_s[where], found.lower_s)
            self.upper_s[where] = found.upper_s
            for position in np.flatnonzero(np.isfinite(found.upper_s)):
                row = int(where[position])
                upper = float(found.upper_s[position])
                self.splits[row] = Split(
                    layers=found.layers[position],
                    selective=found.selective[position],
                    full=found.full[position],
                    iteration_s=upper,
                    is_optimal=bool(upper <= self.lower_s[row] * (1.0 + GAP_CLOSED)),
                )
        self.is_refined[rows] = True

    def solve(self, row: int) -> Split | None:
        """Return the optimal split of a row, from the bounds where they meet, else by CP-SAT."""
        known = self.splits.get(row)
        if known is not None and known.is_optimal:
            return known
        model = stage_model(self.context, self.strategy.take(np.array([row])))
        self.num_solved += 1
        split = solve_split(model, self.context.model.num_blocks, hint=known)
        if known is not None and (split is None or known.iteration_s < split.iteration_s):
            split = replace(known, is_optimal=split is not None and split.is_optimal)
        if split is None:
            self.lower_s[row] = np.inf
            return None
        self.splits[row] = split
        self.upper_s[row] = split.iteration_s
        if split.is_optimal:
            self.lower_s[row] = split.iteration_s
        return split
