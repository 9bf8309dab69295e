"""Frameworks of a question: which, under which profile and options, and what they run on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from planner.catalog.names import did_you_mean
from planner.check.job import Software
from planner.cli.collector import Collector
from planner.cli.words import SEVERAL, meant_word
from planner.formats.registry import format_names, load_format
from planner.frameworks.optimizers import optimizer_names
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits, profile_names
from planner.frameworks.settings import (
    usual_mtp_layers,
    with_optimizer,
    with_recompute_modules,
)
from planner.plans.recompute import idle_modules
from planner.plans.trait_settings import profile_problem, read_settings
from planner.spec.cluster import ClusterSpec
from planner.spec.job import MAX_MTP_LAYERS, Precision, mtp_positions
from planner.spec.model import ModelSpec
from planner.spec.strategy import SCHEDULES
from planner.spec.traits import FrameworkTraits

ANY_FRAMEWORK = "any"
ALL_SCHEDULES = "all"


def read_software(profile: str | None, settings: Sequence[str] | None) -> Software | None:
    """What options say of a file's framework; raises InputError."""
    if profile is None and not settings:
        return None
    return Software(profile=profile or CURRENT, settings=read_settings(settings or ()))


def read_frameworks(
    collector: Collector,
    notes: list[str],
    *,
    framework: str,
    profile: str,
    settings: Sequence[str],
    optimizer: str,
    recompute_modules: str | None,
    margin_percent: float | None,
) -> list[FrameworkTraits]:
    """The frameworks asked for that have the profile, as the options change them."""
    framework = meant_word("--framework", framework, (*FRAMEWORKS, ANY_FRAMEWORK), notes)
    names = _having(collector, _frameworks(collector, framework), profile, notes)
    optimizer = meant_word("--optimizer", optimizer, optimizer_names(), notes)
    given = collector.read(partial(read_settings, settings)) or ()
    if framework == ANY_FRAMEWORK:
        names = _offering(names, optimizer, notes)
    return [
        _with_options(
            collector,
            load_traits(name, profile, given),
            margin_percent,
            recompute_modules,
            optimizer,
        )
        for name in names
    ]


def _frameworks(collector: Collector, name: str) -> tuple[str, ...]:
    if name == ANY_FRAMEWORK:
        return FRAMEWORKS
    if name in FRAMEWORKS:
        return (name,)
    known = (*FRAMEWORKS, ANY_FRAMEWORK)
    hint = SEVERAL.get(name.lower()) or did_you_mean(name, known)
    if name in format_names():
        hint = (
            f"{name} is a format of files: --framework {load_format(name).framework} --emit {name}"
        )
    message = f"unknown framework {name!r}; allowed are {', '.join(known)}. {hint}"
    collector.add("--framework", message.rstrip())
    return ()


def _having(
    collector: Collector, names: tuple[str, ...], profile: str, notes: list[str]
) -> tuple[str, ...]:
    """Frameworks that have the profile; notes those of several that do not."""
    having = tuple(name for name in names if profile in profile_names(name))
    left = [name for name in names if name not in having]
    if having and left:
        notes.append(f"left out, without profile {profile}: {', '.join(left)}")
    if not having:
        for name in left:
            collector.add("--profile", profile_problem(name, profile))
    return having


def _offering(names: tuple[str, ...], optimizer: str, notes: list[str]) -> tuple[str, ...]:
    """Frameworks that offer the optimizer; all of them where none does, to say so."""
    offering = tuple(name for name in names if optimizer in optimizer_names(name))
    left = ", ".join(name for name in names if name not in offering)
    if offering and left:
        notes.append(f"left out, without {optimizer}: {left}")
    return offering or names


def _with_options(
    collector: Collector,
    traits: FrameworkTraits,
    margin_percent: float | None,
    recompute_modules: str | None,
    optimizer: str,
) -> FrameworkTraits:
    """Traits with the uncertainty, the recompute modules and the optimizer a user gives."""
    traits = collector.read(partial(with_optimizer, traits, optimizer)) or traits
    if recompute_modules is not None:
        names = [name.strip() for name in recompute_modules.split(",") if name.strip()]
        traits = collector.read(partial(with_recompute_modules, traits, names)) or traits
        if "selective" not in traits.support.policies:
            offered = f"{traits.name} ({traits.profile}) has no selective recomputation"
            collector.add("--recompute-modules", f"{offered}; given {recompute_modules}")
    if margin_percent is not None:
        traits = replace(traits, memory_uncertainty_fraction=margin_percent / 100.0)
    return traits


def training_in(
    collector: Collector, chosen: list[FrameworkTraits], precision: Precision, notes: list[str]
) -> list[FrameworkTraits]:
    """Frameworks that train in the precision; those of several that do not are noted."""
    kept = [traits for traits in chosen if precision in traits.support.precisions]
    for traits in chosen:
        allowed = ", ".join(traits.support.precisions)
        text = f"{traits.name} ({traits.profile}) trains in {allowed}"
        if not kept:
            collector.add("--precision", f"{text}; given {precision}")
        elif traits not in kept:
            notes.append(f"left out for --precision {precision}: {text}")
    return kept


def read_schedules(
    collector: Collector, given: Sequence[str] | None, chosen: Sequence[FrameworkTraits]
) -> tuple[str, ...]:
    """Names from options and comma lists; some framework must offer each."""
    if given is None:
        return SCHEDULES
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if ALL_SCHEDULES in names:
        return SCHEDULES
    for name in names:
        offering = [traits.name for traits in chosen if name in traits.support.schedules]
        if name not in SCHEDULES:
            known = (*SCHEDULES, ALL_SCHEDULES)
            hint = did_you_mean(name, known)
            text = f"unknown schedule {name!r}; allowed are {', '.join(known)}. {hint}"
            collector.add("--schedule", text.strip())
        elif not offering and chosen:
            offered = {name for traits in chosen for name in traits.support.schedules}
            allowed = ", ".join(name for name in SCHEDULES if name in offered)
            profiles = ", ".join(f"{traits.name} ({traits.profile})" for traits in chosen)
            collector.add("--schedule", f"{profiles} does not offer {name}; allowed are {allowed}")
    return tuple(names) or ("1f1b",)


TRANSFORMER_ENGINE_FROM = 8.0
"""Compute capability that Transformer Engine asks for."""


def mtp_layers_in(
    collector: Collector,
    given: int | None,
    model: ModelSpec | None,
    chosen: list[FrameworkTraits],
    notes: list[str],
) -> tuple[list[FrameworkTraits], list[int]]:
    """Frameworks that train so many layers of multi-token prediction, and how many each does."""
    if model is None or (given is not None and not 0 <= given <= MAX_MTP_LAYERS):
        if given is not None and not 0 <= given <= MAX_MTP_LAYERS:
            collector.add("--mtp-layers", f"must be from 0 to {MAX_MTP_LAYERS}; given {given}")
        return chosen, [0] * len(chosen)
    usual = [usual_mtp_layers(model, traits) for traits in chosen]
    if given is None:
        notes += _mtp_notes(model, chosen, usual)
        return chosen, usual
    kept = [traits for traits in chosen if not given or traits.support.trains_mtp]
    left = ", ".join(f"{one.name} ({one.profile})" for one in chosen if one not in kept)
    if given and not mtp_positions(model):
        text = f"{given} given; a {model.architecture} with position {model.position} has none: 0"
        collector.add("--mtp-layers", text)
    elif left and not kept:
        collector.add(
            "--mtp-layers", f"{given} given; {left} is planned without them: allowed is 0"
        )
    elif left:
        notes.append(f"left out, planned without multi-token prediction: {left}")
    return kept, [given] * len(kept)


def _mtp_notes(
    model: ModelSpec, chosen: Sequence[FrameworkTraits], usual: Sequence[int]
) -> Iterator[str]:
    own = model.num_mtp_layers
    layers = f"{own} layer{'s' * (own > 1)} of multi-token prediction"
    trained = [each.name for each, number in zip(chosen, usual, strict=True) if number]
    others = [each.name for each, number in zip(chosen, usual, strict=True) if not number]
    if own and trained:
        yield f"{', '.join(trained)}: trained with its {layers} (default; --mtp-layers 0: without)"
    if own and others:
        yield f"{', '.join(others)}: trained without {model.name}'s {layers}"


def unsupported_hardware(chosen: list[FrameworkTraits], cluster: ClusterSpec) -> list[str]:
    """What frameworks are not made to run on."""
    accelerator, vendor = cluster.accelerator, cluster.accelerator.vendor
    old = [
        f"{traits.name} {traits.profile} computes with Transformer Engine, which does not run on "
        f"{accelerator.architecture}; --profile classic stands for kernels that do"
        for traits in chosen
        if 0 < accelerator.compute_capability < TRANSFORMER_ENGINE_FROM
        and traits.kernels.saved.name == "transformer_engine"
    ]
    return old + [
        f"{traits.name} runs on {vendor} hardware; it is made for "
        f"{', '.join(traits.support.vendors)}"
        for traits in chosen
        if vendor not in traits.support.vendors
    ]


def idle_notes(chosen: list[FrameworkTraits], model: ModelSpec) -> list[str]:
    """Recompute modules that were asked for and save nothing."""
    return [
        f"recompute module {name} saves nothing: the layers of {model.name} keep no tensor "
        f"that it would rebuild under {traits.name}"
        for traits in chosen
        for name in idle_modules(model, traits)
    ]
