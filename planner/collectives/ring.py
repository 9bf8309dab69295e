"""Ring collectives on one level."""

import numpy as np

from planner.collectives.cost import busbw_factor
from planner.spec.cluster import Collective
from planner.units import Array


def ring_s(
    collective: Collective,
    num_bytes: Array,
    num_ranks: Array,
    latency_s: Array | float,
    bandwidth_bytes_per_s: Array | float,
) -> Array:
    """α–β time of a ring: ``steps · α + factor · S / B``; all-reduce takes 2(n-1) steps.

    Source: Thakur, Rabenseifner, Gropp 2005, sections 4.1, 4.5. Zero for a group of one or an
    empty message.
    """
    n = np.asarray(num_ranks, dtype=float)
    steps = (2.0 if collective == "all_reduce" else 1.0) * (n - 1.0)
    seconds = steps * latency_s + busbw_factor(collective, n) * num_bytes / bandwidth_bytes_per_s
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)
