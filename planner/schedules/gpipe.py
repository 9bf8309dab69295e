"""GPipe: all forwards, then all backwards (arXiv 1811.06965, section 2.3)."""

from planner.schedules.operation import Order, alternating
from planner.units import Array


def makespan_s(slowest_s: Array, sum_s: Array, num_micro_batches: Array) -> Array:
    """``m · max_i T_i + (Σ_i T_i - max_i T_i)``, with T_i forward plus backward of stage i.

    For equal stages ``(m + p - 1) T``: the bubble is (p-1)/m of the ideal time, as under 1F1B,
    which holds fewer micro-batches for it (arXiv 2104.04473, section 2.2.1). For unequal stages the
    event simulation says ``(m - 1)(max_i F_i + max_i B_i) + Σ_i T_i``, with F_i forward and B_i
    whole backward, which is more where two stages share the two maxima.
    """
    return num_micro_batches * slowest_s + (sum_s - slowest_s)


def in_flight(num_micro_batches: Array) -> Array:
    """Micro-batches whose activations every stage holds at its peak: all m."""
    return num_micro_batches * 1.0


def order(device: int, num_micro_batches: int) -> Order:
    """What a device runs: F of all micro-batches, then their backwards, oldest first."""
    work = [(device, number) for number in range(num_micro_batches)]
    return alternating(work, work, num_warmup=num_micro_batches)
