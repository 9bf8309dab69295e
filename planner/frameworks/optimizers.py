"""Finds optimizers by name and reads what each keeps, in general and under a framework."""

from dataclasses import replace
from functools import cache
from typing import Any, get_args

from planner.documents.tree import load_own
from planner.errors import InputError
from planner.spec.training import OptimizerSpec, TensorKind, TensorStates
from planner.spelling import unknown

ADAM = "adam"
Figures = dict[str, dict[str, Any]]
KINDS: tuple[str, ...] = get_args(TensorKind)


@cache
def _read_optimizers() -> dict[str, dict[str, Any]]:
    optimizers: dict[str, dict[str, Any]] = load_own(__package__, "optimizers.yaml")
    return optimizers


def optimizer_names(framework: str | None = None) -> list[str]:
    """Return all optimizers, or those a framework offers."""
    return [
        name
        for name, entry in _read_optimizers().items()
        if framework is None or framework in entry["frameworks"]
    ]


def smaller_states(name: str, framework: str) -> list[str]:
    """Return optimizers of a framework that step as ``name`` does and keep smaller states."""
    return [
        other
        for other in optimizer_names(framework)
        if _read_optimizers()[other].get("smaller_states_of") == name
    ]


def optimizer_figures(name: str, framework: str | None = None) -> dict[str, Figures]:
    """Return every figure as ``{value, source}``: ``figures``, then one section per tensor kind.

    Unknown names, and optimizers the framework does not offer, raise InputError.
    """
    if name not in _read_optimizers():
        message = unknown("optimizer", name, optimizer_names())
        raise InputError.single("command line", "--optimizer", message)
    entry = _read_optimizers()[name]
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
