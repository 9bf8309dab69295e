"""Exposed reduction by the size of buckets, and by the way they are sent."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.buckets import bucket_curve, by_turns_s, prioritised_s
from planner.cost.context import Context
from planner.cost.overlap import bucket_pieces
from planner.spec.strategy import NEUTRAL, Strategy, split_values

Contexts = Callable[..., Context]
DDP = Strategy(**{**NEUTRAL, "dp": 32, **split_values((4,), ((0,), (0,), (0,)))})


def seconds(value: float) -> np.ndarray:
    return np.array([value])


def test_priority_widens_the_window_by_the_next_forward() -> None:
    shown = prioritised_s(seconds(10.0), seconds(4.0), seconds(2.0), seconds(0.1), 0.0)
    assert shown == pytest.approx(10.0 - 0.9 * 6.0)
    hidden = prioritised_s(seconds(3.0), seconds(4.0), seconds(2.0), seconds(0.1), 0.0)
    assert hidden == pytest.approx(0.3)


@pytest.mark.parametrize("reduce_s", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
def test_priority_never_shows_more_than_sending_in_order(reduce_s: float, fraction: float) -> None:
    given = (seconds(reduce_s), seconds(2.0))
    in_order = np.maximum(*bucket_pieces(*given, seconds(fraction), 0.18))
    assert prioritised_s(*given, seconds(1.0), seconds(fraction), 0.18) <= in_order


def test_groups_that_take_turns_hide_latency_and_no_transfer() -> None:
    assert by_turns_s(seconds(9.0), seconds(2.0), 3) == 7.0
    assert by_turns_s(seconds(9.0), seconds(8.9), 3) == 3.0
    assert by_turns_s(seconds(9.0), seconds(0.0), 3) == 9.0


def test_small_buckets_wait_and_large_ones_show_their_last(context_of: Contexts) -> None:
    context = context_of(framework="accelerate", profile="ddp", cluster="4xdgx-a100")
    small, middle, whole = bucket_curve(context, DDP, (2e4, 1e7, 1e18))
    assert small.messages > middle.messages > whole.messages == 1
    assert middle.exposed_s < min(small.exposed_s, whole.exposed_s)
    for point in (small, middle, whole):
        assert point.prioritised_s is not None
        assert point.by_turns_s is not None
        assert point.prioritised_s <= point.exposed_s + 1e-12
    assert small.by_turns_s is not None
    assert small.by_turns_s < small.exposed_s


def test_sharded_gradients_are_sent_in_order_only(context_of: Contexts) -> None:
    context = context_of(cluster="4xdgx-a100")
    (point,) = bucket_curve(context, replace(DDP, zero_stage=1), (1e7,))
    assert (point.prioritised_s, point.by_turns_s) == (None, None)
