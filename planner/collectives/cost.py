"""Parts that every formula of this package shares: the cost, the link, the bus bandwidth factor.

Sizes follow nccl-tests: all-reduce and broadcast, the vector; all-gather, the gathered vector;
reduce-scatter, the input vector; all-to-all, one rank's send buffer; p2p, the message.

Every algorithm is a function of the size S, the number of ranks n and a link (latency α of one
round, B bytes per second that one rank sends). Left out everywhere: the time to add, the launch
of kernels, contention with other groups.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import NamedTuple, TypeAlias

import numpy as np

from planner.spec.cluster import Collective, CollectiveFit, CollectiveKind
from planner.units import Array

Number: TypeAlias = Array | float


@dataclass(frozen=True, kw_only=True)
class Link:
    """Link between a rank and the others of its level."""

    latency_s: Number
    bytes_per_s: Number  # Rate at which one rank can send, and receive at the same time
    issue_s: Number = 0.0  # Between the starts of two messages of one rank


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """Cost of a collective; arrays broadcast."""

    time_s: Array
    rounds: Array  # Messages that must follow each other
    sent_bytes: Array  # Bytes sent by the busiest rank


def busbw_factor(kind: CollectiveKind, num_ranks: Number) -> Array:
    """Share of the vector each rank must move: 2(n-1)/n for all-reduce, (n-1)/n otherwise.

    One for broadcast and p2p. Source: nccl-tests, doc/PERFORMANCE.md. Zero for a group of one.
    """
    n = np.asarray(num_ranks, dtype=float)
    if kind in ("broadcast", "p2p"):
        return np.where(n > 1, 1.0, 0.0)
    share: Array = (n - 1.0) / n
    return 2.0 * share if kind == "all_reduce" else share


class Steps(NamedTuple):
    """Work of one rank of n, bytes as shares of the size."""

    rounds: Number
    sent: Number  # By the busiest rank
    path: Number | None = None
    """Sent one after the other until all are done: by the busiest rank, but where it waits for
    others to send."""
    messages: Number = 1.0  # Started in a round, one after the other


# Of a size, a number of ranks and a link.
Flat: TypeAlias = Callable[[Number, Number, Link], CollectiveCost]


def cost_of(num_bytes: Number, num_ranks: Number, link: Link, steps: Steps) -> CollectiveCost:
    """α–β time: ``rounds · (α + (m-1) o) + path bytes / B``; nothing for one rank or no bytes.

    m messages of a round start o apart. Source: Hockney 1994; Thakur, Rabenseifner, Gropp 2005,
    section 3; o: Alexandrov et al. 1995 (LogGP's g; recalled).
    """
    size = np.asarray(num_bytes, dtype=float)
    works = (size > 0) & (np.asarray(num_ranks) > 1)
    rounds = np.where(works, steps.rounds, 0.0)
    sent = np.where(works, steps.sent * size, 0.0)
    path = sent if steps.path is None else np.where(works, steps.path * size, 0.0)
    waits = link.latency_s + np.maximum(np.asarray(steps.messages) - 1.0, 0.0) * link.issue_s
    seconds = rounds * waits + path / link.bytes_per_s
    return CollectiveCost(time_s=seconds, rounds=rounds, sent_bytes=sent)


def alpha_beta(steps_of: Callable[[Array], Steps]) -> Flat:
    """Make the cost of an algorithm of the steps that each of n ranks takes."""

    @wraps(steps_of)
    def flat(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
        steps = steps_of(np.asarray(num_ranks, dtype=float))
        return cost_of(num_bytes, num_ranks, link, steps)

    return flat


def log2_up(num_ranks: Array) -> Array:
    """Return ⌈log2 n⌉, 0 for one rank."""
    return np.asarray(np.ceil(np.log2(np.maximum(num_ranks, 1.0))))


def log2_down(num_ranks: Array) -> Array:
    """Return ⌊log2 n⌋."""
    return np.asarray(np.floor(np.log2(np.maximum(num_ranks, 1.0))))


# Measured collectives inside one scale-up domain, as lines between the library's switch points.


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
