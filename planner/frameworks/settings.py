"""Runtime settings that recipes and published runs state, as settings of traits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner.cost.launches import HOST_SHARES
from planner.errors import InputError
from planner.frameworks.registry import (
    CURRENT,
    FRAMEWORKS,
    figure_values,
    load_optimizer,
    load_traits,
    profile_names,
    software_facts,
)
from planner.spec.job import mtp_positions
from planner.spec.model import ModelSpec
from planner.spec.training import Mode, Training
from planner.spec.traits import FrameworkTraits, Setting, TraitValue


def captured_fraction(scopes: Iterable[str]) -> float:
    """Share of a mixture layer's launches inside the CUDA graphs of these scopes."""
    parts = tuple(scopes)
    if "full_iteration" in parts:
        return 1.0
    # Of a mixture layer's kernels, by what --cuda-graph-scope captures.
    shares = {
        "attn": HOST_SHARES["attention"],
        "moe_router": HOST_SHARES["router"] / 2.0,
        "moe_preprocess": HOST_SHARES["router"] / 2.0,
    }
    return sum(shares.get(part, 0.0) for part in parts)


def capacity_settings(factor: float, *, pads: bool) -> tuple[Setting, ...]:
    """Traits of experts with a capacity, padded to it or not."""
    return ("kernels.expert_capacity_factor", factor), ("kernels.pads_to_capacity", pads)


def runtime_settings(
    *,
    graphs: Iterable[str],
    dispatcher: str | None,
    expert_overlap: bool | None = None,
    tp_overlap: bool | None = None,
) -> tuple[Setting, ...]:
    """Traits that differ from the profile's; what is None (a dispatcher: empty) is left to it."""
    exchange = {None: None, True: "batches", False: "none"}[expert_overlap]
    overlap = {None: None, True: "ring", False: "none"}[tp_overlap]
    stated: dict[str, TraitValue | None] = {
        "kernels.cuda_graph_fraction": captured_fraction(graphs) or None,
        "overlap.expert_all_to_all_overlap": exchange,
        "overlap.tensor_parallel_overlap": overlap,
    }
    if dispatcher:
        kernels = figure_values(software_facts()["dispatcher"][dispatcher]["kernels"])
        stated |= {f"kernels.{name}": value for name, value in kernels.items()}
    return tuple((path, value) for path, value in stated.items() if value is not None)


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
        # Options under which it is trained: a profile of this framework, or another framework.
        options = [
            f"--profile {profile}"
            for profile in profile_names(traits.name)
            if training.mode in load_traits(traits.name, profile).support.train
        ][:1]
        options.append(f"--framework {', '.join(training_frameworks(training.mode))}")
        raise InputError.single(
            "command line",
            "--train",
            f"{traits.name} ({traits.profile}) trains {allowed} here; given {training.mode}; "
            f"{' or '.join(options)} trains it",
        )
    saved = traits.kernels.saved.of_frozen_weights()
    if traits.kernels.widens_stream and training.mode == "qlora":
        # Sections whose tensors are as wide as the stream between layers; attention is computed in
        # 16 bits, and norms keep fp32 anyway.
        saved = saved.in_32_bits(("mlp", "backward"))
    kernels = replace(traits.kernels, saved=saved)
    stages = traits.support.frozen_zero_stages or traits.support.zero_stages
    support = replace(traits.support, zero_stages=stages)
    return replace(traits, training=training, kernels=kernels, support=support)


def training_frameworks(mode: Mode) -> list[str]:
    """Names of the frameworks that train so under their usual profile."""
    return [name for name in FRAMEWORKS if mode in load_traits(name, CURRENT).support.train]


def with_recompute_modules(traits: FrameworkTraits, names: Sequence[str]) -> FrameworkTraits:
    """Return the traits with these modules under selective recomputation; InputError if unknown."""
    known = [module.name for module in traits.recompute.modules]
    unknown = ", ".join(repr(name) for name in names if name not in known)
    if unknown:
        raise InputError.single(
            "command line",
            "--recompute-modules",
            f"unknown modules {unknown} of {traits.name}; allowed are {', '.join(known)}",
        )
    return replace(traits, recompute=replace(traits.recompute, selected=tuple(names)))


def usual_mtp_layers(model: ModelSpec, traits: FrameworkTraits) -> int:
    """Layers of multi-token prediction that are trained where nobody says: the model's own.

    None where the framework does not train them.
    """
    trains = "mtp" in traits.support.features and mtp_positions(model)
    return model.num_mtp_layers if trains else 0
