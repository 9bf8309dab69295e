"""Capacity of a stage: its limits, and the most layers within a time and its memory.

Matrices are strategies x stages. The rows of a call may differ in pipeline degree; stages beyond
a row's own hold no layers.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from planner.cost.context import Rowed
from planner.cost.stage import StageModel, all_stages
from planner.search.space.interleaving import chunk_size, range_at
from planner.units import Array, Mask

ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Limits(Rowed):
    """Limits on the layers of a stage: time per layer and bytes per layer by policy."""

    rows_axis: ClassVar[int] = -2
    fixed_s: Array
    room_bytes: Array
    """Left for layers while none is under a policy; leading layers are taken to keep the least
    they can, so never too small."""
    policy_room_bytes: Array  # Left while some layer is under a policy, K x C x P
    layer_bytes: Array  # Static and saved bytes of one layer under no policy
    policy_bytes: Array  # And under each, K x C x P
    max_layers: Array  # Whatever the policies: by states on the host, and by the optimizer's step
    fewest: Array
    most: Array  # Layers the stage may have at all


def stage_limits(model: StageModel, num_stages: int) -> Limits:
    """Collect the coefficients of every stage."""
    stages = all_stages(num_stages)
    return limits_at(model, stages, *layer_ranges(model, stages))


def layer_ranges(model: StageModel, stages: Array) -> tuple[Array, Array]:
    """Fewest and most layers of the given stages, 1 x P or C x P, whatever the others hold.

    Where chunks hold a least number N of layers, an end stage of v chunks of up to k layers lacks
    some of one chunk, so it holds ``(v - 1) k + N`` or more, others ``v N``.
    """
    strategy = model.strategy
    fewest, most = range_at(strategy, model.num_layers, stages)
    least = model.least_chunk_layers[:, None]
    if least.any():
        pp = strategy.pp[:, None] * 1.0
        vpp = strategy.vpp[:, None] * 1.0
        is_end = (stages == 0) | (stages == pp - 1)
        size = chunk_size(model.num_layers, pp, vpp)
        others = np.where(is_end, (vpp - 1.0) * size, (vpp - 1.0) * least)
        fewest = np.maximum(fewest, (others + least) * (stages < pp))
    return fewest, most


def limits_at(model: StageModel, stages: Array, fewest: Array, most: Array) -> Limits:
    """Collect the coefficients of the given stages, 1 x P or C x P."""
    flight = model.in_flight(stages)
    limit = model.held_limit_bytes[:, None]
    room = limit - model.fixed_bytes(stages, flight)
    if model.num_leading:
        # By which leading layers may keep less, per micro-batch, than as many other layers.
        least = np.minimum(model.lead_saved_bytes, model.policies.lead_saved_bytes.min(axis=0))
        relief = model.num_leading * np.maximum(-least, 0.0)
        room = room + relief[:, None] * flight * (stages == 0)
    static = model.layer_static_bytes[:, None]

    def most_layers(room: Array, per_layer: Array) -> Array:
        each = np.where(per_layer > 0, per_layer, 1.0)
        return np.where(per_layer > 0, room / each, np.where(room < 0, 0.0, np.inf))

    host = model.host_limit_bytes[:, None] - model.fixed_host_bytes(stages)
    max_layers = most_layers(host, model.layer_host_bytes[:, None])
    if model.step_bytes.any():
        free = limit - model.step_held_bytes(0.0, stages)
        max_layers = np.minimum(max_layers, most_layers(free, model.step_bytes[1][:, None]))
    return Limits(
        fixed_s=model.fixed_time_s(stages),
        room_bytes=room - model.transient_bytes(stages, 0.0),
        policy_room_bytes=room
        - model.transient_bytes(stages, model.policies.workspace_bytes[:, :, None]),
        layer_bytes=static + flight * model.saved_bytes[:, None],
        policy_bytes=static + flight * model.policies.saved_bytes[:, :, None],
        max_layers=max_layers,
        fewest=fewest,
        most=most,
    )


def _regimes(model: StageModel, limits: Limits) -> Array:
    """Room, best saving rate, most layers and their bytes, by the largest workspace that is used.

    A stage whose largest workspace is that of policy k uses only policies with no larger one.
    Policies that save nothing anywhere are left out.
    """
    policies = model.policies
    saves = (policies.saved_bytes < model.saved_bytes).any(axis=1)
    useful: list[int] = np.flatnonzero(saves).tolist()
    added = np.maximum(policies.added_s, 1e-15)
    saved = limits.layer_bytes - limits.policy_bytes
    rates = {k: saved[k] / added[k][:, None] for k in useful}
    regimes = np.zeros((len(useful), 4, *limits.layer_bytes.shape))
    for place, k in enumerate(useful):
        rate = np.maximum(rates[k], 0.0)
        least = np.minimum(limits.layer_bytes, limits.policy_bytes[k])
        for j in useful:
            joins = (policies.workspace_bytes[j] <= policies.workspace_bytes[k])[:, None]
            if j != k and joins.any():
                rate = np.maximum(rate, rates[j] * joins)
                least = np.where(joins, np.minimum(least, limits.policy_bytes[j]), least)
        room = limits.policy_room_bytes[k]
        per_layer = limits.layer_bytes + rate * model.layer_s[:, None]
        regimes[place] = room, rate, room / least, per_layer
    return regimes


@dataclass(frozen=True, kw_only=True)
class Capacity(Rowed):
    """Most whole layers each stage can hold within a time per micro-batch and its memory."""

    rows_axis: ClassVar[int] = -2
    num_layers: int  # Of the whole model
    layer_s: Array
    fixed_s: Array
    fewest: Array
    most: Array  # Whatever the time, and whatever the device's memory
    unrecomputed: Array
    regimes: Array
    """Room, savings rate, most layers by memory, and bytes that a layer takes at that rate; of
    every largest workspace that is used, R x 4 x C x P."""

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

    def holds(self, most: Array) -> Mask:
        """True where stages of at most ``most`` layers can hold the model."""
        enough = most.sum(axis=1) >= self.num_layers
        reached = (most >= self.fewest).all(axis=1)
        holds: Mask = enough & reached
        return holds


def capacity_of(model: StageModel, limits: Limits) -> Capacity:
    """Return the capacity for layers that the limits of every stage leave."""
    layer_s = model.layer_s[:, None]
    most = np.minimum(limits.max_layers, limits.most)
    return Capacity(
        num_layers=model.num_layers,
        layer_s=layer_s,
        fixed_s=limits.fixed_s,
        fewest=limits.fewest,
        most=most,
        unrecomputed=np.minimum(limits.room_bytes / limits.layer_bytes, most),
        regimes=_regimes(model, limits),
    )
