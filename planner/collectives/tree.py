"""Tree collectives on one level."""

import numpy as np

from planner.units import Array


def tree_all_reduce_s(
    num_bytes: Array,
    num_ranks: Array,
    latency_s: Array | float,
    bandwidth_bytes_per_s: Array | float,
) -> Array:
    """Double binary tree, pipelined: ``2 ceil(log2 n) α + 2 S / B``.

    Source: Sanders, Speck, Träff 2009; NCCL 2.4. Zero for an empty message.
    """
    n = np.asarray(num_ranks, dtype=float)
    seconds = 2.0 * np.ceil(np.log2(np.maximum(n, 1.0))) * latency_s
    seconds = seconds + np.where(n > 1, 2.0 * num_bytes / bandwidth_bytes_per_s, 0.0)
    return np.where(np.asarray(num_bytes) > 0, seconds, 0.0)
