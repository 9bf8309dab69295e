"""Measured collectives inside one scale-up domain, as lines between the library's switch points."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.collectives.cost import busbw_factor
from planner.spec.cluster import Collective, CollectiveFit
from planner.units import Array, Index


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Lines of several numbers of ranks: row = number of ranks, column = regime."""

    num_ranks: Array
    switch_bytes: Array
    latency_s: Array
    seconds_per_byte: Array


@lru_cache(maxsize=256)
def _table(fits: tuple[CollectiveFit, ...]) -> _Table:
    ordered = sorted(fits, key=lambda fit: fit.num_ranks)
    width = max(len(fit.latency_s) for fit in ordered)

    def rows(values: list[tuple[float, ...]], fill: float, columns: int) -> Array:
        return np.array([[*row, *[fill] * (columns - len(row))] for row in values])

    rates = rows([fit.busbw_bytes_per_s for fit in ordered], np.inf, width)
    return _Table(
        num_ranks=np.array([fit.num_ranks for fit in ordered], dtype=float),
        switch_bytes=rows([fit.switch_bytes for fit in ordered], np.inf, width - 1),
        latency_s=rows([fit.latency_s for fit in ordered], 0.0, width),
        seconds_per_byte=1.0 / rates,
    )


def fitted_s(
    fits: tuple[CollectiveFit, ...], collective: Collective, num_bytes: Array, num_ranks: Array
) -> Array:
    """Seconds of a measured collective: ``latency_i + factor · S / busbw_i``.

    i is the regime (protocol, algorithm) the library is in at S bytes: the i-th switch point is
    the last one at or below S. Of several measured numbers of ranks the next one at or above the
    group's is taken, or the largest. Form: NCCL, src/graph/tuning.cc (latency + bytes/bandwidth
    for each algorithm and protocol); figures: hwdb/accelerators. Zero for a group of one or an
    empty message.
    """
    table = _table(fits)
    num_bytes, size = np.asarray(num_bytes, dtype=float), np.asarray(num_ranks, dtype=float)
    row: Index = np.minimum(np.searchsorted(table.num_ranks, size), len(table.num_ranks) - 1)
    regime = (num_bytes[..., None] >= table.switch_bytes[row]).sum(axis=-1)
    moved = busbw_factor(collective, size) * num_bytes
    seconds = table.latency_s[row, regime] + moved * table.seconds_per_byte[row, regime]
    return np.where((num_bytes > 0) & (size > 1), seconds, 0.0)
