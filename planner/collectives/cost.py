"""What every formula of this package shares: the bus bandwidth factor.

Sizes follow nccl-tests: all-reduce and broadcast, the vector; all-gather, the gathered vector;
reduce-scatter, the input vector; all-to-all, one rank's send buffer.
"""

import numpy as np

from planner.units import Array
from planner.spec.cluster import Collective


def busbw_factor(collective: Collective, num_ranks: Array) -> Array:
    """Share of the vector each rank must move: 2(n-1)/n for all-reduce, (n-1)/n otherwise.

    Source: nccl-tests, doc/PERFORMANCE.md. Zero for a group of one.
    """
    n = np.asarray(num_ranks, dtype=float)
    share: Array = (n - 1.0) / n
    return 2.0 * share if collective == "all_reduce" else share
