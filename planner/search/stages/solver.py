"""The stage problem: how many layers each stage holds, and which of them are under a policy.

What a stage takes for n layers under its best policies is tabulated first (stage_table), in bytes.
Layers are then dealt out by a sweep (deal); what that leaves open CP-SAT decides (cp_sat).
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.stage import StageModel, iteration_s
from planner.search.space.interleaving import fits_chunks
from planner.search.stages.bounds import UNLIMITED_S, least_work_s, slowest_limit_s
from planner.search.stages.capacity import Limits
from planner.search.stages.deal import Pipeline, deal
from planner.search.stages.stage_table import StageTable, stage_table
from planner.units import Array

CLOSED = 1e-9
"""Relative distance of a split from its bound at which it is optimal."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Layers and policies per stage, with the iteration time they give."""

    layers: Array
    counts: Array
    """Layers under each policy, K x P."""
    iteration_s: float
    is_optimal: bool
    modules: tuple[str, ...] | None = None
    """What selective layers recompute; None: what the traits select."""
    weight: float = 1.0
    """By which the time is multiplied already."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long CP-SAT may work on one stage problem."""

    deterministic_limit: float = 30.0
    """In the solver's own units of work, so that any machine gives the same answer."""
    seconds: float | None = None


def solve_split(
    model: StageModel,
    num_layers: int,
    *,
    below_s: float = np.inf,
    effort: Effort | None = None,
    limits: Limits | None = None,
) -> Split | None:
    """Return the optimal split of the one strategy in ``model`` that takes at most ``below_s``.

    None when it is proved that none does. Deterministic unless ``effort`` limits seconds: one
    worker, fixed seed. ``is_optimal`` is False when a limit struck first; the best split seen by
    then may take longer than ``below_s``, for ever where none was.
    """
    assert len(model) == 1
    longest_s = UNLIMITED_S
    if np.isfinite(below_s):
        longest_s = float(slowest_limit_s(model, num_layers, np.array([below_s]))[0])
    table = stage_table(model, num_layers, longest_s, limits)
    return solve_table(model, table, num_layers, below_s=below_s, effort=effort)


def solve_table(
    model: StageModel,
    table: StageTable,
    num_layers: int,
    *,
    below_s: float = np.inf,
    effort: Effort | None = None,
) -> Split | None:
    """The same where what a stage takes for its layers is tabulated already."""
    work_s, rest_s = float(least_work_s(model, num_layers)[0]), float(model.constant_s[0])
    dealt = deal(table, num_layers, _pipeline(model), work_s, below_s - rest_s)
    if dealt is None:
        return None
    first = _split(model, table, dealt.columns)
    is_legal = bool(fits_chunks(first.layers[None], model.strategy.vpp)[0])
    if dealt.is_optimal and is_legal:
        return _optimal(first) if first.iteration_s <= below_s else None
    from planner.search.stages.cp_sat import (
        solve_cells,  # importing it costs more than most searches
    )

    columns, is_optimal = solve_cells(model, table, num_layers, effort or Effort())
    found = [first] if is_legal else []
    if columns is not None:
        found.append(_split(model, table, columns))
    if not is_optimal:
        return min(found, key=lambda one: one.iteration_s, default=_unknown(first))
    split = min(found, key=lambda one: one.iteration_s, default=None)
    return None if split is None or split.iteration_s > below_s else _optimal(split)


def _pipeline(model: StageModel) -> Pipeline:
    return Pipeline(
        num_micro_batches=float(model.strategy.num_micro_batches[0]),
        vpp=float(model.strategy.vpp[0]),
        filled_s=float(model.bubble_filled_s[0]),
    )


def _optimal(split: Split) -> Split:
    return replace(split, is_optimal=True)


def _unknown(split: Split) -> Split:
    """In place of a split: none was found, but there may be one."""
    return replace(split, iteration_s=np.inf)


def _split(model: StageModel, table: StageTable, columns: Array) -> Split:
    stages = np.arange(len(columns))
    layers, counts = table.layers[columns], table.counts[:, stages, columns]
    seconds = iteration_s(model, layers[None], counts[:, None, :])
    return Split(layers=layers, counts=counts, iteration_s=float(seconds[0]), is_optimal=False)
