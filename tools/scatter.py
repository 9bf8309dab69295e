"""What scatter of measurements leaves of an order: Kendall's τ of times that are predicted exactly.

The same job measured twice differs; a pair of layouts closer than that has no order to predict.
"""

from collections.abc import Sequence

import numpy as np

from planner.units import Array

SCATTERS = (0.01, 0.02, 0.03, 0.05)
"""Standard deviations of a measured time, of itself."""
DRAWS = 400


def _signs(times: Array) -> Array:
    first, second = np.triu_indices(times.shape[-1], k=1)
    return np.sign(times[..., first] - times[..., second])


def tau_of_exact_times(groups: Sequence[Sequence[float]], scatter: float) -> float:
    """Mean τ over groups between true times and the same times measured: ``t (1 + scatter · z)``.

    z is drawn from a normal distribution, the same at every call. Assumes that no two true times
    of a group are equal, and that layouts scatter independently.
    """
    random = np.random.default_rng(0)
    taus = []
    for group in groups:
        true = np.asarray(group, dtype=float)
        measured = true * (1.0 + scatter * random.standard_normal((DRAWS, true.size)))
        taus.append(np.mean(_signs(true) * _signs(measured)))
    return float(np.mean(taus))
