"""Everyone to everyone: few rounds, many messages at once, or one partner after the other."""

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number, busbw_factor, cost_of, log2_up


def direct_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to each owner, the sums back: ``2 (α + (n-2) o) + 2(n-1)/n · S/B``.

    All links work at once, but a rank starts its n - 1 messages one after the other, o apart.
    Source: fully connected levels in ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_reduce", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=2.0, sent_bytes=sent, messages=n - 1.0)


def direct_exchange(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to each other rank at once: ``α + (n-2) o + (n-1)/n · S/B``.

    Reduce-scatter, all-gather and all-to-all; a rank starts its n - 1 messages one after the
    other, o apart. Source: ASTRA-sim (Rashidi et al. 2020; recalled).
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_to_all", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=1.0, sent_bytes=sent, messages=n - 1.0)


def pairwise_all_to_all(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """A part to one other rank after the other: ``(n-1) α + (n-1)/n · S/B``.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.3 (MPICH); NCCL sends this way, several
    partners at a time.
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = busbw_factor("all_to_all", n) * num_bytes
    return cost_of(num_bytes, n, link, rounds=n - 1.0, sent_bytes=sent)


def bruck_all_to_all(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Parts travel by the bits of their distance: ``⌈log2 n⌉ α + ⌈log2 n⌉ / 2 · S/B``.

    Exact for powers of two, an upper bound between them. Source: Bruck et al. 1997; Thakur,
    Rabenseifner, Gropp 2005, section 4.3.
    """
    depth = log2_up(num_ranks)
    sent = depth / 2.0 * num_bytes
    return cost_of(num_bytes, num_ranks, link, rounds=depth, sent_bytes=sent)


def naive_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Every rank sends its whole vector to every other, who adds: ``(n-1) (α + S/B)``.

    Source: Patarasuk, Yuan 2009 (recalled; all-to-all broadcast, then local reduction).
    """
    n = np.asarray(num_ranks, dtype=float)
    return cost_of(num_bytes, n, link, rounds=n - 1.0, sent_bytes=(n - 1.0) * num_bytes)


def send(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """One message from one rank to another: ``α + S/B``. Source: Hockney 1994."""
    return cost_of(num_bytes, num_ranks, link, rounds=1.0, sent_bytes=num_bytes)
