"""Ranges of iteration time: classes with enough runs of enough sources, percentiles that hold."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import yaml

from planner.spec.items import RunClass, narrowest
from tools import time_uncertainty
from tools.time_uncertainty import (
    ALL,
    MIN_RUNS,
    MIN_SOURCES,
    Run,
    coverage,
    ranges,
    regimes,
    time_uncertainty_text,
)

DENSE: RunClass = ("dense", "tuned")
FAR: RunClass = ("dense", "usual")
OFFLOAD: RunClass = ("offload", "tuned")


def runs(key: RunClass, source: str, ratios: Sequence[float]) -> list[Run]:
    return [Run(key=key, accelerator="h100-sxm", source=source, ratio=one) for one in ratios]


@pytest.fixture
def many() -> list[Run]:
    """A class with enough runs and sources, one of a lone source, and a kind of two runs."""
    dense = [runs(DENSE, f"s{i}", (0.9 + i / 50, 1.0, 1.1, 1.2)) for i in range(MIN_SOURCES)]
    assert 4 * len(dense) >= MIN_RUNS
    far = runs(FAR, "lone", [1.4] * MIN_RUNS)
    return [*itertools.chain(*dense), *far, *runs(OFFLOAD, "host", (0.5, 0.7))]


def test_a_class_needs_runs_of_several_sources(many: list[Run]) -> None:
    found = regimes(many)
    assert list(found) == [ALL, ("", "tuned"), DENSE]
    assert narrowest(ranges(found), OFFLOAD) == ranges(found)["", "tuned"]
    assert narrowest(ranges(found), FAR) == ranges(found)[ALL]
    assert regimes([*many, *runs(OFFLOAD, "other", [9.0])])[OFFLOAD].high == 9.0


def test_a_source_weighs_the_same_however_many_runs_it_has(many: list[Run]) -> None:
    found = regimes(many)[DENSE]
    flooded = regimes([*many, *runs(DENSE, "s0", [3.0] * 200)])[DENSE]
    assert found.high == 1.2
    assert flooded.high == 3.0
    crowded = regimes([*many, *runs(DENSE, "s0", [1.0] * 200)])[DENSE]
    # 4 of 5 sources still have a quarter of their runs at 1.2: 20 % of the weight
    assert crowded.high == 1.2


def test_percentiles_are_taken_outwards_by_hand() -> None:
    own = [run for i in range(20) for run in runs(DENSE, f"s{i}", [0.9 + 0.01 * i])]
    found = regimes(own)[DENSE]
    # 20 runs of 0.90 to 1.09: less than 9 % of the weight, one run, is below 0.91 and above 1.08
    assert found.low == pytest.approx(0.91)
    assert found.high == pytest.approx(1.08)


def test_the_prediction_lies_inside_even_where_all_runs_were_slower() -> None:
    found = regimes([run for i in range(20) for run in runs(DENSE, f"s{i}", [1.1 + 0.01 * i])])
    assert found[DENSE].low == 1.0


def test_a_class_covers_four_of_five_of_its_sources() -> None:
    for number in range(20, 60):
        ratios = np.random.default_rng(number).lognormal(0.0, 0.2, number)
        own = [run for i, one in enumerate(ratios) for run in runs(DENSE, f"s{i}", [one])]
        found = regimes(own)[DENSE]
        assert np.mean([found.low <= run.ratio <= found.high for run in own]) >= 0.8


def test_runs_of_a_source_that_is_left_out_meet_ranges_that_do_not_know_it(many: list[Run]) -> None:
    whole, *classes = coverage(many)
    assert len(whole.runs) == sum(len(each.runs) for each in classes) == len(many)
    offload = next(each for each in classes if each.key == OFFLOAD)
    assert (offload.inside, offload.left_out, offload.left_out_by_source) == (0.5, 0.0, 0.0)


def test_the_file_rounds_outwards(many: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_uncertainty, "runs_of", lambda rows: rows)
    lines = yaml.safe_load(time_uncertainty_text(many))  # type: ignore[arg-type]
    assert [line["runs"] for line in lines] == [42, 22, 20]
    assert [line["sources"] for line in lines] == [7, 6, 5]
    for line, regime in zip(lines, regimes(many).values(), strict=True):
        assert 1.0 + line["low_percent"] / 100.0 <= regime.low + 1e-12
        assert 1.0 + line["high_percent"] / 100.0 >= regime.high - 1e-12
