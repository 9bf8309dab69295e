"""Parts that every formula of this package shares: the cost, the link, the bus bandwidth factor.

Sizes follow nccl-tests: all-reduce and broadcast, the vector; all-gather, the gathered vector;
reduce-scatter, the input vector; all-to-all, one rank's send buffer; p2p, the message.

Every algorithm is a function of the size S, the number of ranks n and a link (latency α of one
round, B bytes per second that one rank sends). Left out everywhere: the time to add, the launch
of kernels, contention with other groups.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from planner.spec.cluster import CollectiveKind
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


def cost_of(
    num_bytes: Number,
    num_ranks: Number,
    link: Link,
    *,
    rounds: Number,
    sent_bytes: Number,
    path_bytes: Number | None = None,
    messages: Number = 1.0,
) -> CollectiveCost:
    """α–β time: ``rounds · (α + (m-1) o) + path bytes / B``; nothing for one rank or no bytes.

    Bytes on the path are those sent one after the other until all are done: the busiest rank's, but
    where it waits for others to send. It starts m messages in a round, one after the other, o
    apart. Source: Hockney 1994; Thakur, Rabenseifner, Gropp 2005, section 3; o: Alexandrov et al.
    1995 (LogGP's g; recalled).
    """
    works = (np.asarray(num_bytes) > 0) & (np.asarray(num_ranks) > 1)
    rounds, sent = np.where(works, rounds, 0.0), np.where(works, sent_bytes, 0.0)
    path = sent if path_bytes is None else np.where(works, path_bytes, 0.0)
    waits = link.latency_s + np.maximum(np.asarray(messages) - 1.0, 0.0) * link.issue_s
    seconds = rounds * waits + path / link.bytes_per_s
    return CollectiveCost(time_s=seconds, rounds=rounds, sent_bytes=sent)


def log2_up(num_ranks: Number) -> Array:
    """Return ⌈log2 n⌉, 0 for one rank."""
    return np.asarray(np.ceil(np.log2(np.maximum(np.asarray(num_ranks, dtype=float), 1.0))))


def log2_down(num_ranks: Number) -> Array:
    """Return ⌊log2 n⌋."""
    return np.asarray(np.floor(np.log2(np.maximum(np.asarray(num_ranks, dtype=float), 1.0))))
