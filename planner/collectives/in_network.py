"""Switches that add: NVLink SHARP and SHARP."""

import numpy as np

from planner.collectives.cost import (
    CollectiveCost,
    Link,
    Number,
    busbw_factor,
    cost_of,
    log2_up,
)


def nvls_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank reads its part added up by the switch, and multicasts it: ``2 α + (n+1)/n · S/B``.

    To serve the reads of all n parts a rank sends S, then S/n for its own result. Source:
    stas00/ml-engineering, network/README.md (2N sends become N + 1); Klenk et al. 2020 (recalled).
    """
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    return cost_of(size, n, link, rounds=2.0, sent_bytes=(n + 1.0) / n * size)


def nvls_reduce_scatter(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank reads its part added up by the switch: ``α + S/B`` (a rank serves all n reads).

    Source: Klenk et al. 2020 (recalled).
    """
    return cost_of(num_bytes, num_ranks, link, rounds=1.0, sent_bytes=num_bytes)


def nvls_all_gather(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Each rank multicasts its part and receives the others': ``α + (n-1)/n · S/B``.

    A rank sends S/n; what it receives takes the time. Source: Klenk et al. 2020 (recalled).
    """
    n, size = np.asarray(num_ranks, dtype=float), np.asarray(num_bytes, dtype=float)
    received = cost_of(size, n, link, rounds=1.0, sent_bytes=(n - 1.0) / n * size)
    sent = np.where(received.sent_bytes > 0, size / n, 0.0)
    return CollectiveCost(time_s=received.time_s, rounds=received.rounds, sent_bytes=sent)


def sharp_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Up a tree of switches that add, and down again: ``2 α + S/B``.

    α is the way to the top of the tree. Source: Graham et al. 2016 (SHArP; recalled).
    """
    return cost_of(num_bytes, num_ranks, link, rounds=2.0, sent_bytes=num_bytes)


def nvls_tree_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Trees of domains that each add inside: ``2 ⌈log2 n⌉ α + 2(n-1)/n · S/B`` for n domains.

    Source: NCCL, src/graph/tuning.cc (NVLSTree); bytes as planner.cost.network has them.
    """
    sent = busbw_factor("all_reduce", num_ranks) * num_bytes
    rounds = 2.0 * log2_up(num_ranks)
    return cost_of(num_bytes, num_ranks, link, rounds=rounds, sent_bytes=sent)
