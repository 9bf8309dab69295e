"""Fits the figures of a machine to points, each held to what the catalog says of it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibrate.figures import FIGURES, Base, Known, known, with_factors, with_fresh
from planner.calibrate.points import DISKS, NOISE, Point
from planner.spec.cluster import ClusterSpec
from planner.units import Array

ROUNDS = 6
STEP = 1e-3
"""Of a logarithm, for derivatives."""
LEAST_EFFECT = 0.02
"""A figure that no point follows by this share of its change is left as it is."""
INDEPENDENT = 4.0
"""Points of one file and kind that count as independent at most: they share node, day, settings."""
FAR = 2.0
"""Deviations from which a point counts less (Huber's weights)."""
STRANGE = 3.0
"""Times by which machines of a kind do not differ in RATES; latencies of collectives may."""
RATES = ("product", "attention", "memory-bound", "host link", "run")


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """One figure, as the catalog has it and as the points make it."""

    key: str
    catalog: Known
    value: float
    deviation: float
    """Relative, of what is written."""
    num_points: int
    """That depend on it."""

    @property
    def is_known(self) -> bool:
        """Whether the catalog has a figure of it."""
        return self.catalog.basis != "none"

    @property
    def change(self) -> float:
        """Relative."""
        return self.value / self.catalog.value - 1.0


@dataclass(frozen=True, kw_only=True)
class Own:
    """How far the model is from one file, before and after."""

    path: str
    kind: str
    num_points: int
    before: float
    """Mean of the absolute errors, predicted over measured minus one."""
    after: float
    ratio: float
    """Predicted over measured before, the median."""

    @property
    def is_strange(self) -> bool:
        """So far from the catalog's machine that it may be another one's."""
        return self.kind in RATES and not 1.0 / STRANGE < self.ratio < STRANGE


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What changes, and what that does to the points."""

    base: Base
    fitted: tuple[Fitted, ...]
    own: tuple[Own, ...]

    @property
    def factors(self) -> Mapping[str, float]:
        """Of each figure, new over old."""
        return {each.key: each.value / each.catalog.value for each in self.fitted}

    @property
    def cluster(self) -> ClusterSpec:
        """The machine as it is after."""
        return with_factors(self.base.cluster, self.factors)


def calibrate(base: Base, points: Sequence[Point]) -> Calibration:
    """The most probable figures.

    Minimises ``Σ w_i (ln p_i(θ) - ln t_i)² / σ_i² + Σ_j θ_j² / s_j²`` by Gauss and Newton, θ the
    logarithms of new over old; s the deviation of the catalog's figure by its basis, σ that of a
    kind of point (NOISE), ``w_i = min(1, INDEPENDENT / points of the file) · Huber``. So a few
    points move a figure by little more than what the catalog leaves open. A fraction ends at 1.
    """
    base = with_fresh(base, _disks(points))
    priors = {key: each for key in FIGURES if (each := known(base, key))}
    residual = _residuals(base.cluster, points, {})
    effects = {key: _effect(base.cluster, points, {}, key, residual) for key in priors}
    used = [key for key, effect in effects.items() if np.max(np.abs(effect)) > LEAST_EFFECT]
    theta, scales = np.zeros(len(used)), np.array([priors[key].deviation for key in used])
    normal = np.diag(1.0 / scales**2)
    for _ in range(ROUNDS if used else 0):
        factors = _factors(used, theta)
        residual = _residuals(base.cluster, points, factors)
        slopes = np.stack(
            [_effect(base.cluster, points, factors, key, residual) for key in used], axis=1
        )
        weights = _weights(points, residual)
        normal = slopes.T @ (weights[:, None] * slopes) + np.diag(1.0 / scales**2)
        pull = slopes.T @ (weights * residual) + theta / scales**2
        theta = _within(used, theta - np.linalg.solve(normal, pull), priors)
    spread = np.sqrt(np.diag(np.linalg.inv(normal))) if used else np.zeros(0)
    fitted = tuple(
        Fitted(
            key=key,
            catalog=priors[key],
            value=priors[key].value * math.exp(theta[at]),
            deviation=float(spread[at]),
            num_points=int(np.sum(np.abs(effects[key]) > LEAST_EFFECT)),
        )
        for at, key in enumerate(used)
    )
    return Calibration(
        base=base, fitted=fitted, own=own_errors(base, points, _factors(used, theta))
    )


def _disks(points: Sequence[Point]) -> dict[str, list[float]]:
    """What was measured of disks, by its key in a cluster file."""
    return {key: [point.measured for point in points if point.key == key] for key in DISKS}


def _factors(keys: Sequence[str], theta: Array) -> dict[str, float]:
    return {key: math.exp(value) for key, value in zip(keys, theta, strict=True)}


def _residuals(
    cluster: ClusterSpec, points: Sequence[Point], factors: Mapping[str, float]
) -> Array:
    """``ln predicted - ln measured`` of every point."""
    machine = with_factors(cluster, factors)
    return np.array([math.log(point.predict(machine) / point.measured) for point in points])


def _effect(
    cluster: ClusterSpec,
    points: Sequence[Point],
    factors: Mapping[str, float],
    key: str,
    residual: Array,
) -> Array:
    """By how much predictions follow a figure, in logarithms."""
    moved = {**factors, key: factors.get(key, 1.0) * math.exp(-STEP)}
    return (residual - _residuals(cluster, points, moved)) / STEP


def _weights(points: Sequence[Point], residual: Array) -> Array:
    """Inverse variances: of the kind, shared by the points of a file, less where far off."""
    number = Counter((point.path, point.kind) for point in points)
    noise = np.array([NOISE[point.kind] for point in points])
    shared = np.array([min(1.0, INDEPENDENT / number[p.path, p.kind]) for p in points])
    huber = np.minimum(1.0, FAR * noise / np.maximum(np.abs(residual), 1e-12))
    weights: Array = shared * huber / noise**2
    return weights


def _within(keys: Sequence[str], theta: Array, priors: Mapping[str, Known]) -> Array:
    """Fractions end at 1."""
    most = [-math.log(priors[key].value) if key.endswith("fraction") else math.inf for key in keys]
    held: Array = np.minimum(theta, np.array(most))
    return held


def own_errors(
    base: Base, points: Sequence[Point], factors: Mapping[str, float]
) -> tuple[Own, ...]:
    """How far the model is from each file, kind by kind."""
    residual = _residuals(base.cluster, points, {})
    before = np.abs(np.expm1(residual))
    after = np.abs(np.expm1(_residuals(base.cluster, points, factors)))
    found = []
    for path, kind in dict.fromkeys((point.path, point.kind) for point in points):
        mine = [at for at, p in enumerate(points) if (p.path, p.kind) == (path, kind)]
        found.append(
            Own(
                path=path,
                kind=kind,
                num_points=len(mine),
                before=float(np.mean(before[mine])),
                after=float(np.mean(after[mine])),
                ratio=math.exp(float(np.median(residual[mine]))),
            )
        )
    return tuple(found)
