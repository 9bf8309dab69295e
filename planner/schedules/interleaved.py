"""Interleaved 1F1B: every stage holds v chunks of layers (arXiv 2104.04473, section 2.2.2)."""

import numpy as np

from planner.units import Array


def makespan_s(slowest_s: Array, sum_s: Array, num_micro_batches: Array, vpp: Array) -> Array:
    """``m · max_i T_i + (Σ_i T_i - max_i T_i) / v``: the bubble shrinks by v, the work does not."""
    return num_micro_batches * slowest_s + (sum_s - slowest_s) / vpp


def in_flight(stage: Array, pp: Array | float, num_micro_batches: Array, vpp: Array) -> Array:
    """Whole-stage activations held at the peak, in units of one micro-batch of all v chunks.

    ``min((2 (p - i - 1) + (v - 1) p + 1) / v, m)``; for the first stage
    ``p (1 + (p - 1) / (p v))`` (arXiv 2205.05198, section 4.2.3).
    """
    chunks = 2.0 * (pp - stage - 1.0) + (vpp - 1.0) * pp + 1.0
    return np.minimum(chunks / vpp, num_micro_batches)
