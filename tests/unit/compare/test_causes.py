"""Rules about the difference between a run and its price: what each needs, and what it says."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from contexts import context_of, strategy_of

from planner.compare.causes import MeasuredRun, causes_of, steps_causes
from planner.compare.log import Measured
from planner.cost.estimate import estimate
from planner.query.layout import Layout, Locations
from planner.spec.strategy import with_policy_on_all_layers


def steps(*values: float, left_out: tuple[float, ...] = ()) -> Measured:
    ordered = sorted(values)
    return Measured(
        iter_time_s=ordered[len(ordered) // 2],
        iter_time_s_low=ordered[0],
        iter_time_s_high=ordered[-1],
        mean_s=sum(values) / len(values),
        steps_s=values,
        left_out_s=left_out,
    )


def names(measured: Measured) -> list[str]:
    return [cause.name for cause in steps_causes(measured)]


def test_even_steps_show_nothing() -> None:
    assert names(steps(*[1.0] * 12)) == []


def test_slow_first_steps_are_said() -> None:
    assert names(steps(1.0, 1.0, 1.0, left_out=(2.0,))) == ["first_steps"]
    assert names(steps(1.0, 1.0, 1.0, left_out=(1.1,))) == []


def test_stragglers_have_to_raise_the_mean() -> None:
    assert "stragglers" in names(steps(*[1.0] * 19, 2.0))
    assert "stragglers" not in names(steps(*[1.0] * 99, 1.3))


def test_a_run_that_grows_slower_drifts() -> None:
    assert names(steps(*[1.0] * 4, *[1.02] * 4, *[1.05] * 4)) == ["drift"]
    assert names(steps(*[1.0] * 4, *[1.005] * 4, *[1.02] * 4)) == []


def test_steps_that_spread_are_uneven() -> None:
    assert names(steps(0.9, 1.1, 1.0, 0.95, 1.05)) == ["uneven"]


@pytest.fixture
def case() -> Callable[..., MeasuredRun]:
    def made(slower: float, **changes: object) -> MeasuredRun:
        context = context_of(cluster="2xdgx-h100", model="llama3-8b")
        strategy = strategy_of(dp=16, layers_per_stage=(32,), **changes)
        layout = Layout(context=context, strategy=strategy, places=Locations(path="x", of={}))
        price = estimate(context, strategy)
        return MeasuredRun(measured=steps(slower * price.iter_time_s), layout=layout, made=price)

    return made


def found(case: MeasuredRun) -> set[str]:
    return {cause.name for cause in causes_of(case)}


def test_a_run_as_priced_has_no_cause(case: Callable[..., MeasuredRun]) -> None:
    assert found(case(1.03)) == set()
    assert found(case(0.97)) == set()


def test_recomputation_is_named_where_it_would_take_as_long(
    case: Callable[..., MeasuredRun],
) -> None:
    one = case(1.0)
    full_s = estimate(
        one.layout.context, with_policy_on_all_layers(one.layout.strategy, "full")
    ).iter_time_s
    assert "recomputation" in found(replace(one, measured=steps(full_s)))
    assert "recomputation" not in found(replace(one, measured=steps(3 * full_s)))


def test_more_than_the_peak_says_that_log_and_layout_are_of_two_runs(
    case: Callable[..., MeasuredRun],
) -> None:
    assert "beyond_peak" in found(case(0.1))


def test_what_explains_most_comes_first(case: Callable[..., MeasuredRun]) -> None:
    explained = [cause.explains_s or 0.0 for cause in causes_of(case(1.2))]
    assert explained == sorted(explained, reverse=True)
