"""Ways to solve a row: one stage model for every variant of its policy worth trying."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.module_sets import SelectiveCosts
from planner.cost.stage import StageModel
from planner.search.space.policies import Policy, filled_counts
from planner.search.stages.bounds import within_whole
from planner.search.stages.capacity import Limits, capacity_of
from planner.search.stages.solver import Effort, Split, solve_split
from planner.units import Array, Mask


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A policy with what it leaves open: which modules, or how many layers of every chunk."""

    policy: Policy
    modules: tuple[str, ...] | None = None
    """What selective layers recompute; None: what the traits select."""
    number: float = 0.0
    """Of every chunk's layers, where the policy takes a part of them."""

    @property
    def is_complete(self) -> bool:
        """Nothing is left open."""
        return self.policy.part is None or self.number > 0.0

    def completed(self, split: Split, vpp: int) -> Split:
        """A split found under this variant, with the layers that the policy itself decides."""
        counts = filled_counts(self.policy, split.layers, split.counts, vpp, self.number)
        return replace(split, counts=counts, modules=self.modules)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One variant of a row's policy, ready to be solved."""

    lower_s: float
    variant: Variant
    weight: float
    """By which the models' times are multiplied."""
    models: StageModel
    limits: Limits
    place: int
    """In the models and the limits."""

    def solve(
        self, num_layers: int, below_s: float = np.inf, effort: Effort | None = None
    ) -> Split | None:
        """The best split of this row under this variant, as ``solve_split`` gives it."""
        model = self.models.take(slice(self.place, self.place + 1))
        limits = self.limits.of_one(self.place, int(model.strategy.pp[0]))
        split = solve_split(model, num_layers, below_s=below_s, effort=effort, limits=limits)
        return split and self.variant.completed(
            replace(split, weight=self.weight), int(model.strategy.vpp[0])
        )


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Those of one row that may take less than ``below_s``, of the least bound first.

    They share their models and limits.
    """

    below_s: float
    ways: list[Way]


def below(ways: list[Way], limit_s: float, num_layers: int) -> list[Way]:
    """Of one row's ways those that may take less than ``limit_s``."""
    models, limits = ways[0].models, ways[0].limits
    places = np.array([way.place for way in ways])
    model, limits = models.take(places), limits.take(places)
    capacity = capacity_of(model, limits)
    kept, _ = within_whole(model, limits, capacity, num_layers, np.full(len(ways), limit_s))
    return [ways[position] for position in kept.tolist()]


def undominated(options: SelectiveCosts, weights: Array) -> Mask:
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
