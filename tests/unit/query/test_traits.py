"""Traits a user sets: what is read, what is refused and how, and that files keep them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from contexts import context_of

from planner.answers.layout import fill_in, requested
from planner.cost.estimate import estimate
from planner.errors import InputError
from planner.frameworks.registry import (
    FACTS,
    FRAMEWORKS,
    load_traits,
    profile_names,
    trait_figures,
    trait_types,
)
from planner.query.traits import (
    RECOMPUTE,
    profile_problem,
    read_settings,
    settings_mapping,
    settings_of,
)

PROFILES = [(name, profile) for name in FRAMEWORKS for profile in profile_names(name)]
LAYOUTS: dict[str, dict[str, Any]] = {
    "megatron": {"tp": 2, "pp": 2},
    "deepspeed": {"zero_stage": 2},
    "torchtitan": {"tp": 2, "cp": 2, "zero_stage": 3},
}
UNSPLIT = {"zero3_secondary_weight_bytes": {"tp": 1, "cp": 1}}
"""A second copy of the weights goes with neither."""
LARGEST = 1e18
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = yaml.safe_load((EXAMPLES / "settings.yaml").read_text())


def figures_of(framework: str, profile: str) -> dict[str, dict[str, object]]:
    """Values of a profile by section, as a plan file would state them."""
    return {
        section: {name: figure["value"] for name, figure in figures.items()}
        for section, figures in trait_figures(framework, profile).items()
        if section != RECOMPUTE
    }


def problems_of(*texts: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_settings(texts)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "value"), SETTINGS)
def test_values_are_read_as_the_trait_is_typed(text: str, value: object) -> None:
    ((found, read),) = read_settings([f"traits.{text}"])
    assert found == text.partition("=")[0]
    assert read == (tuple(value) if isinstance(value, list) else value)
    assert isinstance(value, list) or type(read) is type(value)


def test_a_trait_of_another_section_is_offered_where_it_is() -> None:
    (problem,) = problems_of("traits.overlap.master_weight_byte=2")
    assert problem.endswith("did you mean traits.states.master_weight_bytes, "
                            "traits.states.zero3_weight_bytes, "
                            "traits.states.fp8_gathered_weight_bytes?")  # fmt: skip


def test_every_problem_is_reported_and_the_good_ones_are_not() -> None:
    problems = problems_of(
        "traits.overlap.ring_achieved_fraction=0.1",
        "traits.kernels.dropout=maybe",
        "traits.overlap.ring_achieved_fraction=0.2",
    )
    assert [problem.partition(": ")[2] for problem in problems] == [
        "wrong value; given 'maybe', allowed: true, false",
        "is set twice; given 0.1 and 0.2",
    ]


def test_a_file_is_refused_by_the_key_in_it() -> None:
    traits = {"overlap": {"ring_achieved": 1, "ring_achieved_fraction": 3.0}, "nowhere": {"x": 1}}
    with pytest.raises(InputError) as caught:
        settings_of(traits, where="best.yaml", key="inputs.traits")
    assert [(p.where, p.key) for p in caught.value.problems] == [
        ("best.yaml", "inputs.traits.overlap.ring_achieved"),
        ("best.yaml", "inputs.traits.overlap.ring_achieved_fraction"),
        ("best.yaml", "inputs.traits.nowhere.x"),
    ]


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_a_profile_can_be_set_trait_by_trait_on_another(framework: str, profile: str) -> None:
    settings = settings_of(figures_of(framework, profile), where="file", key="traits")
    other = load_traits("megatron", "current", settings)
    wanted = load_traits(framework, profile)
    for section in set(trait_types()) - {FACTS}:
        assert getattr(other, section) == getattr(wanted, section)
    assert settings_of(settings_mapping(settings), where="file", key="traits") == settings


def test_a_setting_changes_its_trait_and_no_other() -> None:
    before = load_traits("megatron", "bridge")
    settings = read_settings(["traits.overlap.ring_achieved_fraction=0.9"])
    after = load_traits("megatron", "bridge", settings)
    overlap = replace(before.overlap, ring_achieved_fraction=0.9)
    assert after == replace(before, overlap=overlap, settings=settings)
    figures = trait_figures("megatron", "bridge", settings)["overlap"]
    assert figures["ring_achieved_fraction"] == {"value": 0.9, "source": "given"}
    assert load_traits("megatron", "bridge") == before


RANGES = {
    "host_bandwidth_fraction": (0.01, 1.0),
    "host_optimizer_factors": (0.01, 100.0),
    "expert_capacity_factor": (0.0, 1000.0),
    # More need as many ranks, which not every layout has.
    **dict.fromkeys(("weight_shards", "expert_weight_shards"), (1.0, 1.0)),
}


FEATURES = {"features": ["tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "expert_capacity"]}
BESIDE: dict[str, dict[str, dict[str, object]]] = {
    "expert_capacity_factor": {"support": {**FEATURES}},
    "pads_to_capacity": {"support": {**FEATURES}, "kernels": {"expert_capacity_factor": 1.25}},
}
"""What must be set beside a trait for it to be taken."""


def extremes() -> Iterator[tuple[str, str, object]]:
    """Section, name and each end of the range of every number, and both of every switch."""
    for section, types in trait_types().items():
        for name, kind in types.items():
            if section == "support":
                continue
            if kind is bool:
                yield from ((section, name, True), (section, name, False))
            elif kind is float:
                low, high = RANGES.get(name, (0.0, LARGEST))
                high = 1.0 if name.endswith("_fraction") else high
                yield from ((section, name, low), (section, name, high))


@pytest.mark.parametrize("framework", LAYOUTS)
def test_allowed_extremes_give_finite_estimates_between_their_bounds(framework: str) -> None:
    context = context_of(framework=framework)
    for section, name, value in extremes():
        given: dict[str, dict[str, object]] = {**BESIDE.get(name, {})}
        given[section] = {**given.get(section, {}), name: value}
        settings = settings_of(given, where="file", key="traits")
        changed = replace(context, traits=load_traits(framework, "current", settings))
        layout = LAYOUTS[framework] | UNSPLIT.get(name, {})
        result = estimate(*fill_in(changed, requested(**layout)))
        where = f"{section}.{name}={value}"
        assert np.isfinite(result.memory.peak_bytes), where
        assert result.memory.peak_bytes > 0, where
        assert result.iter_time_s > 0, where
        nearly = 1.0 + 1e-9
        assert result.iter_time_s_lower <= result.iter_time_s * nearly, where
        assert result.iter_time_s <= result.iter_time_s_upper * nearly, where


def test_profiles_of_a_framework_are_checked_with_near_names() -> None:
    assert profile_problem("megatron", "bridge") == ""
    megatron, accelerate = (", ".join(profile_names(name)) for name in ("megatron", "accelerate"))
    assert profile_problem("megatron", "brige") == (
        f"unknown profile of megatron; given 'brige', allowed: {megatron}; did you mean bridge?"
    )
    assert profile_problem("accelerate", "bridge") == (
        f"unknown profile of accelerate; given 'bridge', allowed: {accelerate}"
    )
