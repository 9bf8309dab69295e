"""Fits the constants that published runs helped to choose on some runs, to score the others.

The constants live in hwdb and in the frameworks' traits; ``constants.yaml`` lists them with what
was believed before the fit (prior and plausible range) and why. Least squares of
log(predicted / measured) with Gaussian priors, robust against outliers (Huber), linearised once
and iterated with exact predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import TypeVar

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import iteration_time_s, price
from planner.documents.tree import load_own
from planner.units import Array, Mask
from tools.validation.mapping import Run, to_run
from tools.validation.records import Record
from tools.validation.setup import CannotEstimateError
from tools.validation.summary import Errors, summarize

T = TypeVar("T")
NOISE = 0.06
"""Log error that a perfect model would still have: identical published runs differ by 6 %."""
HUBER = 0.7
"""Residuals beyond this many times NOISE count linearly."""
STEPS = 3
DIFFERENCE = 0.25
"""Step of the numeric derivative, in standard deviations of the prior."""
BOUND = 2.0
"""Constants stay within this many standard deviations of their priors: their range."""
NUM_HALVES = 6
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One fitted figure of a Context."""

    name: str
    path: str
    """Dotted field of Context."""
    where: Mapping[str, tuple[str, ...]]
    """It applies to contexts whose fields have one of these values."""
    prior: float
    low: float
    high: float
    source: str
    """Of prior and range, not of the fit."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the prior: the range is two of them to either side."""
        return (self.high - self.low) / 4.0

    def applies(self, context: Context) -> bool:
        """Whether the context has this constant."""
        return all(str(get(context, path)) in allowed for path, allowed in self.where.items())

    def value(self, context: Context) -> float:
        """The figure in force."""
        figure = get(context, self.path)
        assert isinstance(figure, (int, float)), self.path
        return float(figure)

    def set(self, context: Context, value: float) -> Context:
        """Return the context with another figure; unchanged where the constant does not apply."""
        if not self.applies(context):
            return context
        return _put(context, self.path.split("."), value)


def get(record: object, path: str) -> object:
    """Follow a dotted path through nested dataclasses."""
    return reduce(getattr, path.split("."), record)


def _put(record: T, path: list[str], value: float) -> T:
    name, *rest = path
    inner = _put(getattr(record, name), rest, value) if rest else value
    return replace(record, **{name: inner})  # type: ignore[type-var]


@cache
def load_constants() -> tuple[Constant, ...]:
    """Return the list of constants.yaml."""
    return tuple(
        Constant(
            name=name,
            path=entry["path"],
            where={path: tuple(map(str, values)) for path, values in entry["where"].items()},
            prior=float(entry["prior"]),
            low=float(entry["range"][0]),
            high=float(entry["range"][1]),
            source=entry["source"],
        )
        for name, entry in load_own(__package__, "constants.yaml").items()
    )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A run to fit or score: its inputs and its measured time."""

    record: Record
    run: Run

    @property
    def group(self) -> tuple[str, str, str]:
        """Source, model and GPU: what is held out together."""
        return self.record.source.title, self.record.model.name, self.record.hardware.gpu

    @property
    def measured_s(self) -> float:
        """Published seconds per iteration."""
        assert self.record.iter_time_s is not None
        return self.record.iter_time_s


@dataclass(frozen=True, kw_only=True)
class Half:
    """One split: error on the groups fitted and on those held out."""

    train: Errors
    test: Errors


@dataclass(frozen=True, kw_only=True)
class FittedConstant:
    """One constant: what all samples together would make of it, beside what is in force."""

    constant: Constant
    in_force: float
    fitted: float
    standard_error: float
    """Of the fit, prior included."""
    num_samples: int
    """Samples it applies to."""


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """What fitting on half of the groups says about the other half."""

    prior: Errors
    """All samples under the priors, nothing fitted."""
    fitted: Errors
    """All samples under constants fitted to all of them."""
    constants: tuple[FittedConstant, ...]
    halves: tuple[Half, ...]

    @property
    def test_mean(self) -> float:
        """:func:`held_out_mean` of the halves."""
        return held_out_mean(self.halves)


def samples_of(records: Sequence[Record]) -> list[Sample]:
    """Return the dense runs whose time counts in the headline."""
    found = []
    for record in records:
        if not (record.is_scored and record.has_direct_time and record.iter_time_s):
            continue
        if record.model.moe is not None:
            continue
        try:
            found.append(Sample(record=record, run=to_run(record)))
        except CannotEstimateError:
            continue
    return found


def predicted_s(run: Run, context: Context) -> float:
    """Seconds per iteration of a run under a changed context."""
    return iteration_time_s(price(context, run.strategy))


def _context(sample: Sample, constants: Sequence[Constant], theta: Array) -> Context:
    """The sample's context with every constant ``theta`` standard deviations off its prior."""
    context = sample.run.context
    for constant, offset in zip(constants, theta, strict=True):
        value = np.clip(constant.prior + offset * constant.sigma, constant.low, constant.high)
        context = constant.set(context, float(value))
    return context


def _log_errors(samples: Sequence[Sample], constants: Sequence[Constant], theta: Array) -> Array:
    return np.array(
        [np.log(predicted_s(s.run, _context(s, constants, theta)) / s.measured_s) for s in samples]
    )


def _jacobian(samples: Sequence[Sample], constants: Sequence[Constant], base: Array) -> Array:
    """Derivative of every log error by every constant, at the priors; (samples, constants)."""
    slopes = np.zeros((len(samples), len(constants)))
    for column, constant in enumerate(constants):
        theta = np.zeros(len(constants))
        theta[column] = DIFFERENCE
        for row, sample in enumerate(samples):
            if constant.applies(sample.run.context):
                moved = predicted_s(sample.run, _context(sample, constants, theta))
                error = np.log(moved / sample.measured_s)
                slopes[row, column] = (error - base[row]) / DIFFERENCE
    return slopes


def _weights(errors: Array) -> Array:
    """Huber weights: 1 near zero, falling as 1/|error| beyond HUBER · NOISE."""
    return np.asarray(np.minimum(1.0, HUBER * NOISE / np.maximum(np.abs(errors), 1e-12)))


def _solve(errors: Array, slopes: Array, theta: Array) -> Array:
    """One ridge step: least Σ w (e + J d)² / NOISE² + |theta + d|²."""
    weights = _weights(errors)[:, None] / NOISE**2
    normal = slopes.T @ (weights * slopes) + np.eye(len(theta))
    gradient = slopes.T @ (weights[:, 0] * errors) + theta
    step = np.linalg.solve(normal, -gradient)
    return np.asarray(np.clip(theta + step, -BOUND, BOUND), dtype=float)


def fit(
    samples: Sequence[Sample], constants: Sequence[Constant], base: Array, slopes: Array
) -> Array:
    """Return the constants' offsets from their priors, in standard deviations.

    ``base`` and ``slopes`` are the log errors at the priors and their derivatives.
    """
    theta: Array = np.zeros(len(constants))
    errors: Array = base
    for step in range(STEPS):
        theta = _solve(errors, slopes, theta)
        if step < STEPS - 1:
            errors = _log_errors(samples, constants, theta)
    return theta


def _summary(log_errors: Array) -> Errors:
    return summarize([float(error) for error in np.expm1(log_errors)])


def split_groups(samples: Sequence[Sample], seed: int) -> Mask:
    """Mask of the samples whose group falls into the first half of a random order."""
    groups = sorted({sample.group for sample in samples})
    order = np.random.default_rng(seed).permutation(len(groups))
    first = {groups[i] for i in order[: len(groups) // 2]}
    return np.array([sample.group in first for sample in samples])


def _fitted(
    samples: Sequence[Sample], constants: Sequence[Constant], theta: Array, slopes: Array
) -> tuple[FittedConstant, ...]:
    """Set every fitted constant beside the value in force."""
    precision = slopes.T @ slopes / NOISE**2 + np.eye(len(constants))
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    found = []
    for constant, offset, deviation in zip(constants, theta, deviations, strict=True):
        concerned = [s.run.context for s in samples if constant.applies(s.run.context)]
        (in_force,) = {constant.value(context) for context in concerned}
        found.append(
            FittedConstant(
                constant=constant,
                in_force=in_force,
                fitted=constant.prior + float(offset) * constant.sigma,
                standard_error=float(deviation) * constant.sigma,
                num_samples=len(concerned),
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Linearised:
    """Where a fit starts: errors at the priors and their derivatives by the constants."""

    constants: tuple[Constant, ...]
    """Those that apply to a sample."""
    base: Array
    slopes: Array


def linearised(samples: Sequence[Sample], constants: Sequence[Constant]) -> Linearised:
    """Price the samples at the priors, and with each constant moved."""
    known = tuple(c for c in constants if any(c.applies(s.run.context) for s in samples))
    base = _log_errors(samples, known, np.zeros(len(known)))
    return Linearised(constants=known, base=base, slopes=_jacobian(samples, known, base))


def fit_halves(samples: Sequence[Sample], start: Linearised) -> tuple[Half, ...]:
    """Fit on half of the groups and score the other half, both ways round, several times."""
    constants, halves = start.constants, []
    for seed in range(NUM_HALVES // 2):
        first = split_groups(samples, SEED + seed)
        for mask in (first, ~first):
            train = [sample for sample, inside in zip(samples, mask, strict=True) if inside]
            offsets = fit(train, constants, start.base[mask], start.slopes[mask])
            errors = _log_errors(samples, constants, offsets)
            halves.append(Half(train=_summary(errors[mask]), test=_summary(errors[~mask])))
    return tuple(halves)


def held_out_mean(halves: Sequence[Half]) -> float:
    """Mean over splits of the held-out mean absolute error."""
    return float(np.mean([half.test.mape for half in halves]))


def cross_validate(samples: Sequence[Sample], constants: Sequence[Constant]) -> CrossValidation:
    """Fit on halves of the groups and on all of them (:func:`fit_halves`)."""
    start = linearised(samples, constants)
    theta = fit(samples, start.constants, start.base, start.slopes)
    return CrossValidation(
        prior=_summary(start.base),
        fitted=_summary(_log_errors(samples, start.constants, theta)),
        constants=_fitted(samples, start.constants, theta, start.slopes),
        halves=fit_halves(samples, start),
    )
