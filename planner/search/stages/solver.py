"""The stage problem: how many layers each stage holds, and which of them are under a policy.

What a stage takes for n layers under its best policies is tabulated first (stage_table), in bytes.
Layers are then dealt out by dynamic programming (deal). It knows nothing of chunks of interleaved
stages: where its answer breaks what they ask, the problem with that constraint is another one, and
CP-SAT's (cp_sat).
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.module_sets import SelectiveCosts
from planner.cost.stage import StageModel
from planner.search.space.interleaving import fits_chunks
from planner.search.space.policies import Policy, filled_counts
from planner.search.stages.bounds import UNLIMITED_S, least_work_s, slowest_limit_s
from planner.search.stages.capacity import Limits
from planner.search.stages.partition import Pipeline, partition_layers
from planner.search.stages.stage_table import StageTable, stage_table
from planner.units import Array, Mask

# Relative distance of a split from its bound at which it is optimal.
CLOSED = 1e-9


@dataclass(frozen=True, kw_only=True)
class Split:
    """Layers and policies per stage, with the iteration time they give."""

    layers: Array
    counts: Array  # Layers under each policy, K x P
    iteration_s: float
    is_optimal: bool
    modules: tuple[str, ...] | None = None
    """Modules that selective layers recompute; None: those that the traits select."""
    weight: float = 1.0  # Factor that the time already includes


def solve_split(
    model: StageModel,
    *,
    below_s: float = np.inf,
    deadline: float = np.inf,
    limits: Limits | None = None,
) -> Split | None:
    """Return the optimal split of the one strategy in ``model`` that takes at most ``below_s``.

    None when it is proved that none does. Deterministic without a ``deadline`` (time.monotonic()):
    one worker, fixed seed. ``is_optimal`` is False when a limit struck first; the best split seen
    by then may take longer than ``below_s``, for ever where none was.
    """
    assert len(model) == 1
    longest_s = UNLIMITED_S
    if np.isfinite(below_s):
        longest_s = float(slowest_limit_s(model, np.array([below_s]))[0])
    table = stage_table(model, longest_s, limits, deadline)
    work_s = float(least_work_s(model)[0])
    rest_s = float(model.constant_s[0])
    pipeline = Pipeline(
        num_micro_batches=float(model.strategy.num_micro_batches[0]),
        vpp=float(model.strategy.vpp[0]),
        filled_s=float(model.bubble_filled_s[0]),
    )
    dealt = partition_layers(table, model.num_layers, pipeline, work_s, below_s - rest_s, deadline)
    if dealt is None:
        return None if table.is_whole else _none_seen(table)
    if dealt.columns is None:
        return _none_seen(table)
    split = _split(model, table, dealt.columns)
    if fits_chunks(split.layers[None], model.strategy.vpp)[0]:
        return _proved(split, below_s) if dealt.is_optimal and table.is_whole else split
    from planner.search.stages.cp_sat import (
        solve_cells,  # importing it costs more than most searches
    )

    columns, is_optimal = solve_cells(model, table, deadline)
    if columns is None:
        return None if is_optimal and table.is_whole else _none_seen(table)
    split = _split(model, table, columns)
    return _proved(split, below_s) if is_optimal and table.is_whole else split


def _none_seen(table: StageTable) -> Split:
    """No split was seen in time, which does not say that there is none."""
    num_policies, num_stages, _ = table.counts.shape
    return Split(
        layers=np.zeros(num_stages),
        counts=np.zeros((num_policies, num_stages)),
        iteration_s=np.inf,
        is_optimal=False,
    )


def _proved(split: Split, below_s: float) -> Split | None:
    """The optimum, where it is within the limit."""
    return replace(split, is_optimal=True) if split.iteration_s <= below_s else None


def _split(model: StageModel, table: StageTable, columns: Array) -> Split:
    stages = np.arange(len(columns))
    layers = table.layers[columns]
    counts = table.counts[:, stages, columns]
    seconds = model.iteration_s(layers[None], counts[:, None, :])
    return Split(
        layers=layers,
        counts=counts,
        iteration_s=float(seconds[0]),
        is_optimal=False,
    )


@dataclass(frozen=True, kw_only=True)
class PolicyVariant:
    """A policy with what it leaves open: which modules, or how many layers of every chunk."""

    policy: Policy
    modules: tuple[str, ...] | None = None
    """Modules that selective layers recompute; None: those that the traits select."""
    number: float = 0.0
    """Number of every chunk's layers under the policy, where it takes a part of them."""
    is_most: bool = False  # more than half of them

    @property
    def is_complete(self) -> bool:
        """Nothing is left open."""
        return self.policy.part is None or self.number > 0.0

    def completed(self, split: Split, vpp: int) -> Split:
        """A split found under this variant, with the layers that the policy itself decides."""
        counts = filled_counts(self.policy, split.layers, split.counts, vpp, self.number)
        return replace(split, counts=counts, modules=self.modules)


@dataclass(frozen=True, kw_only=True)
class StageCandidate:
    """One variant of a row's policy, ready to be solved."""

    lower_s: float
    variant: PolicyVariant
    weight: float  # Factor on the models' times
    models: StageModel
    limits: Limits
    place: int  # Position in the models and the limits

    def solve(self, below_s: float = np.inf, deadline: float = np.inf) -> Split | None:
        """The best split of this row under this variant, as ``solve_split`` gives it."""
        row = slice(self.place, self.place + 1)
        model = self.models.take(row)
        stages = slice(int(model.strategy.pp[0]))
        own = {name: limit[..., row, stages] for name, limit in vars(self.limits).items()}
        limits = Limits(**own)
        split = solve_split(
            model,
            below_s=below_s,
            deadline=deadline,
            limits=limits,
        )
        return split and self.variant.completed(
            replace(split, weight=self.weight), int(model.strategy.vpp[0])
        )


@dataclass(frozen=True, kw_only=True)
class StageCandidates:
    """Candidates of one row that may take less than ``below_s``, of the least bound first.

    They share their models and limits.
    """

    below_s: float
    ways: list[StageCandidate]


def non_dominated(options: SelectiveCosts, weights: Array) -> Mask:
    """Sets (S x C) that no other one beats in everything, their weights (S) included."""
    figures = np.stack(
        [
            options.added_s,
            options.saved_bytes,
            options.lead_saved_bytes,
            options.workspace_bytes,
            np.broadcast_to(weights[:, None], options.added_s.shape),
        ]
    )
    no_worse = np.asarray((figures[:, :, None] <= figures[:, None, :]).all(axis=0))
    back = no_worse.transpose(1, 0, 2)
    position = np.arange(len(no_worse))
    earlier = (position[:, None] < position)[:, :, None]
    beaten = np.asarray((no_worse & (~back | earlier)).any(axis=0))
    return ~beaten
