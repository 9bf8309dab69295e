"""Least squares of logarithms with priors: what a few figures of a formula must be."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.units import Array

ROUNDS = 60
STEP = 1e-4
DAMPING = (1e-3, 10.0, 1e-9, 1e9)
"""First, factor, least, most."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Figures, each with its relative standard deviation, and how far the formula is off."""

    values: Array
    deviations: Array
    error: float
    """Root mean square of ``ln predicted - ln measured``."""


def ridge(
    predict: Callable[[Array], Array], measured: Array, start: Array, deviation: Array
) -> Fit:
    """The figures that minimise ``Σ (ln p - ln t)² / σ² + Σ (ln v - ln start)² / s²``.

    σ is the root mean square of what is left, no less than 1 %: found with the figures, by
    Levenberg and Marquardt. ``deviation``: s, of the logarithms of ``start``.
    """
    prior, target = np.log(start), np.log(measured)
    theta, noise = prior.copy(), 0.1
    for _ in range(3):
        theta = _solve(predict, target, prior, deviation, theta, noise)
        left = np.log(predict(np.exp(theta))) - target
        noise = max(float(np.sqrt(np.mean(left**2))), 0.01)
    slopes = _slopes(predict, theta)
    normal = slopes.T @ slopes / noise**2 + np.diag(1.0 / deviation**2)
    return Fit(
        values=np.exp(theta), deviations=np.sqrt(np.diag(np.linalg.inv(normal))), error=noise
    )


def _slopes(predict: Callable[[Array], Array], theta: Array) -> Array:
    here = np.log(predict(np.exp(theta)))
    moved = [np.log(predict(np.exp(theta + STEP * axis))) for axis in np.eye(len(theta))]
    return np.stack([(each - here) / STEP for each in moved], axis=1)


def _solve(
    predict: Callable[[Array], Array],
    target: Array,
    prior: Array,
    deviation: Array,
    theta: Array,
    noise: float,
) -> Array:
    def loss(at: Array) -> float:
        left = (np.log(predict(np.exp(at))) - target) / noise
        return float(left @ left + np.sum(((at - prior) / deviation) ** 2))

    damping, factor, least, most = DAMPING
    best = loss(theta)
    for _ in range(ROUNDS):
        left = (np.log(predict(np.exp(theta))) - target) / noise
        slopes = _slopes(predict, theta) / noise
        normal = slopes.T @ slopes + np.diag(1.0 / deviation**2)
        pull = slopes.T @ left + (theta - prior) / deviation**2
        damped = normal + damping * np.diag(np.diag(normal))
        trial = theta - np.linalg.solve(damped, pull)
        value = loss(trial)
        if value < best:
            gained, theta, best, damping = best - value, trial, value, max(damping / factor, least)
            if gained < 1e-9 * best:
                break
        elif damping > most:
            break
        else:
            damping *= factor
    return theta
