"""Ranges of iteration time: from runs of the plan's own accelerator, wider where nobody ran."""

from dataclasses import replace

import pytest

from planner.frameworks.registry import load_traits
from planner.spec.traits import UNSEEN_HIGH, UNSEEN_LOW, TimeRange

OWN = TimeRange(low=0.97, high=1.05, regime="own", accelerators=("b200-sxm",))
OTHERS = TimeRange(low=0.9, high=1.2, regime="others", accelerators=("a100-sxm-80", "b200-sxm"))
TRAITS = replace(
    load_traits("megatron"), time_ranges={("dense", "b200-sxm"): OWN, ("dense", ""): OTHERS}
)


def test_runs_of_the_accelerator_come_first() -> None:
    assert TRAITS.time_range("dense", "b200-sxm") is OWN


def test_an_accelerator_among_those_of_the_broader_regime_has_its_range() -> None:
    assert TRAITS.time_range("dense", "a100-sxm-80") is OTHERS


def test_an_accelerator_nobody_published_has_a_wider_range_that_says_so() -> None:
    found = TRAITS.time_range("dense", "mi300x")
    assert found.low == pytest.approx(OTHERS.low * UNSEEN_LOW)
    assert found.high == pytest.approx(OTHERS.high * UNSEEN_HIGH)
    assert found.low < OTHERS.low < OTHERS.high < found.high
    assert "no published run on mi300x" in found.regime


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan", "accelerate"])
@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_every_published_range_names_its_accelerators(framework: str, kind: str) -> None:
    for (one, accelerator), found in load_traits(framework).time_ranges.items():
        if one == kind:
            assert found.accelerators
            assert accelerator in ("", *found.accelerators)
