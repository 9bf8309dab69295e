"""Least squares of logarithms with priors: the figures of a machine, or of one formula."""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from planner.calibrate.figures import FIGURES, Base, Figure, known, named_files, with_factors
from planner.calibrate.points import NOISE, Point
from planner.catalog.cluster_file import file_text
from planner.spec.cluster import ClusterSpec
from planner.units import Array, plural

STEP = 1e-3  # of a logarithm, for derivatives
LEAST_EFFECT = 0.02  # a figure that no point follows by this share of its change is left as it is
# Points of one file and kind that count as independent at most: they share node, day, settings.
INDEPENDENT = 4.0
FORMULA_STEP = 1e-4


@dataclass(frozen=True, kw_only=True)
class OwnErrors:
    """Error of the model on one file, before and after."""

    path: str
    kind: str
    num_points: int
    before: float  # mean of the absolute errors, predicted over measured minus one
    after: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A cluster's figures that measurements change, or all of a machine stated whole."""

    base: Base
    figures: tuple[Figure, ...]
    own: tuple[OwnErrors, ...]


def calibrate(base: Base, points: Sequence[Point]) -> Calibration:
    """The most probable figures.

    Minimises ``Σ w_i (ln p_i(θ) - ln t_i)² / σ_i² + Σ_j θ_j² / s_j²`` by Gauss and Newton, θ the
    logarithms of new over old; s the deviation of the catalog's figure by its basis, σ that of a
    kind of point (NOISE), ``w_i = min(1, INDEPENDENT / points of the file) · Huber``. So a few
    points move a figure by little more than what the catalog leaves open. A fraction ends at 1.
    """
    priors = {key: each for key in FIGURES if (each := known(base, key))}
    # downwards: a fraction may stand at 1 already
    slopes = _slopes(_errors(base.cluster, points, list(priors)), np.zeros(len(priors)), -STEP)
    effects = dict(zip(priors, np.abs(slopes).T, strict=True))
    used = [key for key, effect in effects.items() if np.max(effect) > LEAST_EFFECT]
    errors = _errors(base.cluster, points, used)
    theta, scales = np.zeros(len(used)), np.array([priors[key].deviation for key in used])
    most = [1.0 / priors[key].value if key.endswith("fraction") else np.inf for key in used]
    # inverse variances: of the kind, shared by the points of a file
    noise = np.array([NOISE[point.kind] for point in points])
    number = Counter((point.place.path, point.kind) for point in points)
    shared = [min(1.0, INDEPENDENT / number[each.place.path, each.kind]) for each in points]
    spread = scales
    # six rounds: further ones change nothing that is written
    for _ in range(6 if used else 0):
        residual, slopes = errors(theta), _slopes(errors, theta, -STEP)
        # from two deviations on a point counts less (Huber); 1e-12: one may be met exactly
        huber = np.minimum(1.0, 2.0 * noise / np.maximum(np.abs(residual), 1e-12))
        weights = shared * huber / noise**2
        normal = slopes.T @ (weights[:, None] * slopes) + np.diag(1.0 / scales**2)
        pull = slopes.T @ (weights * residual) + theta / scales**2
        theta = np.minimum(theta - np.linalg.solve(normal, pull), np.log(most))
        spread = np.sqrt(np.diag(np.linalg.inv(normal)))
    figures = []
    for key, change, deviation in zip(used, theta, spread, strict=True):
        value, was = priors[key].value * math.exp(change), priors[key].value
        count = int(np.sum(effects[key] > LEAST_EFFECT))
        basis = priors[key].basis
        figures.append(Figure(key, value, float(deviation), count, basis=basis, catalog=was))
    own = own_errors(base, points, dict(zip(used, theta, strict=True)))
    return Calibration(base=base, figures=tuple(figures), own=own)


def _errors(
    cluster: ClusterSpec, points: Sequence[Point], keys: Sequence[str]
) -> Callable[[Array], Array]:
    """Predicted over measured of every point by factors of figures, both in logarithms."""

    def errors(theta: Array) -> Array:
        machine = with_factors(cluster, dict(zip(keys, np.exp(theta), strict=True)))
        return np.log([point.predict(machine) / point.measured for point in points])

    return errors


def _slopes(errors: Callable[[Array], Array], theta: Array, step: float) -> Array:
    """Return the derivatives of the errors by each figure, in logarithms."""
    here = errors(theta)
    moved = [errors(theta + axis) for axis in step * np.eye(len(theta))]
    return np.stack([(each - here) / step for each in moved], axis=1)


def own_errors(
    base: Base, points: Sequence[Point], theta: Mapping[str, float]
) -> tuple[OwnErrors, ...]:
    """Return the model's error on each file, by kind; ``theta``: logarithms of new over old."""
    errors = _errors(base.cluster, points, list(theta))
    before = np.abs(np.expm1(errors(np.zeros(len(theta)))))
    after = np.abs(np.expm1(errors(np.array(list(theta.values())))))
    rows: dict[tuple[str, str], list[int]] = {}
    for at, point in enumerate(points):
        rows.setdefault((point.place.path, point.kind), []).append(at)
    return tuple(
        OwnErrors(
            path=path,
            kind=kind,
            num_points=len(mine),
            before=float(np.mean(before[mine])),
            after=float(np.mean(after[mine])),
        )
        for (path, kind), mine in rows.items()
    )


@dataclass(frozen=True, kw_only=True)
class FormulaFit:
    """Figures of a formula, each with its relative standard deviation, and how far it is off."""

    values: Array
    deviations: Array
    error: float  # root mean square of `ln predicted - ln measured`


def fit_formula(
    predict: Callable[[Array], Array],
    measured: Sequence[float] | Array,
    start: Array,
    deviation: Array,
) -> FormulaFit:
    """The figures that minimise ``Σ (ln p - ln t)² / σ² + Σ (ln v - ln start)² / s²``.

    σ is the root mean square of what is left, no less than 1 %: found with the figures, by
    Levenberg and Marquardt. ``deviation``: s, of the logarithms of ``start``.
    """
    prior = theta = np.log(start)
    noise = 0.1

    def rows(at: Array, noise: float) -> Array:
        left = np.log(predict(np.exp(at))) - np.log(measured)
        return np.concatenate([left / noise, (at - prior) / deviation])

    # the noise of a round is what the round before left
    for _ in range(3):
        theta = _solve(partial(rows, noise=noise), theta)
        left = rows(theta, 1.0)[: len(measured)]
        # no formula is taken to be nearer to a measurement than 1 %
        noise = max(float(np.sqrt(np.mean(left**2))), 0.01)
    slopes = _slopes(partial(rows, noise=noise), theta, FORMULA_STEP)
    deviations = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
    return FormulaFit(values=np.exp(theta), deviations=deviations, error=noise)


def _solve(rows: Callable[[Array], Array], theta: Array) -> Array:
    """Return the point of the least sum of squared rows, by steps damped while they fail."""
    damping, left = 1e-3, rows(theta)
    for _ in range(60):
        slopes = _slopes(rows, theta, FORMULA_STEP)
        normal = slopes.T @ slopes
        damped = normal + damping * np.diag(np.diag(normal))
        trial = theta - np.linalg.solve(damped, slopes.T @ left)
        tried = rows(trial)
        gained = left @ left - tried @ tried
        if gained > 0.0:
            theta, left = trial, tried
        is_done = 0.0 < gained < 1e-9 * (left @ left)
        if is_done or (gained <= 0.0 and damping > 1e9):
            break
        damping *= 10.0 if gained <= 0.0 else 0.1
    return theta


def cluster_text(made: Calibration, command: str, day: date, folder: Path) -> str:
    """The base's cluster file, with the fitted figures among its overrides.

    Each has its spread, its points and the day. ``folder`` is where the file will lie: files that
    it names are found from there.
    """
    files = named_files(made.base.raw)
    rest = {**made.base.raw, **{key: os.path.relpath(files[key], folder) for key in files}}
    fitted = {each.key for each in made.figures}
    given = rest.pop("overrides", {})
    overrides = [(key, f"{given[key]!r}", "") for key in given if key not in fitted]
    for each in made.figures:
        spread = f"+- {each.value * each.deviation:.2g}, {plural(each.num_points, 'point')}"
        comment = f"{spread}, {day.isoformat()}; {each.basis}: {each.catalog:g}"
        overrides.append((each.key, f"{each.value:.6g}", comment))
    remarks = [f"{_own(each)} {each.before:.1%} before, {each.after:.1%} now" for each in made.own]
    return file_text(f"`{command}` on {day.isoformat()}", remarks, rest, overrides)


def machine_text(made: Calibration, command: str, day: str) -> str:
    """The file of a machine stated whole; how well the model follows it stands in comments."""
    remarks = [f"{_own(each)} {each.after:.1%}" for each in made.own]
    return file_text(f"`{command}` of {day}", remarks, made.base.raw)


def _own(errors: OwnErrors) -> str:
    return f"  {errors.path}: {errors.num_points} x {errors.kind}, mean error"
