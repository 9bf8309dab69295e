"""Stalls: what an iteration loses beside kernels and exposed communication.

Sections of books and papers are recalled.
"""

import numpy as np

from planner.cost.kernels import memory_bound_s
from planner.spec.cluster import AcceleratorSpec
from planner.spec.items import item
from planner.units import Array


def gradient_pass_s(
    held: Array,
    owned: Array,
    held_bytes: float,
    owned_bytes: float,
    accelerator: AcceleratorSpec,
) -> Array:
    """Passes over gradients outside backward and the optimizer's own kernel.

    ``(held · a + owned · b) / HBM``: per gradient a rank holds, zeroing and scaling by the number
    of replicas; per gradient it updates, casts, the check for overflow, the norm, clipping, and
    the copy of new weights. Source: a and b are traits, counted from each framework's code.
    Excludes the norm's all-reduce of one number, some tens of microseconds.
    """
    return memory_bound_s(held * held_bytes + owned * owned_bytes, accelerator)


@item(
    "time.synchronisation",
    title="waiting for the slowest accelerator",
    inputs=("traits.overheads.speed_variation_fraction",),
)
def synchronisation_factor(num_ranks: Array, variation_fraction: float) -> Array:
    """``1 + σ √(2 ln N)``: the slowest of N accelerators sets the pace.

    Expected maximum of N normal times of mean 1 and deviation σ, leading term (Cramér 1946,
    section 28.6). Published spread between equal GPUs: 8 % of the median, outliers apart (arXiv
    2208.11035, abstract), σ about 1.5 % if that is the width of a box plot's whiskers; 14 % on
    products and 9 % of GPU time at 64,000 GPUs (arXiv 2510.15596, abstract). Excludes failing
    accelerators. One rank waits for nobody: 1.
    """
    ranks = np.maximum(np.asarray(num_ranks, dtype=float), 1.0)
    factor: Array = 1.0 + variation_fraction * np.sqrt(2.0 * np.log(ranks))
    return factor
