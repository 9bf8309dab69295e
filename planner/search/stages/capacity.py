"""What a stage can hold: its limits, and the most layers within a time and its memory.

Matrices are strategies x stages. The rows of a call may differ in pipeline degree; stages beyond
a row's own hold no layers.
"""

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.stage import (
    StageModel,
    all_stages,
    fixed_bytes,
    fixed_host_bytes,
    fixed_time_s,
    in_flight_matrix,
    transient_bytes,
)
from planner.search.space.interleaving import chunk_size, range_at
from planner.spec.strategy import POLICIES
from planner.units import Array, Mask, Rows

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

    def take(self, rows: Rows) -> "Limits":
        """Return the strategies at ``rows``."""
        return Limits(**{f.name: getattr(self, f.name)[..., rows, :] for f in fields(self)})

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
    stages = all_stages(num_stages)
    return limits_at(model, stages, *layer_ranges(model, num_layers, stages))


def layer_ranges(model: StageModel, num_layers: int, stages: Array) -> tuple[Array, Array]:
    """Fewest and most layers of the given stages, 1 x P or C x P, whatever the others hold.

    Where chunks hold a least number N of layers, an end stage of v chunks of up to k layers lacks
    some of one chunk, so it holds ``(v - 1) k + N`` or more, others ``v N``.
    """
    strategy = model.strategy
    fewest, most = range_at(strategy, num_layers, stages, uneven_stages=model.uneven_stages)
    least = model.least_chunk_layers[:, None]
    if least.any():
        pp, vpp = strategy.pp[:, None] * 1.0, strategy.vpp[:, None] * 1.0
        is_end = (stages == 0) | (stages == pp - 1)
        others = np.where(
            is_end, (vpp - 1.0) * chunk_size(num_layers, pp, vpp), (vpp - 1.0) * least
        )
        fewest = np.maximum(fewest, (others + least) * (stages < pp))
    return fewest, most


def limits_at(model: StageModel, stages: Array, fewest: Array, most: Array) -> Limits:
    """Collect the coefficients of the given stages, 1 x P or C x P."""
    flight = in_flight_matrix(model, stages)
    room = model.held_limit_bytes[:, None] - fixed_bytes(model, stages, flight)
    if model.num_leading:
        room = room + leading_relief_bytes(model)[:, None] * flight * (stages == 0)
    static = model.layer_static_bytes[:, None]
    host = model.host_limit_bytes[:, None] - fixed_host_bytes(model, stages)
    per_layer = model.layer_host_bytes[:, None]
    spaces = model.policies.workspace_bytes[:, :, None]
    return Limits(
        fixed_s=fixed_time_s(model, stages),
        room_bytes=room - transient_bytes(model, stages, 0.0),
        policy_room_bytes=room - transient_bytes(model, stages, spaces),
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

    def least_added_s(self, most: Array, num_layers: int) -> Array:
        """Least sum over stages of time spent on policies, where stages hold at most ``most``.

        A stage holds ``room / a`` layers for nothing and pays at least ``a / ρ`` for each more;
        layers go to the cheapest stages, and fractions of them are allowed.
        """
        free = np.clip(self.unrecomputed, 0.0, most)
        missing = num_layers - free.sum(axis=1)
        added = np.zeros(len(most))
        rows = np.flatnonzero(missing > 0)
        if not len(rows) or not self.regimes:
            return added
        per_layer_s = np.full((len(rows), most.shape[1]), np.inf)
        for _, rate, _, per_layer in self.regimes:
            rate, own_bytes = rate[rows], (per_layer - rate * self.layer_s)[rows]
            seconds = own_bytes / np.where(rate > 0, rate, 1.0)
            per_layer_s = np.where(rate > 0, np.minimum(per_layer_s, seconds), per_layer_s)
        per_layer_s = np.where(np.isfinite(per_layer_s), np.maximum(per_layer_s, 0.0), 0.0)
        order = np.argsort(per_layer_s, axis=1)
        more = np.take_along_axis((most - free)[rows], order, axis=1)
        before = np.cumsum(more, axis=1) - more
        taken = np.clip(missing[rows][:, None] - before, 0.0, more)
        added[rows] = (taken * np.take_along_axis(per_layer_s, order, axis=1)).sum(axis=1)
        return added

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
