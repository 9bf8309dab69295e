"""Ranges of iteration time: regimes with enough runs, percentiles that cover them."""

import numpy as np
import pytest
import yaml

from planner.validation.compare import Comparison
from tools import time_uncertainty
from tools.time_uncertainty import (
    MIN_RUNS,
    Key,
    Regime,
    coverage,
    regime_of,
    regimes,
    time_uncertainty_text,
)

ACCELERATORS = ("h100-sxm", "v100-sxm2-32")


class Row:
    """What the module asks of a comparison."""

    in_headline = True

    def __init__(self, key: Key, ratio: float) -> None:
        self.key = key
        self.time_error = 1.0 / ratio - 1.0


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Comparison]:
    """A regime with enough runs, one with too few, and a kind with few runs in all."""
    monkeypatch.setattr(time_uncertainty, "key_of", lambda row: row.key)
    many = [Row(("dense", "megatron", "h100-sxm"), 0.9 + 0.01 * i) for i in range(MIN_RUNS)]
    few = [Row(("dense", "megatron", "v100-sxm2-32"), 1.5 + 0.1 * i) for i in range(3)]
    mixed = [Row(("mixture", "deepspeed", "h100-sxm"), ratio) for ratio in (1.1, 1.2)]
    found: list[Comparison] = [*many, *few, *mixed]  # type: ignore[list-item]
    return found


def test_few_runs_make_no_regime_but_a_kind_always_does(rows: list[Comparison]) -> None:
    assert list(regimes(rows)) == [
        ("dense", "", ""),
        ("mixture", "", ""),
        ("dense", "megatron", ""),
        ("dense", "megatron", "h100-sxm"),
    ]


@pytest.mark.parametrize(
    ("key", "regime"),
    [
        (("dense", "megatron", "h100-sxm"), ("dense", "megatron", "h100-sxm")),
        (("dense", "megatron", "mi300x"), ("dense", "megatron", "")),
        (("dense", "accelerate", "h100-sxm"), ("dense", "", "")),
        (("mixture", "megatron", "h100-sxm"), ("mixture", "", "")),
    ],
)
def test_a_plan_gets_the_narrowest_regime(key: Key, regime: Key, rows: list[Comparison]) -> None:
    assert regime_of(key, regimes(rows)).key == regime


def test_percentiles_are_taken_outwards_by_hand(rows: list[Comparison]) -> None:
    found = regimes(rows)["dense", "megatron", "h100-sxm"]
    # 20 runs of 0.90 to 1.09: the 10th percentile lies between runs 1 and 2, the 90th 17 and 18
    assert found.low == pytest.approx(0.91)
    assert found.high == pytest.approx(1.08)


def test_the_prediction_lies_inside_even_where_all_runs_were_slower() -> None:
    found = Regime(key=("mixture", "", ""), ratios=(1.1, 1.2), accelerators=())
    assert (found.low, found.high) == (1.0, 1.2)


def test_a_regime_covers_four_of_five_of_its_own_runs() -> None:
    for number in range(2, 60):
        ratios = tuple(np.random.default_rng(number).lognormal(0.0, 0.2, number))
        found = Regime(key=("dense", "", ""), ratios=ratios, accelerators=())
        assert np.mean([found.low <= ratio <= found.high for ratio in ratios]) >= 0.8


def test_coverage_counts_each_run_once(rows: list[Comparison]) -> None:
    shares = coverage(rows, regimes(rows))
    assert sum(number for number, _ in shares.values()) == len(rows)
    assert shares["dense", "megatron", "h100-sxm"] == (20, 0.9)


def test_the_file_rounds_outwards(rows: list[Comparison]) -> None:
    lines = yaml.safe_load(time_uncertainty_text(rows))
    assert [line["runs"] for line in lines] == [23, 2, 23, 20]
    assert lines[1]["low_percent"] == 0.0
    for line, regime in zip(lines, regimes(rows).values(), strict=True):
        assert 1.0 + line["low_percent"] / 100.0 <= regime.low + 1e-12
        assert 1.0 + line["high_percent"] / 100.0 >= regime.high - 1e-12
