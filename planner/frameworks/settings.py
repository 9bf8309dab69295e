"""Traits with what a user chooses: the optimizer, and what selective recomputation repeats."""

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.frameworks.optimizers import load_optimizer
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits, profile_names
from planner.spec.job import mtp_positions
from planner.spec.model import ModelSpec
from planner.spec.training import Mode, Training
from planner.spec.traits import FrameworkTraits

WIDENED = ("mlp", "backward")
"""Sections of tables whose tensors are as wide as the stream between layers; attention is computed
in 16 bits, and norms keep fp32 anyway."""


def with_optimizer(traits: FrameworkTraits, name: str) -> FrameworkTraits:
    """Return the traits with another optimizer; InputError where the framework lacks it."""
    fraction = traits.states.optimizer_state_fraction
    return replace(traits, optimizer=load_optimizer(name, traits.name, fraction))


def with_training(traits: FrameworkTraits, training: Training) -> FrameworkTraits:
    """Return the traits where only this is trained; InputError where the framework cannot."""
    if not training.is_frozen:
        return traits
    if training.mode not in traits.support.train:
        allowed = ", ".join(traits.support.train)
        message = (
            f"{traits.name} ({traits.profile}) trains {allowed} here; given {training.mode}; "
            f"{' or '.join(_training(traits.name, training.mode))} trains it"
        )
        raise InputError.single("command line", "--train", message)
    saved = traits.kernels.saved.of_frozen_weights()
    widens_stream = traits.kernels.widens_stream and training.mode == "qlora"
    if widens_stream:
        saved = saved.in_32_bits(WIDENED)
    kernels = replace(traits.kernels, saved=saved, widens_stream=widens_stream)
    support = replace(traits.support, zero_stages=traits.support.frozen_zero_stages)
    return replace(traits, training=training, kernels=kernels, support=support)


def training_frameworks(mode: Mode) -> list[str]:
    """Names of the frameworks that train so under their usual profile."""
    return [name for name in FRAMEWORKS if mode in load_traits(name, CURRENT).support.train]


def _training(framework: str, mode: Mode) -> list[str]:
    """Options under which it is trained: a profile of this framework, or another framework."""
    own = [
        f"--profile {profile}"
        for profile in profile_names(framework)
        if mode in load_traits(framework, profile).support.train
    ]
    return [*own[:1], f"--framework {', '.join(training_frameworks(mode))}"]


def with_recompute_modules(traits: FrameworkTraits, names: Sequence[str]) -> FrameworkTraits:
    """Return the traits with these modules under selective recomputation; InputError if unknown."""
    known = [module.name for module in traits.recompute.modules]
    unknown = ", ".join(repr(name) for name in names if name not in known)
    if unknown:
        message = f"unknown modules {unknown} of {traits.name}; allowed are {', '.join(known)}"
        raise InputError.single("command line", "--recompute-modules", message)
    return replace(traits, recompute=replace(traits.recompute, selected=tuple(names)))


def usual_mtp_layers(model: ModelSpec, traits: FrameworkTraits) -> int:
    """Layers of multi-token prediction that are trained where nobody says: the model's own.

    None where the framework does not train them.
    """
    trains = traits.support.trains_mtp and mtp_positions(model)
    return model.num_mtp_layers if trains else 0
