"""Bounds on a strategy's iteration time over all splits of layers and recompute policies.

Matrices are strategies x stages; where one is made, the rows of a call share one pipeline degree.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.pipeline import makespan_s
from planner.cost.stage import (
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
from planner.search.interleaving import interleaved_layers
from planner.units import Array, Mask

NUM_BISECTIONS = 26
UNLIMITED_S = 1e12
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What restricts the layers of a stage: time per layer and bytes per layer by policy."""

    fixed_s: Array
    room_bytes: Array
    """Left for layers while nothing is recomputed; leading layers are taken to keep the least
    they can, so never too small."""
    selective_room_bytes: Array
    """Left while some layers are recomputed selectively, none in full."""
    full_room_bytes: Array
    """Left while some layers are recomputed in full."""
    layer_bytes: Array
    """Static and saved bytes of one layer without recomputation."""
    selective_bytes: Array
    full_bytes: Array
    max_host_layers: Array


def leading_relief_bytes(model: StageModel) -> Array:
    """Bytes per micro-batch by which leading layers may keep less than as many other layers."""
    least = np.minimum(model.lead_saved_bytes, model.lead_selective_saved_bytes)
    relief: Array = model.num_leading * np.maximum(-least, 0.0)
    return relief


def stage_limits(model: StageModel, num_stages: int) -> Limits:
    """Collect the coefficients of every stage."""
    stages = all_stages(num_stages)
    flight = in_flight_matrix(model, stages)
    room = model.held_limit_bytes[:, None] - fixed_bytes(model, stages)
    room = room + leading_relief_bytes(model)[:, None] * flight * (stages == 0)
    static = model.layer_static_bytes[:, None]
    host = model.host_limit_bytes[:, None] - fixed_host_bytes(model, stages)
    per_layer = np.maximum(model.layer_host_bytes, 1e-300)[:, None]
    return Limits(
        fixed_s=fixed_time_s(model, stages),
        room_bytes=room - transient_bytes(model, stages, selective=False, full=False),
        selective_room_bytes=room - transient_bytes(model, stages, selective=True, full=False),
        full_room_bytes=room - transient_bytes(model, stages, selective=False, full=True),
        layer_bytes=static + flight * model.saved_bytes[:, None],
        selective_bytes=static + flight * model.selective_saved_bytes[:, None],
        full_bytes=static + flight * model.full_saved_bytes[:, None],
        max_host_layers=host / per_layer,
    )


def _saving_rate(saved: Array, added_s: Array) -> Array:
    """Bytes saved per second of recomputation; 0 where the policy saves nothing."""
    return np.where(saved > 0, saved / np.maximum(added_s, 1e-15), 0.0)


def max_layers(model: StageModel, limits: Limits, slowest_s: Array) -> Array:
    """Most whole layers each stage can hold within ``slowest_s`` per micro-batch and its memory.

    Recomputation is relaxed to fractions of layers, so this never underestimates. With x seconds
    spent on recomputation and savings rate ρ: ``n a - ρ x <= room`` and ``n t + x <= T`` give
    ``n <= (room + ρ (T - e)) / (a + ρ t)``.
    """
    layer_s = model.layer_s[:, None]
    left_s = slowest_s[:, None] - limits.fixed_s
    by_time = left_s / layer_s
    selective_rate = _saving_rate(
        limits.layer_bytes - limits.selective_bytes, model.selective_s[:, None]
    )
    full_rate = _saving_rate(limits.layer_bytes - limits.full_bytes, model.full_s[:, None])
    selective_cap = np.where(selective_rate > 0, limits.selective_bytes, limits.layer_bytes)

    def mixed(room: Array, rate: Array, least_bytes: Array) -> Array:
        """Layers within the room when savings come at ``rate`` down to ``least_bytes``."""
        by_mix = (room + rate * left_s) / (limits.layer_bytes + rate * layer_s)
        return np.minimum(by_mix, room / least_bytes)

    none = limits.room_bytes / limits.layer_bytes
    partly = mixed(limits.selective_room_bytes, selective_rate, selective_cap)
    best_rate = np.maximum(selective_rate, full_rate)
    fully = mixed(limits.full_room_bytes, best_rate, limits.full_bytes)
    most = np.minimum(np.maximum(np.maximum(none, partly), fully), by_time)
    most = np.minimum(most, limits.max_host_layers)
    return np.maximum(np.floor(most + ROUNDING), 0.0)


def holds_model(model: StageModel, most: Array, num_layers: int) -> Mask:
    """True where stages of at most ``most`` layers can hold the model.

    Interleaved strategies have one split only; every stage needs a layer.
    """
    num_stages = most.shape[1]
    vpp = model.strategy.vpp
    even = (most >= interleaved_layers(num_layers, num_stages, vpp)).all(axis=1)
    uneven = (most.sum(axis=1) >= num_layers) & (most >= 1).all(axis=1)
    return np.asarray(np.where(vpp > 1, even, uneven))


def feasible(model: StageModel, num_stages: int, num_layers: int) -> Mask:
    """False only where no split and no policy can fit (recomputation relaxed)."""
    limits = stage_limits(model, num_stages)
    unlimited = np.full(len(model), UNLIMITED_S)
    return holds_model(model, max_layers(model, limits, unlimited), num_layers)


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
    tallest = model.layer_s * np.ceil(num_layers / pp)
    ends = model.layer_s + np.maximum(model.first_s, model.last_s)
    bound: Array = np.maximum(np.maximum(mean, tallest), ends) + model.link_s
    return bound


def bound_s(model: StageModel, num_layers: int, slowest_s: Array) -> Array:
    """Lower bound on iteration time given a lower bound on the slowest stage."""
    strategy = model.strategy
    ends = model.first_s + model.last_s + strategy.pp * model.link_s
    work = model.layer_s * num_layers + ends
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
    selective: Array
    full: Array


def refine(model: StageModel, num_stages: int, num_layers: int) -> Refined:
    """Bisect the slowest stage's time with memory limits, then round to a concrete split."""
    limits = stage_limits(model, num_stages)
    least = slowest_bound_s(model, num_layers)
    dearest = model.layer_s + np.maximum(model.selective_s, model.full_s)
    high = limits.fixed_s.max(axis=1) + dearest * num_layers
    just_above = least * (1 + ROUNDING)
    at_least = holds_model(model, max_layers(model, limits, just_above), num_layers)
    low, high = least, np.where(at_least, just_above, high)
    for _ in range(NUM_BISECTIONS):
        middle = 0.5 * (low + high)
        holds = holds_model(model, max_layers(model, limits, middle), num_layers)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    low = np.where(at_least, least, low)
    most = max_layers(model, limits, high)
    layers = _spread(model, most, num_layers)
    selective, full = _policies(model, limits, layers)
    valid = (layers.sum(axis=1) == num_layers) & (layers >= 1).all(axis=1)
    valid &= fits(model, layers, selective, full)
    upper = np.where(valid, iteration_s(model, layers, selective, full), np.inf)
    return Refined(
        lower_s=bound_s(model, num_layers, low),
        upper_s=upper,
        layers=layers,
        selective=selective,
        full=full,
    )


def _spread(model: StageModel, most: Array, num_layers: int) -> Array:
    """Give every stage its most layers, then take the excess from the first stages."""
    num_stages = most.shape[1]
    excess = (most.sum(axis=1) - num_layers)[:, None]
    spare = np.maximum(most - 1.0, 0.0)
    before = np.cumsum(spare, axis=1) - spare
    uneven = most - np.clip(excess - before, 0.0, spare)
    vpp = model.strategy.vpp
    even = interleaved_layers(num_layers, num_stages, vpp)
    layers: Array = np.where(vpp[:, None] > 1, even, uneven)
    return layers


def _policies(model: StageModel, limits: Limits, layers: Array) -> tuple[Array, Array]:
    """Fewest recomputed layers that fit: some selective, some full, or all of one and some full."""

    def count(excess: Array, saved: Array) -> Array:
        needed = np.ceil(np.maximum(excess, 0.0) / np.where(saved > 0, saved, 1.0) - ROUNDING)
        return np.where(saved > 0, np.minimum(needed, layers), 0.0)

    none = np.zeros_like(layers)
    wanted = layers * limits.layer_bytes
    selective = count(
        wanted - limits.selective_room_bytes, limits.layer_bytes - limits.selective_bytes
    )
    full = count(wanted - limits.full_room_bytes, limits.layer_bytes - limits.full_bytes)
    added = count(
        layers * limits.selective_bytes - limits.full_room_bytes,
        limits.selective_bytes - limits.full_bytes,
    )
    options = [
        (none, none, limits.room_bytes),
        (selective, none, limits.selective_room_bytes),
        (none, full, limits.full_room_bytes),
        (layers - added, added, limits.full_room_bytes),
    ]
    best_selective, best_full = none, full
    best_s = np.full(layers.shape, np.inf)
    for num_selective, num_full, room in options:
        used = (
            (layers - num_selective - num_full) * limits.layer_bytes
            + num_selective * limits.selective_bytes
            + num_full * limits.full_bytes
        )
        added_s = num_selective * model.selective_s[:, None] + num_full * model.full_s[:, None]
        better = (used <= room) & (added_s < best_s)
        best_s = np.where(better, added_s, best_s)
        best_selective = np.where(better, num_selective, best_selective)
        best_full = np.where(better, num_full, best_full)
    return best_selective, best_full
