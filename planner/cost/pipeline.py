"""The pipeline's makespan and in-flight micro-batches for a column of schedules."""

import numpy as np

from planner.schedules import interleaved, one_f_one_b
from planner.units import Array


def makespan_s(slowest_s: Array, sum_s: Array, num_micro_batches: Array, vpp: Array) -> Array:
    """1F1B where vpp is 1, interleaved 1F1B otherwise (the formulas agree at vpp = 1)."""
    return interleaved.makespan_s(slowest_s, sum_s, num_micro_batches, vpp)


def in_flight(stage: Array, pp: Array | float, num_micro_batches: Array, vpp: Array) -> Array:
    """Micro-batches in flight per stage: 1F1B where vpp is 1, interleaved otherwise."""
    return np.where(
        vpp > 1,
        interleaved.in_flight(stage, pp, num_micro_batches, vpp),
        one_f_one_b.in_flight(stage, pp, num_micro_batches),
    )
