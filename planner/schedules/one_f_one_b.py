"""One-forward-one-backward (PipeDream-Flush, arXiv 2006.09503; Megatron-LM's default)."""

import numpy as np

from planner.units import Array


def makespan_s(slowest_s: Array, sum_s: Array, num_micro_batches: Array) -> Array:
    """``(m - 1) · max_i T_i + Σ_i T_i``, with T_i forward plus backward of stage i.

    For equal stages this is m·T·(1 + (p-1)/m): the bubble is (p-1)/m of the ideal time
    (arXiv 2104.04473, section 2.2.1). For unequal stages it is the time of the slowest stage's
    steady phase plus one pass through the others; excludes stalls from stages whose forward and
    backward are unequally slow.
    """
    return (num_micro_batches - 1.0) * slowest_s + sum_s


def in_flight(stage: Array, pp: Array | float, num_micro_batches: Array) -> Array:
    """Micro-batches whose activations stage i holds at its peak: min(p - i, m)."""
    return np.minimum(pp - stage, num_micro_batches) * 1.0
