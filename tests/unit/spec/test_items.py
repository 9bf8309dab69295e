"""Ranges of iteration time: from the narrowest class of runs, wider where nobody ran."""

from dataclasses import replace

import pytest

from planner.frameworks.registry import load_traits
from planner.spec.items import KINDS, UNSEEN_HIGH, UNSEEN_LOW, TimeRange, wider_regimes

OWN = TimeRange(low=0.97, high=1.05, regime="own", accelerators=("b200-sxm",))
OTHERS = TimeRange(low=0.9, high=1.2, regime="others", accelerators=("a100-sxm-80", "b200-sxm"))
ALL = TimeRange(low=0.8, high=1.4, regime="all", accelerators=("a100-sxm-80", "b200-sxm"))
TRAITS = replace(
    load_traits("megatron"),
    time_ranges={("dense", "tuned"): OWN, ("", "usual"): OTHERS, ("", ""): ALL},
)


def test_a_class_without_a_range_has_that_of_the_narrowest_one_that_holds_it() -> None:
    assert TRAITS.time_range(("dense", "tuned"), "b200-sxm") is OWN
    assert TRAITS.time_range(("dense", "usual"), "a100-sxm-80") is OTHERS
    assert TRAITS.time_range(("frozen", "tuned"), "a100-sxm-80") is ALL


def test_an_accelerator_nobody_published_has_a_wider_range_that_says_so() -> None:
    found = TRAITS.time_range(("dense", "usual"), "mi300x")
    assert found.low == pytest.approx(OTHERS.low * UNSEEN_LOW)
    assert found.high == pytest.approx(OTHERS.high * UNSEEN_HIGH)
    assert found.low < OTHERS.low < OTHERS.high < found.high
    assert "no published run on mi300x" in found.regime


def test_ranges_hold_the_prediction_and_are_wider_for_software_that_nobody_ran() -> None:
    ranges, wide = (load_traits("megatron", name).time_ranges for name in ("current", "primus"))
    assert ("", "") in ranges
    for key, found in ranges.items():
        assert key[0] in KINDS
        assert set(wider_regimes(key)) & ranges.keys()
        assert found.accelerators
        assert wide[key].low <= found.low <= 1.0 <= found.high <= wide[key].high
        assert "0 runs of 0 sources" in wide[key].regime
