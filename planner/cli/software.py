"""Frameworks of a question: which, under which profile and options, and what they run on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from planner.catalog.names import did_you_mean
from planner.cli.collector import Collector
from planner.formats.registry import format_names, load_format
from planner.frameworks.optimizers import optimizer_names
from planner.frameworks.registry import FRAMEWORKS, load_traits, profile_names
from planner.frameworks.settings import with_optimizer, with_recompute_modules
from planner.plans.recompute import idle_modules
from planner.plans.trait_settings import profile_problem, read_settings
from planner.spec.cluster import ClusterSpec
from planner.spec.job import Precision
from planner.spec.model import ModelSpec
from planner.spec.strategy import SCHEDULES
from planner.spec.traits import FrameworkTraits

ANY_FRAMEWORK = "any"
ALL_SCHEDULES = "all"


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
    names = _having(collector, _frameworks(collector, framework), profile, notes)
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
    hint = did_you_mean(name, known)
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
