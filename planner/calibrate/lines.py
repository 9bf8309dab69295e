"""A collective's times by size as latency and rate, in the regimes its library goes through."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibrate.ridge import Fit, ridge
from planner.units import Array

LEAST_POINTS = 3
"""Of a regime."""
WORTH = 0.7
"""A second regime is stated where it leaves less than this share of the error."""
OPEN = 3.0
"""Deviation of the logarithms of what nothing is known of."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """``latency + moved / rate`` in each regime."""

    latency_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    switch_bytes: tuple[float, ...]
    deviation: float
    """Relative, of the last rate."""
    error: float
    """Root mean square, of logarithms."""
    num_points: int


def line_of(sizes: Sequence[float], moved: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line of one regime, or of two where these fit clearly better; at least one point."""
    order = np.argsort(np.array(sizes))
    size, bus, time = (np.array(each, dtype=float)[order] for each in (sizes, moved, seconds))
    one = _regime(bus, time)
    best = Line(
        latency_s=(float(one.values[0]),),
        bytes_per_s=(float(one.values[1]),),
        switch_bytes=(),
        deviation=float(one.deviations[1]),
        error=one.error,
        num_points=len(time),
    )
    for at in range(LEAST_POINTS, len(time) - LEAST_POINTS + 1):
        low, high = _regime(bus[:at], time[:at]), _regime(bus[at:], time[at:])
        squares = at * low.error**2 + (len(time) - at) * high.error**2
        error = float(np.sqrt(squares / len(time)))
        if error < WORTH * one.error and error < best.error:
            best = Line(
                latency_s=(float(low.values[0]), float(high.values[0])),
                bytes_per_s=(float(low.values[1]), float(high.values[1])),
                switch_bytes=(float(np.sqrt(size[at - 1] * size[at])),),
                deviation=float(high.deviations[1]),
                error=error,
                num_points=len(time),
            )
    return best


def _regime(moved: Array, seconds: Array) -> Fit:
    start = np.array([np.min(seconds), np.max(moved / seconds)])
    return ridge(lambda v: v[0] + moved / v[1], seconds, start, np.full(2, OPEN))
