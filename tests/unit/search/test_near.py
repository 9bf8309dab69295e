"""Layouts that are not accepted do not count: the next best are found."""

from collections.abc import Callable

import pytest
from contexts import strategy_of

from planner.cost.context import Context
from planner.search.near import MAX_REJECTIONS, nearest
from planner.spec.strategy import Strategy

DEGREES = {"dp": 8, "tp": 2, "micro_batch": 8, "num_micro_batches": 2}
BROKEN = strategy_of(**DEGREES, sequence_parallel=True, layers_per_stage=(32,))


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=128, seq_len=8192)


def test_the_best_layout_that_is_accepted_comes_first(context: Context) -> None:
    free = nearest(context, BROKEN, top=4)
    assert free.found[0].strategy.micro_batch != BROKEN.micro_batch

    def keeps_batch(strategy: Strategy) -> bool:
        return strategy.micro_batch == BROKEN.micro_batch

    near = nearest(context, BROKEN, accepts=keeps_batch)
    assert near.found
    assert all(keeps_batch(one.strategy) for one in near.found)
    assert near.num_changes >= free.num_changes


def test_too_many_rejections_in_a_row_end_it(context: Context) -> None:
    asked: list[Strategy] = []
    near = nearest(context, BROKEN, accepts=lambda one: bool(asked.append(one)))
    assert (near.found, near.gave_up) == ((), True)
    assert len(asked) == len(set(asked)) == MAX_REJECTIONS
