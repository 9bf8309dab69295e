"""Steps in seconds: units, warm-up, spread."""

import pytest

from planner.compare.measured import measured, seconds
from planner.logs.record import Log, Sizes, Step, Unit

SIZES = Sizes(global_batch=16, seq_len=1000, num_gpus=4)


def log(*values: float, first: int = 1, unit: Unit = "s") -> Log:
    steps = tuple(
        Step(number=first + at, value=value, line=at + 1) for at, value in enumerate(values)
    )
    return Log(path="run.log", framework="megatron", unit=unit, steps=steps)


def test_every_unit_is_the_same_time() -> None:
    units: list[tuple[float, Unit]] = [
        (2000.0, "ms"),
        (2.0, "s"),
        (0.5, "it/s"),
        (8.0, "samples/s"),
        (2000.0, "tokens/s/GPU"),
    ]
    assert [seconds(value, unit, SIZES) for value, unit in units] == [2.0] * 5


def test_a_rate_without_its_sizes_is_no_time() -> None:
    assert seconds(8.0, "samples/s", Sizes()) is None
    assert seconds(8.0, "tokens/s/GPU", Sizes(global_batch=16)) is None
    assert measured(log(8.0, unit="samples/s"), Sizes()) is None


def test_the_first_step_and_slow_ones_behind_it_are_left_out() -> None:
    found = measured(log(9.0, 3.0, 1.0, 1.0, 1.0, 2.0), Sizes())
    assert found is not None
    assert (found.left_out_s, found.steps_s) == ((9.0, 3.0), (1.0, 1.0, 1.0, 2.0))
    assert (found.median_s, found.mean_s) == (1.0, 1.25)


def test_a_log_from_the_middle_of_a_run_keeps_its_first_line() -> None:
    found = measured(log(3.0, 1.0, 1.0, first=71), Sizes())
    assert found is not None
    assert found.left_out_s == ()


def test_one_step_is_taken_as_it_is() -> None:
    found = measured(log(3.0), Sizes())
    assert found is not None
    assert (found.median_s, found.spread) == (3.0, 0.0)


def test_no_more_than_half_of_a_run_is_left_out() -> None:
    found = measured(log(9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0), Sizes())
    assert found is not None
    assert len(found.left_out_s) == 3
    assert found.spread == pytest.approx(0.0)
