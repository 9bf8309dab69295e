"""Bounds on a strategy's iteration time over all splits of layers and policies.

Matrices are strategies x stages. The rows of a call may differ in pipeline degree; stages beyond
a row's own hold no layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.pipeline import makespan_s
from planner.cost.stage import StageModel
from planner.search.space.interleaving import default_layers, fits_chunks, slowest_stage_s
from planner.search.stages.capacity import (
    ROUNDING,
    Capacity,
    Limits,
    capacity_of,
    layer_ranges,
    limits_at,
    stage_limits,
)
from planner.spec.strategy import POLICIES, StrategyColumns
from planner.units import Array, Index, Mask

UNLIMITED_S = 1e12
# Rows times stages that take about as long as what every call takes.
FEW_STAGES = 2**12


def tail_bound_s(model: StageModel) -> Array:
    """Least possible slowest tail: the mean over stages of each affine piece, or one tall stage."""
    pp = model.strategy.pp
    total = model.tail_layer_s * model.num_layers + model.tail_first_s + model.tail_last_s
    tallest = np.ceil(model.num_layers / pp) * np.maximum(model.tail_layer_s, 0.0)
    bound: Array = np.maximum(total / pp, tallest).max(axis=0)
    return np.maximum(bound, 0.0)


def slowest_bound_s(model: StageModel) -> Array:
    """Least possible slowest stage without memory limits, transfers between stages included."""
    ends_s = model.first_s, model.last_s
    slowest_s = slowest_stage_s(model.strategy, model.num_layers, model.layer_s, *ends_s)
    return slowest_s + model.link_s


def least_work_s(model: StageModel) -> Array:
    """Least sum of all stages' times per micro-batch: nothing recomputed or offloaded."""
    ends = model.first_s + model.last_s + model.strategy.pp * model.link_s
    return model.layer_s * model.num_layers + ends


def slowest_limit_s(model: StageModel, limit_s: Array) -> Array:
    """The longest a stage may take per micro-batch for an iteration of at most ``limit_s``.

    From ``m T + max(W - T - filled, 0) / v <= limit`` with the least work W of all stages, and the
    least tail.
    """
    m = model.strategy.num_micro_batches
    v = model.strategy.vpp
    finite = np.where(np.isfinite(limit_s), limit_s, 0.0)
    left = finite - tail_bound_s(model) - model.constant_s
    bubble = least_work_s(model) - model.bubble_filled_s
    slope = m - 1.0 / v
    waiting = (left - bubble / v) / np.where(slope > 0, slope, 1.0)
    longest = np.where((slope > 0) & (waiting < bubble), waiting, left / m)
    return longest * (1.0 + ROUNDING)


def bound_s(model: StageModel, slowest_s: Array) -> Array:
    """Lower bound on iteration time given one on the slowest stage."""
    makespan = makespan_s(model.strategy, slowest_s, least_work_s(model), model.bubble_filled_s)
    return makespan + tail_bound_s(model) + model.constant_s


def bound_any_split_s(model: StageModel) -> Array:
    """Cheap lower bound that ignores memory; rows may differ in pipeline degree."""
    return bound_s(model, slowest_bound_s(model))


@dataclass(frozen=True, kw_only=True)
class Refined:
    """Lower bound, and a split that reaches the upper bound (infinite where none was found)."""

    lower_s: Array
    upper_s: Array
    layers: Array
    counts: Array


def feasible(model: StageModel, num_stages: int) -> Mask:
    """False only where no split and no policies can fit (policies relaxed)."""
    capacity = capacity_of(model, stage_limits(model, num_stages))
    return capacity.holds(capacity.layers(np.full(len(model), UNLIMITED_S)))


def may_fit(model: StageModel, limit_s: Array) -> Mask:
    """False only where no split and no policies fit and take less than ``limit_s``.

    Only some stages are looked at: both ends, and of every run of stages between them the last,
    which has the fewest micro-batches in flight and so holds the most layers. Policies are
    relaxed; rows may differ in pipeline degree, the limit may be infinite.
    """
    num_samples = 8  # stages looked at before all of them are
    # Stage numbers, C x samples, and how many stages each stands for.
    pp = model.strategy.pp
    between = np.maximum(pp - 2.0, 0.0)[:, None]
    runs = np.arange(1.0, num_samples - 1.0) / (num_samples - 2.0)
    last_of_run = np.floor(runs[None, :] * between)
    first = np.zeros((len(pp), 1))
    last = pp[:, None] - 1.0
    stages = np.concatenate([first, last_of_run, last], axis=1)
    sizes = np.diff(last_of_run, axis=1, prepend=0.0)
    has_last = (last > 0) * 1.0
    weights = np.concatenate([first + 1.0, sizes, has_last], axis=1)
    fewest, most = layer_ranges(model, stages)
    capacity = capacity_of(model, limits_at(model, stages, fewest, most))
    layers = capacity.layers(_slowest_within_s(model, limit_s))
    enough = (layers * weights).sum(axis=1) >= model.num_layers
    reached = (layers >= fewest) | (weights == 0)
    fits: Mask = enough & reached.all(axis=1)
    return fits


def _slowest_within_s(model: StageModel, limit_s: Array) -> Array:
    return np.where(np.isfinite(limit_s), slowest_limit_s(model, limit_s), UNLIMITED_S)


def refine(
    model: StageModel,
    num_stages: int,
    relaxed: StageModel | None = None,
    limit_s: Array | None = None,
) -> Refined:
    """Bisect the slowest stage's time with memory limits, then round to a concrete split.

    The bound is that of ``relaxed``, a model no costlier, where one is given. Rows that cannot
    take less than ``limit_s`` get that as their bound, and no split.
    """
    bound = relaxed or model
    capacity = capacity_of(bound, stage_limits(bound, num_stages))
    if limit_s is None:
        limit_s = np.full(len(model), np.inf)
    alive = within(bound, capacity, limit_s)
    lower = limit_s.copy()
    upper = np.full(len(model), np.inf)
    layers = np.zeros((len(model), num_stages))
    counts = np.zeros((len(POLICIES), len(model), num_stages))
    if len(alive):
        part = model.take(alive)
        its_bound = bound.take(alive)
        its_capacity = capacity.take(alive)
        # The slowest stage is no faster than ``low``; within ``high`` stages hold the model, as
        # they must within some time.
        low = slowest_bound_s(its_bound)
        dearest = its_bound.layer_s + its_bound.policies.added_s.max(axis=0)
        high = its_capacity.fixed_s.max(axis=1) + dearest * model.num_layers
        just_above = low * (1 + ROUNDING)
        at_least = its_capacity.holds(its_capacity.layers(just_above))
        high = np.where(at_least, just_above, high)
        rows = np.flatnonzero(~at_least)
        left = its_capacity.take(rows)
        # Close in on the time from which on stages hold the model.
        for _ in range(26 if len(rows) else 0):
            middle = 0.5 * (low[rows] + high[rows])
            holds = left.holds(left.layers(middle))
            low[rows] = np.where(holds, low[rows], middle)
            high[rows] = np.where(holds, middle, high[rows])
        lower[alive] = np.minimum(bound_s(its_bound, low), limit_s[alive])
        upper[alive], layers[alive], counts[:, alive] = _rounded(part, its_capacity, high)
    return Refined(lower_s=lower, upper_s=upper, layers=layers, counts=counts)


def within(model: StageModel, capacity: Capacity, limit_s: Array) -> Index:
    """Rows that may take less than ``limit_s``, policies relaxed to fractions of layers."""
    most = capacity.layers(_slowest_within_s(model, limit_s))
    return np.flatnonzero(capacity.holds(most))


def _rounded(model: StageModel, capacity: Capacity, slowest_s: Array) -> tuple[Array, Array, Array]:
    """A split with about this slowest stage: its time, infinite if it is none, layers, counts."""
    num_stages = capacity.fixed_s.shape[1]
    layers = _spread(model, capacity, capacity.layers(slowest_s))
    limits = stage_limits(model, num_stages)
    counts = _counts(model, limits, layers)
    valid = layers.sum(axis=1) == model.num_layers
    valid &= (layers >= limits.fewest).all(axis=1)
    valid &= fits_chunks(layers, model.strategy.vpp, model.strategy.pp)
    valid &= model.fits(layers, counts)
    return np.where(valid, model.iteration_s(layers, counts), np.inf), layers, counts


def _spread(model: StageModel, capacity: Capacity, most: Array) -> Array:
    """Give every stage its most layers, then take the excess from the first stages.

    Interleaved stages are as equal as they can be, where that is within the most.
    """
    num_stages = most.shape[1]
    fewest = capacity.fewest
    excess = (most.sum(axis=1) - model.num_layers)[:, None]
    spare = np.maximum(most - fewest, 0.0)
    before = np.cumsum(spare, axis=1) - spare
    layers: Array = most - np.clip(excess - before, 0.0, spare)
    rows = np.flatnonzero(model.strategy.vpp > 1)
    strategy = model.strategy.take(rows)
    shapes = np.stack([strategy.pp, strategy.vpp], axis=1)
    for pp, vpp in np.unique(shapes, axis=0).tolist():
        even = np.zeros(num_stages)
        even[:pp] = default_layers(model.num_layers, pp, vpp)
        alike = rows[(shapes == (pp, vpp)).all(axis=1)]
        alike = alike[(even <= most[alike]).all(axis=1)]
        layers[alike] = even
    return layers


def _counts(model: StageModel, limits: Limits, layers: Array) -> Array:
    """Cheapest of a few ways to fit: one policy on as few layers as needed."""

    def needed(excess: Array, saved: Array) -> Array:
        each = np.where(saved > 0, saved, 1.0)
        number = np.ceil(np.maximum(excess, 0.0) / each - ROUNDING)
        return np.where(saved > 0, np.minimum(number, layers), 0.0)

    wanted = layers * limits.layer_bytes
    best = np.zeros((len(POLICIES), *layers.shape))
    best_s = np.full(layers.shape, np.inf)
    options = [(best, limits.room_bytes)]
    for k in range(len(POLICIES)):
        saved = limits.layer_bytes - limits.policy_bytes[k]
        if (saved > 0).any():
            counts = np.zeros_like(best)
            counts[k] = needed(wanted - limits.policy_room_bytes[k], saved)
            options.append((counts, limits.policy_room_bytes[k]))
    for counts, room in options:
        saved = (counts * (limits.layer_bytes - limits.policy_bytes)).sum(axis=0)
        by_policy = counts * model.policies.added_s[:, :, None]
        added_s = by_policy.sum(axis=0)
        better = (wanted - saved <= room) & (added_s < best_s)
        best_s = np.where(better, added_s, best_s)
        best = np.where(better, counts, best)
    return best


def group_by_pp(strategy: StrategyColumns) -> Iterator[tuple[int, Index]]:
    """Positions of rows whose pipeline degrees lie between two powers of two, and the largest.

    Few rows of several stages stay together: a further call takes longer than empty stages.
    """
    if not len(strategy):
        return
    size = np.ceil(np.log2(strategy.pp)).astype(int)
    if len(size) * int(strategy.pp.max()) <= FEW_STAGES:
        size = np.minimum(size, 1)
    for exponent in np.unique(size).tolist():
        index = np.flatnonzero(size == exponent)
        yield int(strategy.pp[index].max()), index
