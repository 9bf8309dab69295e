import math
from dataclasses import asdict, fields, replace

import pytest

from planner.errors import InputError
from planner.frameworks.registry import (
    FRAMEWORKS,
    load_traits,
    profile_names,
    profile_title,
    trait_figures,
)
from planner.spec.strategy import OFFLOAD_CODES
from planner.spec.traits import FrameworkTraits

PROFILES = [(name, profile) for name in FRAMEWORKS for profile in profile_names(name)]


def test_the_four_frameworks_each_have_a_current_profile() -> None:
    assert FRAMEWORKS == ("megatron", "deepspeed", "torchtitan", "accelerate")
    assert all("current" in profile_names(name) for name in FRAMEWORKS)


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_every_profile_loads_with_all_sections(framework: str, profile: str) -> None:
    traits = load_traits(framework, profile)
    assert (traits.name, traits.profile) == (framework, profile)
    names = {field.name for field in fields(FrameworkTraits)}
    assert set(asdict(traits)) == names


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_every_trait_figure_has_a_value_and_a_source(framework: str, profile: str) -> None:
    for section, figures in trait_figures(framework, profile).items():
        for name, figure in figures.items():
            where = f"{section}.{name}"
            assert set(figure) == {"value", "source"}, where
            assert isinstance(figure["source"], str), where
            assert figure["source"].strip(), where


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_profile_says_what_it_stands_for_in_its_own_words(framework: str) -> None:
    titles = [profile_title(framework, profile) for profile in profile_names(framework)]
    assert all(title.title.strip() and title.versions.strip() for title in titles)
    assert len({(title.title, title.versions) for title in titles}) == len(titles)


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_figures_are_plausible(framework: str, profile: str) -> None:
    traits = load_traits(framework, profile)
    for section in (traits.states, traits.kernels, traits.overlap, traits.overheads):
        for name, value in asdict(section).items():
            if isinstance(value, str | bool | dict | tuple):
                continue
            assert math.isfinite(value), name
            assert value >= 0, name
            if name.endswith("_fraction"):
                assert value <= 1, name


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_what_is_supported_hangs_together(framework: str, profile: str) -> None:
    support = load_traits(framework, profile).support
    assert set(support.zero_stages) <= {0, 1, 2, 3}
    assert set(support.offload) <= set(OFFLOAD_CODES)
    assert "none" in support.offload
    assert "pp" in support.features or "vpp" not in support.features
    assert "tp" in support.features or "sequence_parallel" not in support.features
    assert support.vocab_padding >= 1


def test_a_profile_inherits_what_it_does_not_change() -> None:
    current, bridge = load_traits("megatron"), load_traits("megatron", "bridge")
    assert bridge.states.gradient_reduce_bytes == 2
    assert current.states.gradient_reduce_bytes == 4
    own = ("dispatcher", "router_kernels", "adapters", "expert_adapters")
    same = {name: getattr(current.kernels, name) for name in own}
    assert replace(bridge.kernels, **same) == current.kernels
    trains = ("train", "frozen_zero_stages")
    same = {name: getattr(current.support, name) for name in trains}
    assert replace(bridge.support, **same) == current.support


def test_a_profile_inherits_over_two_steps_and_from_another_framework() -> None:
    # megatron-bf16 extends megatron, which extends current.
    traits = load_traits("deepspeed", "megatron-bf16")
    assert traits.kernels.attention == "unfused"
    assert traits.states.gradient_bytes == 7
    assert load_traits("deepspeed", "megatron").states.gradient_bytes != 7
    assert traits.states.master_weight_bytes == load_traits("deepspeed").states.master_weight_bytes
    accelerate, torchtitan = load_traits("accelerate"), load_traits("torchtitan")
    assert accelerate.overheads == torchtitan.overheads
    assert "pp" not in accelerate.support.features


@pytest.mark.parametrize(
    ("names", "where", "known"),
    [
        (("megatron-lm",), ("--framework", "megatron-lm"), FRAMEWORKS),
        (("megatron", "2019"), ("megatron", "2019"), ("classic",)),
    ],
)
def test_an_unknown_framework_or_profile_names_the_known_ones(
    names: tuple[str, ...], where: tuple[str, str], known: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        load_traits(*names)
    (problem,) = caught.value.problems
    assert (problem.where, problem.key) == where
    assert all(name in problem.message for name in known)


def test_published_bytes_per_parameter() -> None:
    def kept(framework: str) -> tuple[float, float, float]:
        states = load_traits(framework).states
        return states.weight_bytes, states.gradient_bytes, states.master_weight_bytes

    # Megatron's page on the distributed optimizer: 18 bytes without, 6 + 12/d with it.
    assert (sum(kept("megatron")[:2]), kept("megatron")[2]) == (6, 4)
    # ZeRO (arXiv 1910.02054): 2 + 2 + 12, of which Adam's moments are 8.
    assert kept("deepspeed") == (2, 2, 4)
