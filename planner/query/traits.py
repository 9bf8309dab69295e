"""The software a user states: a profile by name, and single traits; all problems at once."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin

from planner.documents.tree import parsed_yaml
from planner.errors import InputError, did_you_mean, nearest
from planner.frameworks.registry import (
    CURRENT,
    FACTS,
    LOSSES,
    has_profile,
    profile_names,
    renamed_traits,
    saved_figures,
    table_names,
    trait_types,
)
from planner.limits import MAX_GPUS, short
from planner.notes import COMMAND_LINE, Problems
from planner.spec.strategy import LAYER_POLICY_NAMES, OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES
from planner.spec.training import MODES
from planner.spec.traits import FrameworkTraits, Setting, TraitValue

OPTION = "--set"
ROOT = "traits"
RECOMPUTE = "recompute"
WAITS = ("router", "dispatch", "combine")  # ops of a mixture behind which a host may wait


@cache
def _words_of() -> Mapping[str, Sequence[object]]:
    """Values allowed where a trait's type alone does not say."""
    return {
        "kernels.saved": table_names(),
        "kernels.loss": list(saved_figures(LOSSES)),
        "kernels.host_waits": WAITS,
        "kernels.padded_host_waits": WAITS,
        "support.offload": OFFLOAD_CODES,
        "support.placements": PLACEMENT_NAMES,
        "support.policies": LAYER_POLICY_NAMES,
        "support.schedules": SCHEDULES,
        "support.train": MODES,
    }


_RANGES: Mapping[str, tuple[float, float]] = {
    "kernels.expert_capacity_factor": (0.0, 1000.0),
    "support.usual_zero_stage": (0, 3),
    "states.weight_shards": (1, MAX_GPUS),
    "states.expert_weight_shards": (1, MAX_GPUS),
    "offload.host_bandwidth_fraction": (0.01, 1.0),
    "offload.host_optimizer_factors": (0.01, 100.0),
    "support.vocab_padding": (1, 1_000_000),
}
_MAY_BE_EMPTY = (
    "kernels.host_waits",
    "kernels.padded_host_waits",
    "support.frozen_zero_stages",
    "kernels.unfused",
    "support.partial_offload_zero_stages",
    "support.memory_switches",
    "support.features",
    "support.limits",
    "offload.waited_gradient_zero_stages",
    "offload.pageable_weight_zero_stages",
)


def profile_problem(framework: str, profile: str) -> str:
    """Return what is wrong with a profile of a known framework, or an empty text."""
    if has_profile(framework, profile):
        return ""
    names = profile_names(framework)
    return _unknown(f"profile of {framework}", repr(profile), names, did_you_mean(profile, names))


def _unknown(kind: str, given: str, allowed: Iterable[str], hint: str) -> str:
    text = f"unknown {kind}; given {given}, allowed: {', '.join(allowed)}"
    return f"{text}; {hint}" if hint else text


def _range(path: str) -> tuple[float, float]:
    return _RANGES.get(path, (0.0, 1.0 if path.endswith("_fraction") else 1e18))


def _number(path: str, value: object, *, is_whole: bool) -> float | None:
    """Return ``value`` as a number in the trait's range; None where it is none."""
    if not is_whole and isinstance(value, str):
        try:
            value = float(value)  # YAML takes 1e9 for text
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = _range(path)
    if not low <= value <= high or (is_whole and value != int(value)):
        return None
    return int(value) if is_whole else float(value)


def _allowed(path: str, kind: object) -> str:
    is_list = get_origin(kind) is tuple
    if choices := _choices(path, kind):
        text = ", ".join(map(str, choices))
        return f"a list with some of {text}" if is_list else text
    if kind is bool:
        return "true, false"
    element, *others = get_args(kind) if is_list else (kind,)
    if element not in (int, float):
        return "a list of words" if is_list else "a word"
    low, high = _range(path)
    numbers = f"{'whole numbers' if element is int else 'numbers'} from {low:g} to {high:g}"
    many = "" if others == [...] else f"{len(others) + 1} "
    return f"a list of {many}{numbers}" if is_list else numbers


def _choices(path: str, kind: object) -> Sequence[object]:
    """Return the values that a trait or its elements may have; none where any will do."""
    if "zero_stages" in path:
        return (0, 1, 2, 3)
    element = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return _words_of().get(path, get_args(element) if get_origin(element) is Literal else ())


def _converted(path: str, kind: object, value: object) -> TraitValue | None:
    """Return ``value`` as the trait's type; None where it does not fit."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not (value or path in _MAY_BE_EMPTY):
            return None
        element, *others = get_args(kind)
        if others not in ([...], [element] * (len(value) - 1)):
            return None
        items: tuple[Any, ...] = tuple(_converted(path, element, item) for item in value)
        return None if None in items else items
    if choices := _choices(path, kind):
        if isinstance(value, bool):
            value = "yes" if value else "no"  # YAML takes the word no for false
        return value if value in choices else None  # type: ignore[return-value]
    if kind in (int, float):
        return _number(path, value, is_whole=kind is int)
    if kind is bool:
        return value if isinstance(value, bool) else None
    return value if isinstance(value, str) else None


def _read(path: str, value: object) -> TraitValue:
    """Return one trait's value; raises ValueError saying what is wrong with path or value."""
    section, _, name = path.partition(".")
    types = trait_types()
    given = short(repr(value) if isinstance(value, str) else str(value))
    if section == RECOMPUTE:
        raise ValueError("is chosen by recompute_modules (--recompute-modules), not as a trait")
    if section not in types:
        hint = did_you_mean(section, types)
        raise ValueError(_unknown("section of traits", section, types, hint))
    if instead := renamed_traits().get(path):
        raise ValueError(f"is no trait any more; {instead}")
    if name not in types[section]:
        paths = {known: f"{ROOT}.{place}.{known}" for place in types for known in types[place]}
        near = nearest(name, types[section]) or nearest(name, paths)
        close = [paths[known] for known in near]
        hint = f"did you mean {', '.join(close)}?" if close else ""
        raise ValueError(_unknown("trait", given, types[section], hint))
    kind = types[section][name]
    converted = _converted(path, kind, value)
    if converted is None:
        raise ValueError(f"wrong value; given {given}, allowed: {_allowed(path, kind)}")
    return converted


def _parsed(text: str) -> Setting:
    """Read ``traits.SECTION.KEY=VALUE``; raises ValueError saying what is wrong."""
    key, equals, value = text.partition("=")
    if key.strip() in trait_types()[FACTS]:
        key = f"{ROOT}.{FACTS}.{key.strip()}"
    root, _, path = key.strip().partition(".")
    section, _, name = path.partition(".")
    if not equals or root != ROOT or not section or not name:
        hint = f"; did you mean {ROOT}.{text}?" if root in trait_types() else ""
        raise ValueError(f"must be {ROOT}.SECTION.KEY=VALUE; given {text!r}{hint}")
    try:
        given = parsed_yaml(COMMAND_LINE, value).value
    except InputError:
        raise ValueError(f"the value is not YAML; given {value!r}") from None
    return path, _read(path, given)


def read_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Read the ``--set`` options of a command; raises InputError with every problem."""
    problems = Problems()
    found: dict[str, TraitValue] = {}
    for text in texts:
        option = f"{OPTION} {text.partition('=')[0].strip()}"
        setting = problems.parsed(option, text, _parsed)
        if setting is None:
            continue
        path, value = setting
        if path in found:
            problems.add(option, f"is set twice; given {found[path]} and {value}")
        found[path] = value
    problems.finish()
    return tuple(found.items())


def settings_of(
    traits: Mapping[str, Mapping[str, object]], *, where: str, key: str
) -> tuple[Setting, ...]:
    """Read a file's mapping of sections to traits; raises InputError with every problem."""
    problems = Problems(where)
    found: dict[str, TraitValue | None] = {}
    for section, values in traits.items():
        for name, value in values.items():
            path = f"{section}.{name}"
            found[path] = problems.parsed(f"{key}.{path}", path, partial(_read, value=value))
    problems.finish()
    return tuple((path, value) for path, value in found.items() if value is not None)


def software_options(traits: FrameworkTraits) -> list[str]:
    """The options that say a profile and its settings; none for the current one as it is."""
    words = [] if traits.profile == CURRENT else ["--profile", traits.profile]
    for section, values in settings_mapping(traits.settings).items():
        for key, value in values.items():
            words += [OPTION, f"{ROOT}.{section}.{key}={value}"]
    return words


def settings_mapping(settings: Sequence[Setting]) -> dict[str, dict[str, Any]]:
    """Return settings as :func:`settings_of` reads them, lists for tuples."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in settings:
        section, _, name = path.partition(".")
        plain = list(value) if isinstance(value, tuple) else value
        sections.setdefault(section, {})[name] = plain
    return sections
