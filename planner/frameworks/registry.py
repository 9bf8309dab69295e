"""Finds frameworks and optimizers by name: traits, and what kernels and optimizers keep."""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args, get_type_hints

from planner.documents.tree import load_own
from planner.errors import InputError, unknown
from planner.spec.items import RunClass, TimeRange, class_words
from planner.spec.saved import SavedTables, SavedTensorSpec
from planner.spec.training import OptimizerSpec, TensorKind, TensorStates
from planner.spec.traits import (
    FrameworkTraits,
    KernelTraits,
    OffloadTraits,
    OverheadTraits,
    OverlapTraits,
    RecomputeModule,
    RecomputeTraits,
    Setting,
    StateTraits,
    SupportTraits,
)
from planner.units import plural

FRAMEWORKS = ("megatron", "deepspeed", "torchtitan", "accelerate")
CURRENT = "current"
ADAM = "adam"
FACTS = "software"  # section of settings that are facts of software, not single traits
Figures = dict[str, dict[str, Any]]
Sections = dict[str, Figures]
KINDS: tuple[str, ...] = get_args(TensorKind)
LOSSES = "losses"  # of vocabulary projections: a table file of its own
_OPTIMIZERS = "optimizers.yaml"
_SECTIONS: dict[str, type[Any]] = {
    "states": StateTraits,
    "kernels": KernelTraits,
    "recompute": RecomputeTraits,
    "overlap": OverlapTraits,
    "overheads": OverheadTraits,
    "offload": OffloadTraits,
    "support": SupportTraits,
}


@cache
def _own(*names: str) -> dict[str, Any]:
    """Load a YAML file of this package."""
    held: dict[str, Any] = load_own(__package__, *names)
    return held


@cache
def _stacks() -> list[dict[str, Any]]:
    """Lines of stacks.yaml."""
    lines: list[dict[str, Any]] = load_own(__package__, "stacks.yaml")
    return lines


def stated_figures(framework: str) -> dict[str, dict[str, Any]]:
    """Return what a framework's traits file states, profile by profile, nothing inherited.

    ``common``: the traits that are the same in every framework, by section.
    """
    return _own("traits", f"{framework}.yaml")


@cache
def _named_stacks(framework: str) -> dict[str, dict[str, Any]]:
    """Stacks whose name is a word of --profile, as profiles that extend the one they are over."""
    found = {}
    for line in _stacks():
        if "as" not in line or line["framework"] != framework:
            continue
        own: dict[str, Any] = {"extends": line["profile"], "facts": {}}
        for path, figure in line["facts"].items():
            section, _, name = path.rpartition(".")
            own.setdefault(section or "facts", {})[name] = figure
        found[line["as"]] = own | {key: line[key] for key in ("title", "versions")}
    return found


def _stated_profile(framework: str, profile: str) -> dict[str, Any]:
    return stated_figures(framework).get(profile) or _named_stacks(framework)[profile]


def has_profile(framework: str, profile: str) -> bool:
    """Return True if a framework has such a trait profile."""
    return profile in stated_figures(framework) or profile in _named_stacks(framework)


def profile_names(framework: str) -> list[str]:
    """Return the trait profiles of a framework; ``current`` is the one plans assume."""
    return [*stated_figures(framework), *_named_stacks(framework)]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of a framework, and what it stands for."""

    framework: str
    profile: str
    title: str
    versions: str  # releases and years of the software
    runs: int  # published ones with a time
    sources: int  # of those


def profile_title(framework: str, profile: str) -> Profile:
    """Return what a known profile stands for."""
    own = _stated_profile(framework, profile)
    return Profile(
        framework=framework,
        profile=profile,
        title=own["title"],
        versions=own["versions"],
        **_own("profile_runs.yaml")[f"{framework}/{profile}"],
    )


def software_facts() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return the traits that each choice of a fact of software stands for, by fact."""
    return _own("facts.yaml")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A name of software, and what it is priced as: a profile with facts over it."""

    framework: str
    profile: str
    facts: tuple[Setting, ...] = ()


@cache
def stack_named(name: str) -> Stack | None:
    """Return what software of a name is priced as; None where no line has such a name."""
    words = re.findall(r"[\w.-]+", name.lower())

    def has(known: str) -> bool:
        return all(fnmatch.filter(words, word) for word in known.split())

    line = next((line for line in _stacks() if any(map(has, line.get("names", ())))), None)
    if line is None:
        return None
    stated = line.get("facts", {}).items()
    facts = tuple(
        (
            fact if "." in fact else f"{FACTS}.{fact}",
            tuple(choice) if isinstance(choice, list) else choice,
        )
        for fact, choice in stated
    )
    return Stack(framework=line["framework"], profile=line["profile"], facts=facts)


def renamed_traits() -> dict[str, str]:
    """Return what to say instead of a trait that went, by its path."""
    return _own("renamed.yaml")


def trait_types() -> dict[str, dict[str, Any]]:
    """Return the type of every trait a user can set, by section and name; facts are a section."""
    types = {
        section: get_type_hints(cls) for section, cls in _SECTIONS.items() if section != "recompute"
    }
    choices = {fact: Literal[tuple(named)] for fact, named in software_facts().items()}
    return {**types, FACTS: choices}


def _with_facts(figures: Sections, chosen: Mapping[str, Any]) -> Sections:
    """Lay what facts of software stand for over a profile's figures, in the order of their file."""
    for fact, choices in software_facts().items() if chosen else ():
        stands_for = choices[chosen[fact]] if fact in chosen else {}
        figures = {name: {**own, **stands_for.get(name, {})} for name, own in figures.items()}
    return figures


def _resolve(framework: str, profile: str) -> dict[str, dict[str, Any]]:
    """Lay a profile's figures over those that it extends, at last over what all share."""
    own = dict(_stated_profile(framework, profile))
    parent = own.pop("extends", None)
    if parent is None:
        shared = stated_figures("common")
        figures = {name: own.get(name, {}) | shared.get(name, {}) for name in _SECTIONS}
    else:
        base_framework, _, base_profile = parent.rpartition("/")
        figures = _resolve(base_framework or framework, base_profile)
    figures = _with_facts(figures, own.get("facts", {}))
    return {section: {**figures.get(section, {}), **own.get(section, {})} for section in _SECTIONS}


def trait_figures(
    framework: str, profile: str = CURRENT, settings: tuple[Setting, ...] = ()
) -> dict[str, dict[str, Any]]:
    """Return every trait as ``{value, source}`` by section, inherited and set ones included."""
    if framework not in FRAMEWORKS:
        raise InputError.single(
            "--framework", framework, f"unknown framework; allowed are {', '.join(FRAMEWORKS)}, any"
        )
    if not has_profile(framework, profile):
        known = ", ".join(profile_names(framework))
        raise InputError.single(framework, profile, f"unknown profile; allowed are {known}")
    facts = {path.removeprefix(f"{FACTS}."): value for path, value in settings}
    figures = _with_facts(_resolve(framework, profile), facts)
    for path, value in settings:
        section, _, name = path.partition(".")
        if section != FACTS:
            figures[section][name] = {"value": value, "source": "given"}
    return figures


@cache
def time_ranges(framework: str, profile: str) -> dict[RunClass, TimeRange]:
    """Return the ranges of time errors on published runs, by class, from time_uncertainty.yaml.

    As wide as all sources differ where fewer than two have the profile.
    """
    own, found = profile_title(framework, profile), {}
    low, high, words = "low_percent", "high_percent", ""
    if own.sources < 2:
        low, high = "least_percent", "most_percent"
        known = f"{plural(own.runs, 'run')} of {plural(own.sources, 'source')}"
        words = f", as wide as all sources differ: {known} with this profile"
    for regime in load_own(__package__, "time_uncertainty.yaml"):
        key = regime.get("kind", ""), regime.get("reach", "")
        runs = f"{regime['runs']} published runs of {regime['sources']} sources"
        found[key] = TimeRange(
            low=1.0 + regime[low] / 100.0,
            high=1.0 + regime[high] / 100.0,
            regime=f"{runs}: {class_words(key)}{words}",
            accelerators=tuple(regime["accelerators"]),
        )
    return found


def ratio_figures() -> Mapping[str, Mapping[str, float]]:
    """Return the errors of time ratios on pairs of published runs, by what they differ in."""
    pairs: dict[str, dict[str, float]] = _own("ratio_errors.yaml")["pairs"]
    return pairs


def table_names() -> list[str]:
    """Return the implementations whose saved tensors are known."""
    folder = resources.files("planner.frameworks").joinpath("saved")
    stems = (entry.name.removesuffix(".yaml") for entry in folder.iterdir())
    return sorted(stem for stem in stems if stem != LOSSES)


def saved_figures(name: str) -> dict[str, Any]:
    """Return a table file as it stands, sources included."""
    return _own("saved", f"{name}.yaml")


def _sections(
    node: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[SavedTensorSpec, ...]]]:
    """Yield dotted section names with their entries; a section holds entries or sections."""
    entries = list[SavedTensorSpec]()
    for name, child in node.items():
        if "width" not in child:
            yield from _sections(child, f"{prefix}.{name}" if prefix else name)
            continue
        entries.append(
            SavedTensorSpec(
                name=name,
                width=child["width"],
                element_bytes=float(child["bytes"]),
                multiple=float(child.get("multiple", 1.0)),
                is_linear_input=bool(child.get("linear_input", False)),
                fp8_bytes=child.get("fp8_bytes"),
                when=child.get("when", "always"),
                is_freed=bool(child.get("freed", False)),
            )
        )
    if entries or not node:
        yield prefix, tuple(entries)


def _inherited(name: str) -> dict[str, tuple[SavedTensorSpec, ...]]:
    """Sections of a table file laid over those it extends."""
    figures = dict(saved_figures(name))
    parent = figures.pop("extends", None)
    sections = _inherited(parent) if parent else {}
    sections |= _sections(figures)
    return sections


@cache
def load_saved_tables(name: str, loss: str) -> SavedTables:
    """Return the tables of an implementation with those of a loss as section ``loss``."""
    sections = _inherited(name)
    sections |= _sections(saved_figures(LOSSES)[loss], "loss")
    return SavedTables(name=name, sections=sections)


def optimizer_names(framework: str | None = None) -> list[str]:
    """Return all optimizers, or those a framework offers."""
    return [
        name
        for name, entry in _own(_OPTIMIZERS).items()
        if framework is None or framework in entry["frameworks"]
    ]


def smaller_states(name: str, framework: str) -> list[str]:
    """Return optimizers of a framework that step as ``name`` does and keep smaller states."""
    return [
        other
        for other in optimizer_names(framework)
        if _own(_OPTIMIZERS)[other].get("smaller_states_of") == name
    ]


def optimizer_figures(name: str, framework: str | None = None) -> dict[str, Figures]:
    """Return every figure as ``{value, source}``: ``figures``, then one section per tensor kind.

    Unknown names, and optimizers the framework does not offer, raise InputError.
    """
    if name not in _own(_OPTIMIZERS):
        message = unknown("optimizer", name, optimizer_names())
        raise InputError.single("command line", "--optimizer", message)
    entry = _own(_OPTIMIZERS)[name]
    if framework is not None and framework not in entry["frameworks"]:
        known = ", ".join(optimizer_names(framework))
        message = f"{framework} does not offer {name}; it offers {known or 'none'}"
        raise InputError.single("command line", "--optimizer", message)
    own = entry["frameworks"][framework] if framework else {}
    general = {key: figure for key, figure in own.items() if key not in KINDS}
    sections: dict[str, Figures] = {"figures": {**entry["figures"], **general}}
    for kind in KINDS:
        sections[kind] = {**entry["states"], **entry.get(kind, {}), **own.get(kind, {})}
    return sections


@cache
def load_optimizer(
    name: str, framework: str | None = None, state_fraction: float = 1.0
) -> OptimizerSpec:
    """Return an optimizer, as ``framework`` runs it where one is named.

    ``state_fraction``: of the bytes of whole states and of the step's traffic, what is left where
    weights, gradients and states are of 16 bits.
    """
    sections = optimizer_figures(name, framework)
    values = figure_values(sections.pop("figures"))
    for kind in KINDS:
        states = TensorStates(**figure_values(sections[kind]))
        values[kind] = replace(states, element_bytes=states.element_bytes * state_fraction)
    values["step_traffic_bytes"] *= state_fraction
    return OptimizerSpec(name=name, **values)


def figure_values(figures: Figures) -> dict[str, Any]:
    """The values of figures, lists as tuples."""
    values = {key: figure["value"] for key, figure in figures.items()}
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


@cache
def load_traits(
    framework: str, profile: str = CURRENT, settings: tuple[Setting, ...] = ()
) -> FrameworkTraits:
    """Return the traits of a framework profile with a user's settings laid over them.

    Unknown names, and a capacity that the framework does not offer, raise InputError.
    """
    figures = trait_figures(framework, profile, settings)
    sections = {}
    for section, cls in _SECTIONS.items():
        values = figure_values(figures[section])
        if section == "kernels":
            values["saved"] = load_saved_tables(values["saved"], values["loss"])
        if section == "recompute":  # every key beside ``selected`` is a module
            selected = values.pop("selected")
            modules = tuple(
                RecomputeModule(
                    name=name,
                    **own | {key: tuple(one) for key, one in own.items() if isinstance(one, list)},
                )
                for name, own in values.items()
            )
            values = {"selected": selected, "modules": modules}
        sections[section] = cls(**values)
    named, kernels = f"{framework} ({profile})", sections["kernels"]
    problem = ""
    if kernels.pads_to_capacity and not kernels.expert_capacity_factor:
        problem = "pads_to_capacity needs expert_capacity_factor: experts are padded to that"
    elif kernels.expert_capacity_factor and "expert_capacity" not in sections["support"].features:
        problem = f"{named} gives experts no capacity: all tokens that are sent to one are computed"
    if problem:
        raise InputError.single(named, "kernels.expert_capacity_factor", problem)
    return FrameworkTraits(
        name=framework,
        profile=profile,
        memory_uncertainty_fraction=_own("uncertainty.yaml")[framework]["memory_percent"] / 100.0,
        time_ranges=time_ranges(framework, profile),
        optimizer=load_optimizer(ADAM, framework, sections["states"].optimizer_state_fraction),
        settings=settings,
        **sections,
    )
