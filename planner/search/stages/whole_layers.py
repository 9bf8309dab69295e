"""Recomputation of whole layers: how many a stage needs, and what stages can hold with them."""

import numpy as np

from planner.cost.stage import (
    FULL,
    OTHERS,
    SELECTIVE,
    StageModel,
    in_flight_matrix,
    stage_held_bytes,
    stage_time_s,
    transient_bytes,
)
from planner.search.stages.capacity import ROUNDING, Limits
from planner.spec.strategy import POLICIES
from planner.units import Array, Mask

MOST_LOWERED = 6
BYTES_ROUNDING = 1e-14
"""Relative error of sums of bytes."""


def whole_layers(model: StageModel, limits: Limits, most: Array, slowest_s: Array) -> Array:
    """Most layers of each stage, of at most ``most``, with policies on whole layers only.

    Never underestimates: it stops lowering after a few layers, and where activations may be
    offloaded it leaves ``most`` as it is.
    """
    is_other = limits.layer_bytes > limits.policy_bytes[OTHERS]
    rows = np.flatnonzero(~is_other.any(axis=(0, 2)))
    most = most.copy()
    for _ in range(MOST_LOWERED):
        if not len(rows):
            break
        its_model, its_limits, layers = model.take(rows), limits.take(rows), most[rows]
        too_many = ~_fit(its_model, its_limits, layers, slowest_s[rows])
        if model.num_leading:
            too_many[:, 0] = ~_first_fit(its_model, layers[:, :1], slowest_s[rows])
        most[rows] = layers - too_many
        rows = rows[too_many.any(axis=1)]
    return np.maximum(most, 0.0)


def _fit(model: StageModel, limits: Limits, layers: Array, slowest_s: Array) -> Mask:
    """Whether some numbers of selective and full layers fit so many in memory and time."""
    saved = limits.layer_bytes - limits.policy_bytes
    left_s = slowest_s[:, None] * (1.0 + ROUNDING) - limits.fixed_s
    left_s = left_s - layers * model.layer_s[:, None]
    wanted = layers * limits.layer_bytes
    room, rooms = limits.room_bytes, limits.policy_room_bytes
    added, fill = model.policies.added_s[:, :, None], model.policies.fill_s[:, :, None]
    by_selective = saved[SELECTIVE]
    fits = (wanted <= room * (1.0 + ROUNDING)) & (left_s >= 0.0)
    for full in range(int(layers.max()) + 1):
        if full:
            room = np.minimum(limits.room_bytes, rooms[FULL])
        excess = wanted - full * saved[FULL]
        spent_s = full * added[FULL] + (full > 0) * fill[FULL]
        within = (full <= layers) & (spent_s <= left_s)
        if not within.any():
            break
        fits |= within & (excess <= room * (1.0 + ROUNDING))
        number = _needed(excess - np.minimum(room, rooms[SELECTIVE]), by_selective)
        within &= number <= layers - full
        number = np.where(within, number, 0.0)
        fits |= within & (spent_s + number * added[SELECTIVE] + fill[SELECTIVE] <= left_s)
    return fits | (layers <= 0)


def _first_fit(model: StageModel, layers: Array, slowest_s: Array) -> Mask:
    """The same for first stages with leading layers; ``layers`` are C x 1."""
    full = np.arange(layers.max() + 1.0)[None, :] + 0.0 * layers
    number = leading_selective(model, layers + 0.0 * full, full)
    counts = np.zeros((len(POLICIES), *full.shape))
    counts[SELECTIVE], counts[FULL] = np.where(np.isfinite(number), number, 0.0), full
    seconds = stage_time_s(model, layers + 0.0 * full, counts, np.zeros((1, full.shape[1])))
    within = np.isfinite(number) & (seconds <= slowest_s[:, None] * (1.0 + ROUNDING))
    fits: Mask = within.any(axis=1) | (layers[:, 0] <= 0)
    return fits


def leading_selective(model: StageModel, layers: Array, full: Array) -> Array:
    """Fewest selective layers with which a first stage with leading layers fits in HBM.

    For ``layers`` of which ``full`` are recomputed in full (matrices of strategies x choices);
    infinite where none suffice. Leading layers become selective first, each saving amounts of its
    own, so the number follows from what is missing: among leading layers, else behind all of them.
    """
    stages, policies = np.zeros((1, layers.shape[1])), model.policies
    counts = np.zeros((len(POLICIES), *layers.shape))
    counts[FULL] = full
    held = stage_held_bytes(model, layers, counts, stages)
    limit = model.held_limit_bytes[:, None]
    rebuilt = policies.workspace_bytes[FULL][:, None] * (full > 0)
    beside = np.maximum(rebuilt, policies.workspace_bytes[SELECTIVE][:, None])
    more = transient_bytes(model, stages, beside) - transient_bytes(model, stages, rebuilt)
    excess, flight = held + more - limit, in_flight_matrix(model, stages)
    behind = flight * (model.saved_bytes - policies.saved_bytes[SELECTIVE])[:, None]
    own = (model.lead_saved_bytes - policies.lead_saved_bytes[SELECTIVE])[:, None]
    leading = behind + flight * own
    left = np.maximum(model.num_leading - full, 0.0)
    among = _needed(excess, leading)
    number = np.minimum(
        np.where(among <= left, among, np.inf), left + _needed(excess - left * leading, behind)
    )
    number = np.where(held <= limit * (1.0 + BYTES_ROUNDING), 0.0, number)
    return np.where(number <= layers - full, number, np.inf)


def _needed(excess: Array, saved: Array) -> Array:
    """How many layers, at least one, save the excess; infinite where layers save nothing."""
    number = np.ceil(excess / np.where(saved > 0, saved, 1.0) - ROUNDING)
    return np.where(saved > 0, np.maximum(number, 1.0), np.inf)
