"""Sensitivity: crossings, slopes, and what is worth measuring."""

from dataclasses import replace

import pytest

from planner.answers.base import Deadline, Plan
from planner.answers.parameters import Parameter
from planner.answers.sensitivity import Sensitivity, layout_of, sensitivity
from planner.answers.whatif import first_plan
from planner.query.query import Query
from planner.query.resolve import Case, resolve


@pytest.fixture(scope="module")
def case() -> Case:
    query = Query.of(
        "llama3-8b",
        "2xdgx-h100",
        framework="megatron",
        global_batch=64,
        fix=["cp=1", "micro_batch=1", "vpp=1"],
        forbid=["recompute", "offload"],
        schedule=["1f1b"],
    )
    asked = resolve(query)
    return Case(contexts=asked.contexts, narrowing=asked.narrowing)


@pytest.fixture(scope="module")
def result(case: Case) -> Sensitivity:
    found = sensitivity(case)
    assert found is not None
    return found


def winner(case: Case, figure: Parameter, factor: float) -> Plan | None:
    case = case.with_each(lambda each: replace(figure.scaled(each, factor), ranking="evidence"))
    return first_plan(case, Deadline())


def test_at_a_crossing_the_winner_changes(case: Case, result: Sensitivity) -> None:
    hardware = [one for one in result.responses if one.figure.is_hardware]
    crossings = [(one.figure, each.factor) for one in hardware for each in one.crossings]
    assert crossings
    for figure, factor in crossings:
        nearer = factor * (1.011 if factor < 1.0 else 1 / 1.011)
        inside, beyond = (winner(case, figure, each) for each in (nearer, factor))
        assert inside is not None
        assert layout_of(inside) == layout_of(result.best)
        assert beyond is None or layout_of(beyond) != layout_of(result.best)


def test_more_of_a_rate_is_never_slower_and_less_never_faster(result: Sensitivity) -> None:
    rates = {"bf16_dense_tflops", "gemm_sustained_fraction", "hbm_gb_per_s", "nic_gbit_per_s"}
    for one in result.responses:
        if one.figure.key in rates:
            changes = [point.time_per_token_change for point in one.points]
            assert changes == sorted(changes, key=lambda change: -(change or 0.0))


def test_the_peak_moves_time_less_than_one_for_one(result: Sensitivity) -> None:
    peak = next(one for one in result.responses if one.figure.key == "bf16_dense_tflops")
    faster = next(point for point in peak.points if point.factor == 1.1)
    assert -0.1 < (faster.time_per_token_change or 0.0) < -0.045


def test_what_is_worth_measuring_is_what_moves_time_most_over_its_range(
    result: Sensitivity,
) -> None:
    worth = result.worth_measuring
    assert worth[0].figure.key == "gemm_sustained_fraction"
    spans = [one.span for one in worth]
    assert spans == sorted(spans, reverse=True)
    assert all(one.figure.ends for one in worth)


def test_every_winner_was_proved_best(result: Sensitivity) -> None:
    assert result.is_proved
    assert result.num_searches > 4 * len(result.responses) - 10
