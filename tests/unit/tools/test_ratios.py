"""Ratios of layouts: pairs by what differs, groups weighted equally, drifts with their errors."""

import math
from pathlib import Path

import pytest
import yaml

from planner.search.ranking.penalties import SIMPLICITY, TIE_FRACTION, UNPUBLISHED
from tools.ratios import (
    Drift,
    RatioPair,
    drifts,
    kind_of,
    layout_groups,
    layout_of,
    ratio_errors,
    ratio_errors_text,
    ratio_pairs,
)
from tools.validation.compare import Comparison, Figures
from tools.validation.records import Record

RATIO_ERRORS = Path("planner/frameworks/ratio_errors.yaml")


RECORD = yaml.safe_load("""
quality: A
framework: megatron-lm
software: {framework: megatron, profile: current}
model: {name: gpt, layers: 8}
hardware: {gpu: h100, gpus: 8}
precision: bf16
iter_time_basis: published
complete: true
""")


def row(
    name: str, predicted_s: float, measured_s: float, source: str = "one", **parallel: object
) -> Comparison:
    layout = {"tp": 1, "dp": 8, "global_batch": 64, "recompute": "none", **parallel}
    given = {"id": name, "source": {"title": source}, "parallel": layout}
    record = Record.model_validate({**RECORD, **given, "iter_time_s": measured_s})
    predicted = Figures(iter_time_s=predicted_s)
    return Comparison(record=record, measured=Figures(iter_time_s=measured_s), predicted=predicted)


def test_a_pair_is_named_after_what_differs() -> None:
    one, other = row("a", 1, 1, tp=2, dp=4), row("b", 1, 1, micro_batch=2)
    assert kind_of(layout_of(one), layout_of(other)) == "degrees, micro-batch"
    assert kind_of(layout_of(one), layout_of(one)) == ""
    assert layout_of(row("a", 1, 1)) == layout_of(row("b", 1, 1, pp=1, vpp=1, micro_batch=1))
    recomputing = row("c", 1, 1, recompute="full")
    assert kind_of(layout_of(row("d", 1, 1)), layout_of(recomputing)) == "recomputation"


def test_errors_are_of_more_over_less() -> None:
    # Predicted: tp 2 takes 1.2 of tp 1; measured 1.5. The model flatters tp.
    rows = [row("a", 1.2, 1.5, tp=2, dp=4), row("b", 1.0, 1.0)]
    (pair,) = ratio_pairs(layout_groups(rows))
    assert pair.runs == ("a", "b")
    assert pair.log_error == pytest.approx(math.log(1.2 / 1.5))
    assert ratio_pairs(layout_groups(rows[::-1])) == [pair]
    shared = [row("a", 2.0, 1.0, tp=2, dp=4), row("b", 4.0, 2.0)]
    assert ratio_pairs(layout_groups(shared))[0].log_error == pytest.approx(0.0)


def test_runs_of_one_layout_are_averaged_and_other_sources_are_another_group() -> None:
    rows = [row("a", 1.0, 1.0), row("b", 1.0, 3.0), row("c", 1.0, 2.0, tp=2, dp=4)]
    (pair,) = ratio_pairs(layout_groups(rows))
    assert pair.log_error == pytest.approx(0.0)
    apart = [row("a", 1.0, 1.0), row("c", 1.0, 2.0, source="two", tp=2, dp=4)]
    assert layout_groups(apart) == {}


def test_groups_count_the_same_however_many_pairs_they_hold() -> None:
    many = [
        RatioPair(kind="degrees", group=("a",), runs=(f"{i}", "b"), log_error=0.5) for i in range(9)
    ]
    few = [
        RatioPair(kind="degrees", group=(name,), runs=(name, "c"), log_error=-0.1)
        for name in ("x", "y")
    ]
    (found,) = ratio_errors([*many, *few])
    assert (found.num_pairs, found.num_groups, found.num_runs) == (11, 3, 13)
    assert found.median == pytest.approx(0.1)
    assert found.bias == pytest.approx(-0.1)
    assert (found.low, found.high) == pytest.approx((-0.1, 0.5))
    assert found.covered == pytest.approx(0.5)


def test_combinations_in_few_groups_are_mixed() -> None:
    def pair(kind: str, group: str) -> RatioPair:
        return RatioPair(kind=kind, group=(group,), runs=("a", "b"), log_error=0.0)

    frequent = [pair("degrees, micro-batch", name) for name in "xyz"]
    rare = [pair("degrees, offload", "x"), pair("virtual stages", "x")]
    kinds = [error.kind for error in ratio_errors([*frequent, *rare])]
    assert kinds == ["virtual stages", "degrees, micro-batch", "mixed"]


def test_drift_is_the_slope_inside_groups() -> None:
    # Two sources with other shared errors; each doubling of tp costs 5 % more than modelled.
    rows = [
        row(f"{source}{tp}", 1.0, shared * 1.05 ** math.log2(tp), source, tp=tp, dp=8 // tp)
        for source, shared in (("one", 1.0), ("two", 1.7), ("three", 0.6))
        for tp in (1, 2, 4)
    ]
    found = {drift.degree: drift for drift in drifts(layout_groups(rows))}
    assert found["tp"].per_doubling == pytest.approx(math.log(1.05))
    assert found["tp"].standard_error == pytest.approx(0.0, abs=1e-9)
    assert (found["tp"].num_groups, found["tp"].num_runs) == (3, 9)
    assert found["pp"].num_groups == 0


def test_a_drift_within_its_error_counts_half() -> None:
    drift = Drift(degree="tp", num_groups=3, num_runs=9, per_doubling=0.02, standard_error=0.02)
    assert drift.shrunk == pytest.approx(0.01)


def test_the_file_is_readable() -> None:
    rows = [
        row(f"{source}{name}", *times, source, **layout)
        for source in ("one", "two")
        for name, times, layout in (
            ("a", (1.2, 1.5), {"tp": 2, "dp": 4}),
            ("b", (1.0, 1.0), {}),
            ("c", (1.0, 1.0), {"micro_batch": 2}),
        )
    ]
    found = yaml.safe_load(ratio_errors_text(rows))
    assert found["pairs"]["degrees"]["median_percent"] == 25.0  # 1.5 / 1.2
    assert found["pairs"]["micro-batch"]["pairs"] == 2
    assert set(found["drift"]["tp"]) >= {"per_doubling_percent", "shrunk_percent"}


def test_what_ties_and_what_nobody_has_run_are_errors_of_the_published_pairs() -> None:
    found = yaml.safe_load(RATIO_ERRORS.read_text(encoding="utf-8"))
    pairs, drift = found["pairs"], found["drift"]
    width_percent = pairs["degrees, micro-batch"]["median_percent"]
    assert pytest.approx(width_percent, abs=0.3) == 100.0 * TIE_FRACTION
    most_percent = pairs["degrees"]["covered_percent"]
    assert pytest.approx(most_percent, abs=0.5) == 100.0 * (UNPUBLISHED - 1.0)
    for name, percent in (
        ("tensor_parallel", drift["tp"]["shrunk_percent"]),
        ("selective", pairs["recomputation"]["median_percent"]),
    ):
        width_percent = 100.0 * TIE_FRACTION * SIMPLICITY[name].steps
        assert width_percent == pytest.approx(percent, abs=0.3), name
