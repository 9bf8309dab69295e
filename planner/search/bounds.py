"""Bounds on a strategy's iteration time over all splits of layers and policies.

Matrices are strategies x stages. The rows of a call may differ in pipeline degree; stages beyond
a row's own hold no layers.
"""

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.pipeline import makespan_s
from planner.cost.stage import (
    FULL,
    OFFLOADED,
    SELECTIVE,
    StageModel,
    all_stages,
    fits,
    fixed_bytes,
    fixed_host_bytes,
    fixed_time_s,
    in_flight_matrix,
    iteration_s,
    transient_bytes,
)
from planner.search.interleaving import (
    chunk_size,
    default_layers,
    fits_chunks,
    layer_range,
    range_at,
    tallest,
)
from planner.spec.strategy import POLICIES
from planner.units import Array, Mask, Rows

NUM_BISECTIONS = 26
SAMPLES = 8
"""Stages looked at before all of them are."""
UNLIMITED_S = 1e12
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What restricts the layers of a stage: time per layer and bytes per layer by policy."""

    fixed_s: Array
    room_bytes: Array
    """Left for layers while none is under a policy; leading layers are taken to keep the least
    they can, so never too small."""
    policy_room_bytes: Array
    """Left while some layer is under a policy, K x C x P."""
    layer_bytes: Array
    """Static and saved bytes of one layer under no policy."""
    policy_bytes: Array
    """And under each, K x C x P."""
    max_host_layers: Array
    fewest: Array
    most: Array
    """Layers the stage may have at all."""

    def of_one(self, position: int, num_stages: int) -> "Limits":
        """Those of one strategy, its own stages only."""
        row, stages = slice(position, position + 1), slice(num_stages)
        return Limits(**{f.name: getattr(self, f.name)[..., row, stages] for f in fields(self)})


def leading_relief_bytes(model: StageModel) -> Array:
    """Bytes per micro-batch by which leading layers may keep less than as many other layers."""
    least = np.minimum(model.lead_saved_bytes, model.policies.lead_saved_bytes.min(axis=0))
    relief: Array = model.num_leading * np.maximum(-least, 0.0)
    return relief


def stage_limits(model: StageModel, num_stages: int, num_layers: int) -> Limits:
    """Collect the coefficients of every stage."""
    fewest, most = layer_range(
        model.strategy, num_layers, num_stages, uneven_stages=model.uneven_stages
    )
    return limits_at(model, all_stages(num_stages), fewest, most)


def limits_at(model: StageModel, stages: Array, fewest: Array, most: Array) -> Limits:
    """Collect the coefficients of the given stages, 1 x P or C x P."""
    flight = in_flight_matrix(model, stages)
    room = model.held_limit_bytes[:, None] - fixed_bytes(model, stages)
    if model.num_leading:
        room = room + leading_relief_bytes(model)[:, None] * flight * (stages == 0)
    static = model.layer_static_bytes[:, None]
    host = model.host_limit_bytes[:, None] - fixed_host_bytes(model, stages)
    per_layer = model.layer_host_bytes[:, None]
    spaces = model.policies.workspace_bytes
    with_policy = [transient_bytes(model, stages, space[:, None]) for space in spaces]
    return Limits(
        fixed_s=fixed_time_s(model, stages),
        room_bytes=room - transient_bytes(model, stages, 0.0),
        policy_room_bytes=np.stack([room - transient for transient in with_policy]),
        layer_bytes=static + flight * model.saved_bytes[:, None],
        policy_bytes=static + flight * model.policies.saved_bytes[:, :, None],
        max_host_layers=np.where(
            per_layer > 0,
            host / np.where(per_layer > 0, per_layer, 1.0),
            np.where(host < 0, 0.0, np.inf),
        ),
        fewest=fewest,
        most=most,
    )


def _regimes(model: StageModel, limits: Limits) -> list[tuple[Array, Array, Array]]:
    """Room, best saving rate and least bytes per layer, by the largest workspace that is used.

    A stage whose largest workspace is that of policy k uses only policies with no larger one.
    Policies that save nothing anywhere are left out.
    """
    policies = model.policies
    useful = [
        k for k in range(len(POLICIES)) if (policies.saved_bytes[k] < model.saved_bytes).any()
    ]
    added = np.maximum(policies.added_s, 1e-15)
    rates = {k: (limits.layer_bytes - limits.policy_bytes[k]) / added[k][:, None] for k in useful}
    regimes = []
    for k in useful:
        rate, least = (
            np.maximum(rates[k], 0.0),
            np.minimum(limits.layer_bytes, limits.policy_bytes[k]),
        )
        for j in useful:
            joins = (policies.workspace_bytes[j] <= policies.workspace_bytes[k])[:, None]
            if j != k and joins.any():
                rate = np.maximum(rate, rates[j] * joins)
                least = np.where(joins, np.minimum(least, limits.policy_bytes[j]), least)
        regimes.append((limits.policy_room_bytes[k], rate, least))
    return regimes


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Most whole layers each stage can hold within a time per micro-batch and its memory."""

    layer_s: Array
    fixed_s: Array
    fewest: Array
    most: Array
    """Whatever the time, and whatever the device's memory."""
    unrecomputed: Array
    regimes: tuple[tuple[Array, Array, Array, Array], ...]
    """Room, savings rate, most layers by memory, and bytes that a layer takes at that rate."""

    def take(self, index: Rows) -> "Capacity":
        """Return the strategies at ``index``."""
        return Capacity(
            layer_s=self.layer_s[index],
            fixed_s=self.fixed_s[index],
            fewest=self.fewest[index],
            most=self.most[index],
            unrecomputed=self.unrecomputed[index],
            regimes=tuple(
                (one[index], two[index], three[index], four[index])
                for one, two, three, four in self.regimes
            ),
        )

    def layers(self, slowest_s: Array) -> Array:
        """Never underestimates: policies are relaxed to fractions of layers.

        With x seconds spent on policies and savings rate ρ: ``n a - ρ x <= room`` and
        ``n t + x <= T`` give ``n <= (room + ρ (T - e)) / (a + ρ t)``.
        """
        left_s = slowest_s[:, None] - self.fixed_s
        most = self.unrecomputed
        for room, rate, by_space, per_layer in self.regimes:
            mixed = np.minimum((room + rate * left_s) / per_layer, by_space)
            most = np.maximum(most, np.minimum(mixed, self.most))
        most = np.minimum(most, left_s / self.layer_s)
        return np.maximum(np.floor(most + ROUNDING), 0.0)

    def holds(self, most: Array, num_layers: int) -> Mask:
        """True where stages of at most ``most`` layers can hold the model."""
        enough = most.sum(axis=1) >= num_layers
        return np.asarray(enough & (most >= self.fewest).all(axis=1))


def capacity_of(model: StageModel, limits: Limits) -> Capacity:
    """What the limits of every stage leave to layers."""
    layer_s, most = model.layer_s[:, None], np.minimum(limits.max_host_layers, limits.most)
    return Capacity(
        layer_s=layer_s,
        fixed_s=limits.fixed_s,
        fewest=limits.fewest,
        most=most,
        unrecomputed=np.minimum(limits.room_bytes / limits.layer_bytes, most),
        regimes=tuple(
            (room, rate, room / least, limits.layer_bytes + rate * layer_s)
            for room, rate, least in _regimes(model, limits)
        ),
    )


def tail_bound_s(model: StageModel, num_layers: int) -> Array:
    """Least possible slowest tail: the mean over stages of each affine piece, or one tall stage."""
    pp = model.strategy.pp
    total = model.tail_layer_s * num_layers + model.tail_first_s + model.tail_last_s
    tallest = np.ceil(num_layers / pp) * np.maximum(model.tail_layer_s, 0.0)
    bound: Array = np.maximum(total / pp, tallest).max(axis=0)
    return np.maximum(bound, 0.0)


def slowest_bound_s(model: StageModel, num_layers: int) -> Array:
    """Least possible slowest stage without memory limits: mean, tallest, and either end."""
    pp = model.strategy.pp
    mean = (model.layer_s * num_layers + model.first_s + model.last_s) / pp
    vpp = model.strategy.vpp
    full = tallest(num_layers, pp, vpp)
    fewest = np.maximum(full - chunk_size(num_layers, pp, vpp), 1.0)
    ends = fewest * model.layer_s + np.maximum(model.first_s, model.last_s)
    bound: Array = np.maximum(np.maximum(mean, model.layer_s * full), ends) + model.link_s
    return bound


def least_work_s(model: StageModel, num_layers: int) -> Array:
    """Least sum of all stages' times per micro-batch: nothing recomputed or offloaded."""
    ends = model.first_s + model.last_s + model.strategy.pp * model.link_s
    work: Array = model.layer_s * num_layers + ends
    return work


def slowest_limit_s(model: StageModel, num_layers: int, limit_s: Array) -> Array:
    """The longest a stage may take per micro-batch for an iteration of at most ``limit_s``.

    From ``m T + max(W - T - filled, 0) / v <= limit`` with the least work W of all stages and
    the least tail.
    """
    m, v = model.strategy.num_micro_batches, model.strategy.vpp
    finite = np.where(np.isfinite(limit_s), limit_s, 0.0)
    left = finite - tail_bound_s(model, num_layers) - model.constant_s
    bubble = least_work_s(model, num_layers) - model.bubble_filled_s
    slope = m - 1.0 / v
    waiting = (left - bubble / v) / np.where(slope > 0, slope, 1.0)
    longest = np.where((slope > 0) & (waiting < bubble), waiting, left / m)
    return longest * (1.0 + ROUNDING)


def bound_s(model: StageModel, num_layers: int, slowest_s: Array) -> Array:
    """Lower bound on iteration time given a lower bound on the slowest stage."""
    strategy = model.strategy
    work = least_work_s(model, num_layers)
    makespan = makespan_s(
        slowest_s, work, strategy.num_micro_batches, strategy.vpp, model.bubble_filled_s
    )
    return makespan + tail_bound_s(model, num_layers) + model.constant_s


def free_bound_s(model: StageModel, num_layers: int) -> Array:
    """Cheap lower bound that ignores memory; rows may differ in pipeline degree."""
    return bound_s(model, num_layers, slowest_bound_s(model, num_layers))


@dataclass(frozen=True, kw_only=True)
class Refined:
    """Lower bound, and a split that reaches the upper bound (infinite where none was found)."""

    lower_s: Array
    upper_s: Array
    layers: Array
    counts: Array


def feasible(model: StageModel, num_stages: int, num_layers: int) -> Mask:
    """False only where no split and no policies can fit (policies relaxed)."""
    capacity = capacity_of(model, stage_limits(model, num_stages, num_layers))
    return _is_within(model, capacity, num_layers, np.full(len(model), np.inf))


def may_keep(model: StageModel, num_layers: int, limit_s: Array) -> Mask:
    """False only where no split and no policies fit and take less than ``limit_s``.

    Only some stages are looked at: both ends, and of every run of stages between them the last,
    which has the fewest micro-batches in flight and so holds the most layers. Policies are
    relaxed; rows may differ in pipeline degree, the limit may be infinite.
    """
    stages, weights = _sampled_stages(model.strategy.pp)
    uneven = model.uneven_stages
    fewest, most = range_at(model.strategy, num_layers, stages, uneven_stages=uneven)
    capacity = capacity_of(model, limits_at(model, stages, fewest, most))
    layers = capacity.layers(_slowest_within_s(model, num_layers, limit_s))
    enough = (layers * weights).sum(axis=1) >= num_layers
    return np.asarray(enough & ((layers >= fewest) | (weights == 0)).all(axis=1))


def _sampled_stages(pp: Array) -> tuple[Array, Array]:
    """Stage numbers, C x SAMPLES, and how many stages each stands for."""
    between = np.maximum(pp - 2.0, 0.0)[:, None]
    runs = np.arange(1.0, SAMPLES - 1.0)[None, :] / (SAMPLES - 2.0)
    last_of_run = np.floor(runs * between)
    first, last = np.zeros((len(pp), 1)), pp[:, None] - 1.0
    stages = np.concatenate([first, last_of_run, last], axis=1)
    sizes = np.diff(last_of_run, axis=1, prepend=0.0)
    weights = np.concatenate([first + 1.0, sizes, (last > 0) * 1.0], axis=1)
    return stages, weights


def _slowest_within_s(model: StageModel, num_layers: int, limit_s: Array) -> Array:
    within = slowest_limit_s(model, num_layers, limit_s)
    return np.where(np.isfinite(limit_s), within, UNLIMITED_S)


def _is_within(model: StageModel, capacity: Capacity, num_layers: int, limit_s: Array) -> Mask:
    slowest_s = _slowest_within_s(model, num_layers, limit_s)
    return capacity.holds(capacity.layers(slowest_s), num_layers)


def refine(
    model: StageModel,
    num_stages: int,
    num_layers: int,
    relaxed: StageModel | None = None,
    limit_s: Array | None = None,
) -> Refined:
    """Bisect the slowest stage's time with memory limits, then round to a concrete split.

    The bound is that of ``relaxed``, a model no costlier, where one is given. Rows that cannot
    take less than ``limit_s`` get that as their bound, and no split.
    """
    bound = relaxed or model
    limits = stage_limits(bound, num_stages, num_layers)
    capacity = capacity_of(bound, limits)
    if limit_s is None:
        limit_s = np.full(len(model), np.inf)
    alive = np.flatnonzero(_is_within(bound, capacity, num_layers, limit_s))
    lower, upper = limit_s.copy(), np.full(len(model), np.inf)
    layers = np.zeros((len(model), num_stages))
    counts = np.zeros((len(POLICIES), len(model), num_stages))
    if len(alive):
        part, its_bound = model.take(alive), bound.take(alive)
        its_capacity = capacity.take(alive)
        low, high = _slowest_range_s(its_bound, its_capacity, num_layers)
        lower[alive] = bound_s(its_bound, num_layers, low)
        found = _rounded(part, its_capacity, num_layers, high)
        upper[alive], layers[alive], counts[:, alive] = found
    return Refined(lower_s=lower, upper_s=upper, layers=layers, counts=counts)


def _rounded(
    model: StageModel, capacity: Capacity, num_layers: int, slowest_s: Array
) -> tuple[Array, Array, Array]:
    """A split with about this slowest stage: its time, infinite if it is none, layers, counts."""
    num_stages = capacity.fixed_s.shape[1]
    layers = _spread(model, capacity, capacity.layers(slowest_s), num_layers)
    limits = stage_limits(model, num_stages, num_layers)
    counts = _counts(model, limits, layers)
    valid = (layers.sum(axis=1) == num_layers) & (layers >= limits.fewest).all(axis=1)
    valid &= fits_chunks(layers, model.strategy.vpp, model.strategy.pp)
    valid &= fits(model, layers, counts)
    return np.where(valid, iteration_s(model, layers, counts), np.inf), layers, counts


def _slowest_range_s(model: StageModel, capacity: Capacity, num_layers: int) -> tuple[Array, Array]:
    """The slowest stage is no faster than the first; within the second, stages hold the model.

    They must hold it within some time.
    """
    least = slowest_bound_s(model, num_layers)
    dearest = model.layer_s + model.policies.added_s.max(axis=0)
    high = capacity.fixed_s.max(axis=1) + dearest * num_layers
    just_above = least * (1 + ROUNDING)
    at_least = capacity.holds(capacity.layers(just_above), num_layers)
    low, high = least.copy(), np.where(at_least, just_above, high)
    rows = np.flatnonzero(~at_least)
    if len(rows):
        low[rows], high[rows] = _bisect(capacity.take(rows), num_layers, low[rows], high[rows])
    return low, high


def _bisect(capacity: Capacity, num_layers: int, low: Array, high: Array) -> tuple[Array, Array]:
    """Close in on the time from which on stages hold the model."""
    for _ in range(NUM_BISECTIONS):
        middle = 0.5 * (low + high)
        holds = capacity.holds(capacity.layers(middle), num_layers)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return low, high


def _spread(model: StageModel, capacity: Capacity, most: Array, num_layers: int) -> Array:
    """Give every stage its most layers, then take the excess from the first stages.

    Interleaved stages are as equal as they can be, where that is within the most.
    """
    num_stages, fewest = most.shape[1], capacity.fewest
    excess = (most.sum(axis=1) - num_layers)[:, None]
    spare = np.maximum(most - fewest, 0.0)
    before = np.cumsum(spare, axis=1) - spare
    layers: Array = most - np.clip(excess - before, 0.0, spare)
    rows = np.flatnonzero(model.strategy.vpp > 1)
    shapes = np.stack([model.strategy.pp[rows], model.strategy.vpp[rows]], axis=1)
    for pp, vpp in np.unique(shapes, axis=0).tolist():
        even = np.zeros(num_stages)
        even[:pp] = default_layers(num_layers, pp, vpp)
        alike = rows[(shapes == (pp, vpp)).all(axis=1)]
        alike = alike[(even <= most[alike]).all(axis=1)]
        layers[alike] = even
    return layers


def _counts(model: StageModel, limits: Limits, layers: Array) -> Array:
    """Cheapest of a few ways to fit.

    One policy on as few layers as needed, or all layers selective and as few as needed in full.
    """

    def needed(excess: Array, saved: Array) -> Array:
        number = np.ceil(np.maximum(excess, 0.0) / np.where(saved > 0, saved, 1.0) - ROUNDING)
        return np.where(saved > 0, np.minimum(number, layers), 0.0)

    wanted = layers * limits.layer_bytes
    best, best_s = np.zeros((len(POLICIES), *layers.shape)), np.full(layers.shape, np.inf)
    options = [(best, limits.room_bytes)]
    for k in (SELECTIVE, FULL, OFFLOADED):
        saved = limits.layer_bytes - limits.policy_bytes[k]
        if (saved > 0).any():
            counts = np.zeros_like(best)
            counts[k] = needed(wanted - limits.policy_room_bytes[k], saved)
            options.append((counts, limits.policy_room_bytes[k]))
    cheap, dear = limits.policy_bytes[SELECTIVE], limits.policy_bytes[FULL]
    counts = np.zeros_like(best)
    room = np.minimum(limits.policy_room_bytes[SELECTIVE], limits.policy_room_bytes[FULL])
    counts[FULL] = needed(layers * cheap - room, cheap - dear)
    counts[SELECTIVE] = layers - counts[FULL]
    options.append((counts, room))
    for counts, room in options:
        saved = (counts * (limits.layer_bytes - limits.policy_bytes)).sum(axis=0)
        added_s = (counts * model.policies.added_s[:, :, None]).sum(axis=0)
        better = (wanted - saved <= room) & (added_s < best_s)
        best_s = np.where(better, added_s, best_s)
        best = np.where(better, counts, best)
    return best
