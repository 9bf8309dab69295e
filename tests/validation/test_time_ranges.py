"""Ranges of iteration time: those of the published runs, and what of unseen sources they hold."""

from pathlib import Path

import pytest
import yaml

from planner.frameworks.registry import load_traits
from tools import time_uncertainty as ranges
from tools.validation.compare import Comparison, compare_all
from tools.validation.records import read_runs

HERE = Path(__file__).parent
WRITTEN = HERE.parents[1] / "planner" / "frameworks" / "time_uncertainty.yaml"
NAMES = ("published", "fine_tuning", "single_node", "ordinary", "later", "hybrid")
FILES = tuple(f"{name}_runs" for name in NAMES)
TOLERANCE_POINTS = 0.2
IN_RANGE, UNSEEN_IN_RANGE = (0.75, 0.92), 0.8


@pytest.fixture(scope="module")
def rows() -> list[Comparison]:
    return [row for name in FILES for row in compare_all(read_runs(HERE / f"{name}.jsonl").records)]


def test_the_ranges_of_plans_are_those_of_published_runs(rows: list[Comparison]) -> None:
    written, found = (
        yaml.safe_load(text)
        for text in (WRITTEN.read_text(encoding="utf-8"), ranges.time_uncertainty_text(rows))
    )
    assert len(written) == len(found)
    assert WRITTEN.with_name("profile_runs.yaml").read_text() == ranges.profile_runs_text(rows)
    for one, other in zip(written, found, strict=True):
        for name in ("accelerators", "kind", "reach"):
            assert one.pop(name, None) == other.pop(name, None)
        assert one == pytest.approx(other, abs=TOLERANCE_POINTS)


def test_plans_as_these_runs_have_ranges_that_hold_four_of_five(rows: list[Comparison]) -> None:
    traits = load_traits("megatron")
    inside = []
    for run in ranges.runs_of(rows):
        span = traits.time_range(run.key, run.accelerator)
        inside.append(span.low <= run.ratio <= span.high)
    assert len(inside) > 900
    assert IN_RANGE[0] <= sum(inside) / len(inside) <= IN_RANGE[1]


def test_ranges_hold_four_of_five_runs_of_a_source_left_out(rows: list[Comparison]) -> None:
    for each in ranges.coverage(ranges.runs_of(rows)):
        if len({run.source for run in each.runs}) >= ranges.MIN_SOURCES:
            assert each.left_out >= UNSEEN_IN_RANGE, each.key
