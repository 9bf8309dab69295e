"""Errors of a set of runs, and how well an order is predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Summary of relative errors, as fractions; None where there are none."""

    n: int
    mape: float | None
    """Mean of |error|."""
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    """Mean of error."""


def summarize(errors: Sequence[float]) -> Errors:
    """Return count, mean, median and 90th percentile of |error|, and the mean error."""
    if not errors:
        return Errors(n=0, mape=None, median_ape=None, p90_ape=None, bias=None)
    values = np.array(errors)
    sizes = np.abs(values)
    return Errors(
        n=len(errors),
        mape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        p90_ape=float(np.quantile(sizes, 0.9)),
        bias=float(values.mean()),
    )


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Kendall's τ-b: (concordant - discordant) pairs over pairs untied on each side.

    ``Σ sign(Δp) sign(Δm) / sqrt(Σ sign(Δp)² · Σ sign(Δm)²)``; 0 where one side is all ties.
    """
    pairs = list(combinations(range(len(predicted)), 2))
    first = np.sign([predicted[i] - predicted[j] for i, j in pairs])
    second = np.sign([measured[i] - measured[j] for i, j in pairs])
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm else 0.0


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Measured time of the predicted fastest over the measured fastest, minus one."""
    chosen = int(np.argmin(predicted))
    return measured[chosen] / min(measured) - 1.0


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Least value whose weight, with all smaller ones, is at least ``share`` of the whole."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= share * weights.sum() * (1.0 - 1e-12)
    return float(values[order][np.argmax(reached)])


def percent(value: float | None, *, signed: bool = False) -> str:
    """Format a fraction as percent with one decimal; a dash when unknown."""
    if value is None:
        return "-"
    return f"{100.0 * value:+.1f}" if signed else f"{100.0 * value:.1f}"


def error_cells(errors: Errors) -> list[str]:
    """Count, mean, median, 90th percentile and bias as text."""
    return [
        str(errors.n),
        percent(errors.mape),
        percent(errors.median_ape),
        percent(errors.p90_ape),
        percent(errors.bias, signed=True),
    ]
