"""One-forward-one-backward (PipeDream-Flush, arXiv 2006.09503; Megatron-LM's default)."""

import numpy as np

from planner.schedules.operation import Order, alternating
from planner.units import Array


def makespan_s(slowest_s: Array, sum_s: Array, num_micro_batches: Array) -> Array:
    """``(m - 1) · max_i T_i + Σ_i T_i``, with T_i forward plus backward of stage i.

    For equal stages this is m·T·(1 + (p-1)/m): the bubble is (p-1)/m of the ideal time
    (arXiv 2104.04473, section 2.2.1). For unequal stages it is the time of the slowest stage's
    steady phase plus one pass through the others: never less than the event simulation's time
    (without transfers), exact where the last stage is the slowest, and more where an earlier one
    is, since part of the pass then runs beside the steady phase. Over random pipelines (p 4 to 16,
    m from p to 4p, 300 each): stages spread by 5 %, +0.6 % on average, at most +3.3 %; stages and
    their ratio of forward to backward by 20 %, +2.6 %, at most +15.5 %; both by 50 %, +4.7 %, at
    most +22.8 %.
    """
    return (num_micro_batches - 1.0) * slowest_s + sum_s


def in_flight(stage: Array, pp: Array | float, num_micro_batches: Array) -> Array:
    """Micro-batches whose activations stage i holds at its peak: min(p - i, m)."""
    return np.minimum(pp - stage, num_micro_batches) * 1.0


def order(device: int, num_devices: int, num_micro_batches: int) -> Order:
    """What a device runs: p - 1 - i forwards, a forward and a backward in turn, backwards."""
    work = [(device, number) for number in range(num_micro_batches)]
    return alternating(work, work, num_warmup=min(num_devices - 1 - device, num_micro_batches))
