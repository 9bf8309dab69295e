"""Ranking on candidates whose times are given."""

import numpy as np
import pytest

from planner.search.ranking.candidates import Candidates
from planner.search.ranking.exploration import Exploration, Shapes
from planner.search.ranking.goals import Goal, Order, best_of, smaller_gpu_frontier
from planner.search.ranking.rank import FIRST_ROWS, frontier, top_k
from planner.search.stages.solver import Split

NONE, NO_COUNTS = np.zeros(1), np.zeros((3, 1))


class KnownRows(Candidates):
    """Rows whose time is not weighed, under no policy, in the order of opening."""

    def __init__(self, shapes: Shapes, layouts: list[int] | None) -> None:
        self.gpus, self.longest_s = shapes.gpus, np.full(len(shapes.gpus), np.inf)
        self.tied_s = self.longest_s
        self.shape_of, self.group = np.zeros(0, dtype=int), np.zeros(0, dtype=int)
        self.lower_s, self.upper_s = np.zeros(0), np.zeros(0)
        self.is_refined, self.splits = np.zeros(0, dtype=bool), {}
        self.one_per_layout, self.layout = layouts is not None, np.zeros(0, dtype=int)

    def keep_to(self, longest_s: np.ndarray, tied_s: np.ndarray) -> list[int]:
        self.longest_s, self.tied_s = longest_s, tied_s
        return []

    def limits_s(self, rows: np.ndarray) -> np.ndarray:
        return self.longest_s[self.group[rows]]


class Known(Exploration):
    """Times are given, one strategy per shape, with bounds that refining moves to 1 % around them.

    Infinite times: no split.
    """

    def __init__(
        self,
        times: np.ndarray,
        num_gpus: list[int],
        lower: np.ndarray,
        layouts: list[int] | None = None,
    ) -> None:
        ones = np.ones(len(times), dtype=int)
        columns = {"tp": ones, "pp": ones, "cp": ones, "dp": np.array(num_gpus)}
        self.shapes = Shapes(columns=columns, lower_s=lower, weight=ones)
        self.candidates = self.rows = KnownRows(self.shapes, layouts)
        self.layout_of = np.arange(len(times)) if layouts is None else np.array(layouts)
        self.solving = KnownSplits(times, self.rows)
        self.deadline = None

    def open(self, shapes: np.ndarray, limit_s: np.ndarray) -> None:
        of, rows = self.shapes, self.rows
        assert of.is_closed[shapes].all()
        of.is_closed[shapes] = False
        shapes = shapes[of.lower_s[shapes] < limit_s[of.group[shapes]]]
        rows.shape_of = np.concatenate([rows.shape_of, shapes])
        rows.group, rows.layout = of.group[rows.shape_of], self.layout_of[rows.shape_of]
        rows.lower_s = np.concatenate([rows.lower_s, of.lower_s[shapes]])
        rows.upper_s = np.concatenate([rows.upper_s, np.full(len(shapes), np.inf)])
        rows.is_refined = np.concatenate([rows.is_refined, np.zeros(len(shapes), dtype=bool)])


class KnownSplits:
    """Refines and solves by the times that are given."""

    def __init__(self, times: np.ndarray, rows: KnownRows) -> None:
        self.times, self.rows, self.solved = times, rows, list[int]()

    def forget(self, rows: list[int]) -> None:
        pass

    def refine(self, rows: np.ndarray, limit_s: np.ndarray | None = None) -> None:
        times, known = self.times[self.rows.shape_of[rows]], self.rows
        known.lower_s[rows] = np.maximum(known.lower_s[rows], times * 0.99)
        known.upper_s[rows] = times * 1.01
        known.is_refined[rows] = True

    def is_prepared(self, row: int, limit_s: float) -> bool:
        return True

    def prepare(self, rows: np.ndarray, limit_s: np.ndarray) -> None:
        pass

    def solve(self, row: int, limit_s: float = np.inf) -> Split | None:
        assert self.rows.is_refined[row]
        self.solved.append(row)
        seconds = float(self.times[self.rows.shape_of[row]])
        if not np.isfinite(seconds):
            return None
        return Split(layers=NONE, counts=NO_COUNTS, iteration_s=seconds, is_optimal=True)


def known(times: list[float], num_gpus: list[int], lower: np.ndarray | None = None) -> Known:
    exact = np.array(times)
    bound = np.where(np.isfinite(exact), exact, 1.0) * 0.99 if lower is None else lower
    return Known(exact, num_gpus, bound)


def best_shapes(candidates: Known, k: int, group: int = 0) -> list[int]:
    return [int(candidates.rows.shape_of[one.row]) for one in top_k(candidates, group, k).ranked]


def frontier_shapes(candidates: Known) -> list[int]:
    found = frontier(candidates)
    return [int(candidates.rows.shape_of[best.ranked[0].row]) for best in found]


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([100.0, 60.0, 40.0], [0, 1, 2]),
        # Slower with more GPUs: dominated.
        ([100.0, 120.0, 90.0], [0, 2]),
        # However little faster.
        ([100.0, 99.9, 99.8], [0, 1, 2]),
        # Equal is not faster.
        ([100.0, 100.0, 90.0], [0, 2]),
        ([np.inf, 50.0, 49.8], [1, 2]),
    ],
)
def test_a_count_is_kept_when_it_beats_every_smaller_one(
    times: list[float], kept: list[int]
) -> None:
    assert frontier_shapes(known(times, [1, 2, 4])) == kept


def test_every_count_is_represented_by_its_fastest_strategy() -> None:
    assert frontier_shapes(known([9.0, 7.0, 8.0, 5.0, 4.0], [1, 1, 1, 2, 2])) == [1, 4]


def test_the_frontier_of_strategies_that_all_turn_out_not_to_fit_is_empty() -> None:
    """What passes the relaxed screen may have no whole-layer split."""
    assert frontier(known([np.inf, np.inf], [1, 2])) == []


def test_the_k_best_are_ascending() -> None:
    assert best_shapes(known([5.0, 3.0, 4.0, 3.5, 9.0], [1] * 5), 3) == [1, 3, 2]
    assert best_shapes(known([5.0, 3.0, 4.0, 3.5, 9.0], [1] * 5), 9) == [1, 3, 2, 0, 4]


def test_only_the_given_group_is_ranked() -> None:
    assert best_shapes(known([5.0, 3.0, 4.0], [1, 2, 1]), 2) == [2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_loose_bounds_over_many_batches_hide_none_of_the_best(seed: int) -> None:
    """3,000 shapes, more than are opened at once; bounds lie anywhere below the times."""
    random = np.random.default_rng(seed)
    times = random.uniform(1.0, 2.0, 3000)
    times[random.random(3000) < 0.1] = np.inf
    lower = np.where(np.isfinite(times), times, 1.0) * random.uniform(0.5, 1.0, 3000)
    best = best_shapes(known(times.tolist(), [1] * 3000, lower.copy()), 5)
    assert best == np.argsort(times, kind="stable")[:5].tolist()

    # Times that fall by half a percent to 2 % with every GPU: some counts are kept, some not.
    gpus = random.integers(1, 9, 3000)
    times *= np.cumprod(random.uniform(0.98, 0.995, 9))[gpus] * (1.0 + 1e-3 * random.random(3000))
    lower *= 0.8
    expected, fastest = [], np.inf
    for count in np.unique(gpus):
        row = int(np.where(gpus == count, times, np.inf).argmin())
        if times[row] < fastest:
            expected.append(row)
            fastest = times[row]
    assert frontier_shapes(known(times.tolist(), gpus.tolist(), lower)) == expected


def test_bounds_spare_most_of_the_work() -> None:
    candidates = known(np.linspace(1.0, 2.0, 3000).tolist(), [1] * 3000)
    assert best_shapes(candidates, 3) == [0, 1, 2]
    assert len(candidates.rows.shape_of) <= 2 * FIRST_ROWS
    assert len(candidates.solving.solved) < 100


@pytest.mark.parametrize("seed", range(20))
def test_of_one_layout_only_the_best_is_among_the_k_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    times, layouts = random.uniform(1.0, 2.0, 2000), random.integers(0, 40, 2000)
    lower = times * random.uniform(0.5, 1.0, 2000)
    found = Known(times, [1] * 2000, lower, layouts.tolist())
    order = np.argsort(times)
    _, first = np.unique(layouts[order], return_index=True)
    assert best_shapes(found, 5) == order[np.sort(first)[:5]].tolist()


def test_fewer_layouts_than_asked_for_are_all_there_are() -> None:
    found = Known(np.array([3.0, 1.0, 2.0]), [1] * 3, np.ones(3), [7, 7, 8])
    assert best_shapes(found, 5) == [1, 2]


def test_a_ladder_goes_down_to_the_fewest_gpus_though_their_shapes_are_open_already() -> None:
    """The slowest bounds are the loosest: everything is opened before the first rung."""
    counts = [1, 2, 4, 8, 16, 32, 64]
    times = [64.0 / count for count in counts]
    found = known(times, counts, np.full(len(times), 0.1))
    best = best_of(found, Goal(), 1)
    assert not found.shapes.is_closed.any()
    rungs = smaller_gpu_frontier(
        found, int(found.shapes.gpus[found.rows.group[best.ranked[0].row]])
    )
    assert [int(found.shapes.gpus[found.rows.group[one.ranked[0].row]]) for one in rungs] == [
        32,
        16,
        8,
        1,
    ]


@pytest.mark.parametrize("order", ["at_most", "fewest_gpus", "fastest", "gpu_seconds"])
def test_what_was_not_looked_at_in_time_bounds_what_may_exist(order: Order) -> None:
    late = known([8.0, 6.0], [1, 4])
    late.deadline = 0.0
    best = best_of(late, Goal(order=order), 1)
    assert best.ranked == ()
    assert best.bound_s == (8.0 if order == "gpu_seconds" else 6.0) * 0.99
