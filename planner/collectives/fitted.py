"""Measured collectives inside one scale-up domain, as lines between the library's switch points."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.collectives.cost import busbw_factor
from planner.spec.cluster import Collective, CollectiveFit
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Lines of several numbers of ranks, those of one number behind each other."""

    num_ranks: Array
    num_regimes: int
    """Regimes of every number of ranks; where there are fewer, the last ones are never reached."""
    switch_bytes: tuple[Array, ...]  # Sizes by switch point, an array over the numbers of ranks
    latency_s: Array
    seconds_per_byte: Array
    growth_s: float  # Latency per rank beyond the largest number


@lru_cache(maxsize=256)
def _table(fits: tuple[CollectiveFit, ...]) -> _Table:
    ordered = sorted(fits, key=lambda fit: fit.num_ranks)
    width = max(len(fit.latency_s) for fit in ordered)

    def rows(values: list[tuple[float, ...]], fill: float, columns: int) -> Array:
        return np.array([[*row, *[fill] * (columns - len(row))] for row in values])

    rates = rows([fit.busbw_bytes_per_s for fit in ordered], np.inf, width)
    growth = 0.0
    if len(ordered) > 1:
        before, last = ordered[-2:]
        added = last.num_ranks - before.num_ranks
        growth = max((last.latency_s[0] - before.latency_s[0]) / added, 0.0)
    return _Table(
        num_ranks=np.array([fit.num_ranks for fit in ordered], dtype=float),
        num_regimes=width,
        switch_bytes=tuple(rows([fit.switch_bytes for fit in ordered], np.inf, width - 1).T),
        latency_s=rows([fit.latency_s for fit in ordered], 0.0, width).ravel(),
        seconds_per_byte=(1.0 / rates).ravel(),
        growth_s=growth,
    )


def fitted_s(
    fits: tuple[CollectiveFit, ...],
    collective: Collective,
    num_bytes: Array,
    num_ranks: Array,
    *,
    latency_grows: bool = True,
) -> Array:
    """Seconds of a measured collective: ``latency_i + factor · S / busbw_i``.

    i is the regime (protocol, algorithm) the library is in at S bytes: the i-th switch point is
    the last one at or below S. Of several measured numbers of ranks the next one at or above the
    group's is taken. Beyond the largest its bandwidths stay, and where ``latency_grows`` the
    latency goes on growing per rank as that of small messages did between the two largest: a
    ring adds the same steps for every rank, a switch that adds does not. Form: NCCL,
    src/graph/tuning.cc (latency + bytes/bandwidth for each algorithm and protocol); figures:
    hwdb/accelerators. Zero for a group of one or an empty message.
    """
    table = _table(fits)
    num_bytes = np.asarray(num_bytes, dtype=float)
    size = np.asarray(num_ranks, dtype=float)
    row = np.searchsorted(table.num_ranks, size)
    row = np.minimum(row, len(table.num_ranks) - 1)
    place = row * table.num_regimes
    for switch_bytes in table.switch_bytes:
        place = place + (num_bytes >= switch_bytes.take(row))
    moved = busbw_factor(collective, size) * num_bytes
    seconds = table.latency_s.take(place) + moved * table.seconds_per_byte.take(place)
    if latency_grows and table.growth_s > 0:
        seconds = seconds + table.growth_s * np.maximum(size - table.num_ranks[-1], 0.0)
    return np.where((num_bytes > 0) & (size > 1), seconds, 0.0)
