"""Ranking on candidates whose times are given."""

import numpy as np
import pytest

from planner.search.candidates import Candidates
from planner.search.rank import USEFUL_GAIN_FRACTION, frontier, top_k
from planner.search.solver import Split
from planner.spec.strategy import StrategyColumns

NONE = np.zeros(1)


class Known(Candidates):
    """Times are given, and bounds that refining moves to 1 % around them; infinite: no split."""

    times: np.ndarray

    def refine(self, rows: np.ndarray) -> None:
        self.lower_s[rows] = np.maximum(self.lower_s[rows], self.times[rows] * 0.99)
        self.upper_s[rows] = self.times[rows] * 1.01
        self.is_refined[rows] = True

    def solve(self, row: int) -> Split | None:
        assert self.is_refined[row]
        seconds = float(self.times[row])
        if not np.isfinite(seconds):
            return None
        return Split(layers=NONE, selective=NONE, full=NONE, iteration_s=seconds, is_optimal=True)


def known(times: list[float], num_gpus: list[int], lower: np.ndarray | None = None) -> Known:
    one = np.ones(len(times), dtype=int)
    names = (
        "dp_replicate",
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "zero_stage",
        "micro_batch",
        "num_micro_batches",
    )
    strategy = StrategyColumns(
        dp=np.array(num_gpus),
        sequence_parallel=0 * one,
        offload=0 * one,
        placement=0 * one,
        schedule=0 * one,
        **dict.fromkeys(names, one),
    )
    exact = np.array(times)
    bound = exact * 0.99 if lower is None else lower
    candidates = Known(context=None, strategy=strategy, lower_s=bound)  # type: ignore[arg-type]
    candidates.times = exact
    return candidates


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([100.0, 60.0, 40.0], [0, 1, 2]),
        # Slower with more GPUs: dominated.
        ([100.0, 120.0, 90.0], [0, 2]),
        # Half a percent is not worth the GPUs; 1.2 % over the first is, though it is only 0.7 %
        # over the second, which is not kept.
        ([100.0, 99.5, 98.8], [0, 2]),
        # Exactly 1 % is not less than the gate.
        ([100.0, 99.0, 98.99], [0, 2]),
        ([np.inf, 50.0, 49.8], [1]),
    ],
)
def test_a_count_is_kept_when_it_beats_every_kept_one_by_a_hundredth(
    times: list[float], kept: list[int]
) -> None:
    assert USEFUL_GAIN_FRACTION == 0.01
    assert [ranked.row for ranked in frontier(known(times, [1, 2, 4]))] == kept


def test_every_count_is_represented_by_its_fastest_strategy() -> None:
    candidates = known([9.0, 7.0, 8.0, 5.0, 4.0], [1, 1, 1, 2, 2])
    assert [ranked.row for ranked in frontier(candidates)] == [1, 4]


def test_the_frontier_of_strategies_that_all_turn_out_not_to_fit_is_empty() -> None:
    """What passes the relaxed screen may have no whole-layer split."""
    assert frontier(known([np.inf, np.inf], [1, 2])) == []


def test_the_k_best_are_ascending_and_ties_keep_the_order_of_enumeration() -> None:
    candidates = known([5.0, 3.0, 4.0, 3.0, 9.0], [1] * 5)
    best = top_k(candidates, np.arange(5), 3)
    assert [ranked.row for ranked in best] == [1, 3, 2]
    assert [ranked.row for ranked in top_k(candidates, np.arange(5), 9)] == [1, 3, 2, 0, 4]


def test_only_the_given_rows_are_ranked() -> None:
    candidates = known([5.0, 3.0, 4.0], [1, 2, 1])
    assert [ranked.row for ranked in top_k(candidates, np.array([0, 2]), 2)] == [2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_loose_bounds_over_many_batches_hide_none_of_the_best(seed: int) -> None:
    """3,000 strategies, more than are refined at once; bounds lie anywhere below the times."""
    random = np.random.default_rng(seed)
    times = random.uniform(1.0, 2.0, 3000)
    times[random.random(3000) < 0.1] = np.inf
    lower = np.where(np.isfinite(times), times, 1.0) * random.uniform(0.5, 1.0, 3000)
    gpus = random.integers(1, 9, 3000)
    best = top_k(known(times.tolist(), gpus.tolist(), lower.copy()), np.arange(3000), 5)
    assert [ranked.row for ranked in best] == np.argsort(times, kind="stable")[:5].tolist()

    # Times that fall by half a percent to 2 % with every GPU: some counts are kept, some not.
    times *= np.cumprod(random.uniform(0.98, 0.995, 9))[gpus] * (1.0 + 1e-3 * random.random(3000))
    lower *= 0.8
    expected, fastest = [], np.inf
    for count in np.unique(gpus):
        row = int(np.where(gpus == count, times, np.inf).argmin())
        if times[row] < fastest * (1.0 - USEFUL_GAIN_FRACTION):
            expected.append(row)
            fastest = times[row]
    found = frontier(known(times.tolist(), gpus.tolist(), lower))
    assert [ranked.row for ranked in found] == expected


def test_bounds_spare_most_of_the_work() -> None:
    times = np.linspace(1.0, 2.0, 3000)
    candidates = known(times.tolist(), [1] * 3000)
    top_k(candidates, np.arange(3000), 3)
    assert candidates.is_refined.sum() == 256
