from collections.abc import Callable

import numpy as np
import pytest

from planner.cost.context import Context
from planner.cost.overlap import gradient_pass_s, synchronisation_factor


def test_gradient_passes_move_what_is_held_and_what_is_owned(
    context_of: Callable[..., Context],
) -> None:
    # 1e9 held at 12 bytes and 1.25e8 owned at 18: 14.25e9 bytes.
    accelerator = context_of().cluster.accelerator
    rate = accelerator.hbm_bytes_per_s * accelerator.memory_bound_fraction
    seconds = gradient_pass_s(np.array(1e9), np.array(1.25e8), 12, 18, accelerator)
    assert seconds == pytest.approx(14.25e9 / rate)


@pytest.mark.parametrize("num_ranks", [64, 1024, 16384])
def test_the_slowest_of_many_is_near_the_sampled_mean_maximum(num_ranks: int) -> None:
    # The leading term exceeds the true expectation, by less with more ranks.
    random = np.random.default_rng(0)
    sampled = random.normal(1.0, 0.01, (200, num_ranks)).max(axis=1).mean()
    factor = float(synchronisation_factor(np.array(num_ranks), 0.01))
    assert sampled < factor < sampled + 0.006


def test_one_rank_waits_for_nobody() -> None:
    assert synchronisation_factor(np.array([1, 0]), 0.5).tolist() == [1.0, 1.0]
