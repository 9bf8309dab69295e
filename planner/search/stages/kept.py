"""What a plan's split and policies become where they are kept while other decisions change.

Layers per stage are kept as the list they are. Policies are kept as the lists they are; where
all layers of the plan are under the same one, or none, so they are under any other split.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.cost.policies import offers_activation_offload
from planner.cost.stage import (
    OFFLOADED,
    SELECTIVE,
    StageModel,
    all_stages,
    fits,
    in_flight_matrix,
    iteration_s,
    stage_held_bytes,
    stage_host_bytes,
    stage_tail_s,
    stage_time_s,
)
from planner.search.space.interleaving import fits_chunks, has_equal_chunks, layer_range
from planner.search.stages.capacity import leading_relief_bytes
from planner.search.stages.solver import Split
from planner.search.stages.stage_table import StageTable
from planner.spec.strategy import POLICIES, Strategy, StrategyColumns
from planner.units import Array, Mask


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The plan's own split and policies."""

    layers: tuple[int, ...] | None
    """None where the list is none that any strategy could have."""
    counts: Array | None
    """K x P; None where the lists are not alike."""
    uniform: str | None
    """The one policy of all layers, ``none`` where none is under any."""
    uses_selective: bool

    def counts_of(self, layers: Array) -> Array | None:
        """Counts (K x P) for layers per stage; None where these cannot keep the policies."""
        if self.uniform is not None:
            return uniform_counts(self.uniform, layers)
        if self.counts is None or self.counts.shape[1] != len(layers):
            return None
        return self.counts if (self.counts.sum(axis=0) <= layers).all() else None

    def can_keep(self, num_stages: int) -> bool:
        """Whether some split over so many stages keeps the policies."""
        if self.uniform is not None:
            return True
        return self.counts is not None and self.counts.shape[1] == num_stages


def uniform_counts(policy: str, layers: Array) -> Array:
    """All layers under one policy: ``layers`` once for every policy, else zeros."""
    return np.stack([layers * (policy == name) for name in POLICIES])


def kept_of(strategy: Strategy, num_layers: int) -> Kept:
    """What can be kept of a strategy, whose lists may be of any length."""
    layers = strategy.layers_per_stage
    lists = strategy.policy_counts
    used = [k for k, counts in enumerate(lists) if any(counts)]
    uniform = None if used else "none"
    if len(used) == 1 and lists[used[0]] == layers:
        uniform = POLICIES[used[0]]
    is_split = sum(layers) == num_layers and min(layers) >= 1
    alike = len({len(counts) for counts in lists}) == 1
    return Kept(
        layers=layers if is_split else None,
        counts=np.array(lists, dtype=float) if alike else None,
        uniform=uniform,
        uses_selective=any(lists[SELECTIVE]),
    )


def can_hold_split(
    strategy: StrategyColumns, layers: tuple[int, ...], *, uneven_stages: bool
) -> Mask:
    """Where the layers can be laid out in chunks; all rows have a stage for each number."""
    split = np.broadcast_to(np.array(layers, dtype=float), (len(strategy), len(layers)))
    is_even = len(set(layers)) == 1
    equal = is_even & (layers[0] % strategy.vpp == 0)
    must = has_equal_chunks(strategy, uneven_stages=uneven_stages)
    return np.where(must, equal, fits_chunks(split, strategy.vpp))


def times_as_kept(context: Context, model: StageModel, layers: Array, counts: Array) -> Array:
    """Iteration time of every row under one split; infinite where it does not fit."""
    split = np.broadcast_to(layers, (len(model), len(layers)))
    chosen = np.broadcast_to(counts[:, None, :], (len(counts), *split.shape))
    legal = fits(model, split, chosen)
    if counts[OFFLOADED].any():
        legal &= offers_activation_offload(context, model.strategy)
    return np.where(legal, iteration_s(model, split, chosen), np.inf)


def bound_with_layers_s(model: StageModel, layers: Array) -> Array:
    """No policies make the split faster; infinite where none of them make it fit."""
    split = np.broadcast_to(layers, (len(model), len(layers)))
    stages = all_stages(len(layers))
    least = stage_held_bytes(model, split)
    for policy in POLICIES:
        counts = uniform_counts(policy, split)
        least = np.minimum(least, stage_held_bytes(model, split, counts))
    relief = leading_relief_bytes(model)[:, None] * in_flight_matrix(model, stages)
    least = least - relief * (stages == 0)
    fitting = (least <= model.held_limit_bytes[:, None]).all(axis=1)
    return np.where(fitting, iteration_s(model, split), np.inf)


def best_policies(model: StageModel, layers: Array) -> Split | None:
    """The fastest policies of the one strategy in ``model`` under a split; None: none fit."""
    chosen = np.zeros((len(POLICIES), len(layers)))
    for stage, number in enumerate(layers.tolist()):
        counts = _all_counts(model, int(number))
        size = counts.shape[1]
        at = np.full((1, size), float(stage))
        many = np.full((1, size), float(number))
        each = counts[:, None, :]
        legal = stage_held_bytes(model, many, each, at)[0] <= model.held_limit_bytes[0]
        legal &= stage_host_bytes(model, many, each, at)[0] <= model.host_limit_bytes[0]
        if not legal.any():
            return None
        seconds = np.where(legal, stage_time_s(model, many, each, at)[0], np.inf)
        chosen[:, stage] = counts[:, seconds.argmin()]
    seconds = iteration_s(model, layers[None], chosen[:, None, :])
    return Split(layers=layers, counts=chosen, iteration_s=float(seconds[0]), is_optimal=True)


def _all_counts(model: StageModel, number: int) -> Array:
    """Every way to put some of so many layers under policies that save anything."""
    saves = (model.policies.saved_bytes < model.saved_bytes)[:, 0]
    axes = [np.arange(number + 1.0 if is_free else 1.0) for is_free in saves]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    return grid[:, grid.sum(axis=0) <= number]


def may_keep_counts(model: StageModel, counts: Array, num_layers: int) -> Mask:
    """False only where no split can keep the lists of counts: bytes of a layer more per layer."""
    rows, num_stages = len(model), counts.shape[1]
    stages = all_stages(num_stages)
    fewest, most = layer_range(
        model.strategy, num_layers, num_stages, uneven_stages=model.uneven_stages
    )
    fewest = np.maximum(fewest, counts.sum(axis=0))
    chosen = np.broadcast_to(counts[:, None, :], (len(counts), rows, num_stages))
    flight = in_flight_matrix(model, stages)
    held = stage_held_bytes(model, fewest, chosen)
    held = held - leading_relief_bytes(model)[:, None] * flight * (stages == 0)
    per_layer = model.layer_static_bytes[:, None] + flight * model.saved_bytes[:, None]
    room = model.held_limit_bytes[:, None] - held
    more = np.minimum(np.floor(room / per_layer), most - fewest)
    possible = (room >= 0).all(axis=1) & (most >= fewest).all(axis=1)
    return np.asarray(possible & ((fewest + more).sum(axis=1) >= num_layers))


def table_as_kept(model: StageModel, kept: Kept, num_layers: int) -> StageTable:
    """What stages of the one strategy in ``model`` take under the plan's own policies."""
    num_stages = int(model.strategy.pp[0])
    fewest, most = layer_range(
        model.strategy, num_layers, num_stages, uneven_stages=model.uneven_stages
    )
    numbers = np.arange(fewest.min(), max(most.max(), fewest.min()) + 1.0)
    shape = (num_stages, len(numbers))
    layers = np.tile(numbers, num_stages)
    stages = np.repeat(np.arange(float(num_stages)), len(numbers))
    if kept.uniform is not None:
        counts = uniform_counts(kept.uniform, layers)
    else:
        assert kept.counts is not None
        counts = np.repeat(kept.counts, len(numbers), axis=1)
    one, each, at = layers[None], counts[:, None, :], stages[None]
    legal = stage_held_bytes(model, one, each, at)[0] <= model.held_limit_bytes[0]
    legal &= stage_host_bytes(model, one, each, at)[0] <= model.host_limit_bytes[0]
    legal &= (counts.sum(axis=0) <= layers) & (layers >= 1)
    index = stages.astype(int)
    legal &= (layers >= fewest[0, index]) & (layers <= most[0, index])
    seconds = np.where(legal, stage_time_s(model, one, each, at)[0], np.inf)
    tails = stage_tail_s(model, one, at)[0]
    return StageTable(
        layers=numbers,
        seconds=seconds.reshape(shape),
        tail_s=tails.reshape(shape),
        counts=counts.reshape(len(counts), *shape),
    )
