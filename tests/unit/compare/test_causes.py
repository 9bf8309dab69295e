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


@pytest.mark.parametrize(
    ("values", "left_out", "causes"),
    [
        ([1.0] * 12, (), []),
        ([1.0] * 3, (2.0,), ["first_steps"]),
        ([1.0] * 3, (1.1,), []),
        # Stragglers have to raise the mean.
        ([*[1.0] * 19, 2.0], (), ["stragglers", "uneven"]),
        ([*[1.0] * 99, 1.3], (), ["uneven"]),
        ([*[1.0] * 4, *[1.02] * 4, *[1.05] * 4], (), ["drift"]),
        ([*[1.0] * 4, *[1.005] * 4, *[1.02] * 4], (), []),
        ([0.9, 1.1, 1.0, 0.95, 1.05], (), ["uneven"]),
    ],
)
def test_what_steps_show(
    values: list[float], left_out: tuple[float, ...], causes: list[str]
) -> None:
    assert [cause.name for cause in steps_causes(steps(*values, left_out=left_out))] == causes


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


def test_a_run_near_its_price_has_no_cause_and_one_beyond_the_peak_is_of_another_layout(
    case: Callable[..., MeasuredRun],
) -> None:
    assert found(case(1.03)) == set()
    assert found(case(0.97)) == set()
    assert "beyond_peak" in found(case(0.1))


def test_recomputation_is_named_where_it_would_take_as_long(
    case: Callable[..., MeasuredRun],
) -> None:
    one = case(1.0)
    full_s = estimate(
        one.layout.context, with_policy_on_all_layers(one.layout.strategy, "full")
    ).iter_time_s
    assert "recomputation" in found(replace(one, measured=steps(full_s)))
    assert "recomputation" not in found(replace(one, measured=steps(3 * full_s)))


def test_what_explains_most_comes_first(case: Callable[..., MeasuredRun]) -> None:
    explained = [cause.explains_s or 0.0 for cause in causes_of(case(1.2))]
    assert explained == sorted(explained, reverse=True)
