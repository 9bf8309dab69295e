"""Recursive halving and doubling: partners at distance 1, 2, 4 ...

Where n is no power of two, p is the largest one below; the n - p ranks beyond hand their vector
to a partner before and get the result after.
"""

import numpy as np

from planner.collectives.cost import (
    CollectiveCost,
    Link,
    Number,
    busbw_factor,
    cost_of,
    log2_down,
    log2_up,
)
from planner.units import Array


def _power_below(num_ranks: Number) -> tuple[Array, Array]:
    """Largest power of two up to n, and 1 where n is none itself."""
    power = 2.0 ** log2_down(num_ranks)
    return power, np.where(power < num_ranks, 1.0, 0.0)


def halving_doubling_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive halving, recursive doubling: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: two more rounds of S bytes, of which the busiest rank sends the second:
    ``2(p-1)/p S + S``, and waits for the first. Source: Thakur, Rabenseifner, Gropp 2005,
    section 4.5.
    """
    power, odd = _power_below(num_ranks)
    core = busbw_factor("all_reduce", power) * num_bytes
    path = cost_of(
        num_bytes,
        num_ranks,
        link,
        rounds=2.0 * log2_up(num_ranks),
        sent_bytes=core + 2.0 * odd * num_bytes,
    )
    sent = path.sent_bytes - odd * num_bytes
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=sent)


def rabenseifner_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Halving and doubling that adds halves first: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B``.

    Not a power of two: pairs swap halves, add them and join them again (S/2 twice, so that no
    rank adds a whole vector), S goes back at the end: ``(2 ⌊log2 n⌋ + 3) α +
    (2(p-1)/p + 2) S/B``. Source: Rabenseifner 2004 (recalled).
    """
    power, odd = _power_below(num_ranks)
    size = np.asarray(num_bytes, dtype=float)
    core = busbw_factor("all_reduce", power) * size
    rounds = 2.0 * log2_down(num_ranks) + 3.0 * odd
    path = cost_of(size, num_ranks, link, rounds=rounds, sent_bytes=core + 2.0 * odd * size)
    sent = path.sent_bytes - 0.5 * odd * size
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=sent)


def butterfly_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive doubling with whole vectors: ``log2 n · (α + S/B)``.

    Not a power of two: two more rounds of S, as in halving-doubling. Source: Thakur,
    Rabenseifner, Gropp 2005, section 4.5.
    """
    _, odd = _power_below(num_ranks)
    size = np.asarray(num_bytes, dtype=float)
    rounds = log2_down(num_ranks) + 2.0 * odd
    path = cost_of(size, num_ranks, link, rounds=rounds, sent_bytes=rounds * size)
    sent = path.sent_bytes - odd * size
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=sent)


def halving_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive halving: ``log2 n · α + (n-1)/n · S/B``.

    Not a power of two: one round of S before (the partner's vector) and one of S/n after.
    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4.
    """
    power, odd = _power_below(num_ranks)
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    rounds = log2_down(n) + 2.0 * odd
    core = busbw_factor("reduce_scatter", power) * size
    path = cost_of(size, n, link, rounds=rounds, sent_bytes=core + odd * (size + size / n))
    sent = np.where(odd > 0, np.maximum(size, core + size / n), core) * (path.sent_bytes > 0)
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=sent)


def doubling_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Recursive doubling: ``log2 n · α + (n-1)/n · S/B``; Bruck's for other n: ``⌈log2 n⌉ α``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.1.
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_gather", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=log2_up(n), sent_bytes=sent)
